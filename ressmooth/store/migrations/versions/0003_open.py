"""Metrics besides accuracy, and the hash of a user's own data set."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for name in ("val_nll", "val_ece", "val_macro_f1"):
        op.add_column("epoch", sa.Column(name, sa.Double))
    op.add_column("run", sa.Column("metrics", sa.JSON))
    op.add_column("run", sa.Column("data_sha256", sa.Text))
