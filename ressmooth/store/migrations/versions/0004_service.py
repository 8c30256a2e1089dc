"""The service: who submitted a study, its state and priority; a lease; notifications.

Also the GPUs of a run, and their use by epoch; what a race of seeds decided about a trial.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

HAS_RUNNING_TRIALS = "SELECT 1 FROM trial WHERE trial.study_id = study.id AND state = 'running'"
HAS_TRIALS = "SELECT 1 FROM trial WHERE trial.study_id = study.id"


def upgrade() -> None:
    op.add_column("study", sa.Column("owner", sa.Text))
    op.add_column("study", sa.Column("submitted_at", sa.DateTime(timezone=True)))
    op.add_column("study", sa.Column("problem", sa.Text))
    op.add_column("study", sa.Column("runs_planned", sa.Integer))
    op.add_column("run", sa.Column("gpus", sa.Text))
    with op.batch_alter_table("study") as study:
        study.add_column(sa.Column("state", sa.Text, nullable=False, server_default="stopped"))
        study.add_column(sa.Column("priority", sa.Text, nullable=False, server_default="normal"))
    op.execute(
        f"UPDATE study SET state = 'ended' WHERE EXISTS ({HAS_TRIALS}) "
        f"AND NOT EXISTS ({HAS_RUNNING_TRIALS})"
    )
    with op.batch_alter_table("study") as study:
        study.alter_column("state", server_default=None)
        study.alter_column("priority", server_default=None)
    op.create_table(
        "service",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("nodes", sa.JSON, nullable=False),
        sa.Column("holder_host", sa.Text),
        sa.Column("holder_pid", sa.Integer),
        sa.Column("holder_started", sa.Double),
        sa.Column("holder_token", sa.Text),
        sa.Column("held_at", sa.DateTime(timezone=True)),
        sa.Column("beat_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "notification",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study_id", sa.Integer, sa.ForeignKey("study.id"), nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True)),
        sa.Column("sent_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "race",
        sa.Column(
            "trial_id",
            sa.Integer,
            sa.ForeignKey("trial.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("seeds", sa.Integer, nullable=False),
        sa.Column("rival_id", sa.Integer, sa.ForeignKey("trial.id")),
        sa.Column("chance", sa.Double),
        sa.Column("e_value", sa.Double),
    )
    for name in ("gpu_memory_mib", "gpu_utilization_percent", "gpu_power_watts"):
        op.add_column("epoch", sa.Column(name, sa.Double))
