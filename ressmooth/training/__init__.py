"""Data, networks, losses and the training loop of one run."""
