"""The history of the schema: one migration per file in `versions`.

To add one, change tables.py, write versions/000N_*.py and raise HEAD. Until the tables and the
migrations agree, tests/store/test_migrations.py fails. Revisions are compared as text, so a newer
one must sort last.
"""

HEAD = "0005"
VERSION_TABLE = "ressmooth_version"  # Optuna and MLflow both use Alembic's default name
