"""Prefixes that runs share: which one a run has, and the run whose prefix it continues."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    with op.batch_alter_table("run") as run:
        run.add_column(sa.Column("prefix", sa.Text))
        run.add_column(sa.Column("plain_epochs", sa.Integer))
        run.add_column(sa.Column("forked_from", sa.Integer))
        run.add_column(sa.Column("forked_at", sa.Integer))
        run.create_foreign_key("fk_run_forked_from", "run", ["forked_from"], ["id"])
    op.create_index("ix_run_prefix", "run", ["prefix", "seed"])
