"""Which run is next: Optuna's samplers and pruners, and the planner on top of them."""
