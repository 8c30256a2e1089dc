"""The history of the tables, one file per step in `versions`.

The next one: change tables.py, write versions/000N_*.py and raise HEAD; tests/test_migrations.py
fails as long as the two say different things. Ids sort by age.
"""

HEAD = "0002"
VERSION_TABLE = "ressmooth_version"  # Optuna and MLflow both take Alembic's default name
