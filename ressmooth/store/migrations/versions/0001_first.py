"""The first release's tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "study",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("file_text", sa.Text, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("elapsed", sa.Double, nullable=False),
        sa.Column("holder_host", sa.Text),
        sa.Column("holder_pid", sa.Integer),
        sa.Column("holder_started", sa.Double),
        sa.Column("holder_token", sa.Text),
        sa.Column("held_at", MOMENT),
        sa.Column("beat_at", MOMENT),
        sa.PrimaryKeyConstraint("id", name="pk_study"),
        sa.UniqueConstraint("uid", name="uq_study_uid"),
        sa.UniqueConstraint("name", name="uq_study_name"),
    )
    op.create_table(
        "trial",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("study_id", sa.Integer, nullable=False),
        sa.Column("arm", sa.Text, nullable=False),
        sa.Column("branch", sa.Text, nullable=False),
        sa.Column("number_in_branch", sa.Integer, nullable=False),
        sa.Column("params", sa.JSON, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("sampler_state", sa.JSON, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("finished_at", MOMENT),
        sa.PrimaryKeyConstraint("id", name="pk_trial"),
        sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="fk_trial_study_id"),
        sa.UniqueConstraint("study_id", "branch", "number_in_branch", name="uq_trial_study_id"),
    )
    op.create_index("ix_trial_value", "trial", ["study_id", "state", "arm", "value"])
    op.create_table(
        "run",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("seed", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("max_acc", sa.Double),
        sa.Column("mean_acc", sa.Double),
        sa.Column("test_acc", sa.Double),
        sa.Column("last_epoch", sa.Integer, nullable=False),
        sa.Column("seconds", sa.Double),
        sa.Column("error", sa.Text),
        sa.Column("host", sa.Text),
        sa.Column("device", sa.Text),
        sa.Column("threads", sa.Integer),
        sa.Column("versions", sa.JSON),
        sa.Column("git_commit", sa.Text),
        sa.Column("started_at", MOMENT),
        sa.Column("finished_at", MOMENT),
        sa.Column("weights_sha256", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name="fk_run_trial_id"),
        sa.UniqueConstraint("uid", name="uq_run_uid"),
        sa.UniqueConstraint("trial_id", "seed", name="uq_run_trial_id"),
    )
    op.create_table(
        "epoch",
        sa.Column("run_id", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("train_loss", sa.Double),
        sa.Column("train_acc", sa.Double),
        sa.Column("val_loss", sa.Double),
        sa.Column("val_acc", sa.Double),
        sa.Column("lr", sa.Double),
        sa.Column("scale", sa.Double),
        sa.Column("diffusivity", sa.Double),
        sa.Column("seconds", sa.Double),
        sa.Column("recorded_at", MOMENT, nullable=False),
        sa.Column("checkpoint_sha256", sa.Text),
        sa.PrimaryKeyConstraint("run_id", "epoch", name="pk_epoch"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_epoch_run_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "baseline",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("dataset", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("fraction", sa.Double, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("weight_decay", sa.Double),
        sa.Column("statistic", sa.Text, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_baseline"),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("study_id", sa.Integer, nullable=False),
        sa.Column("run_id", sa.Integer),
        sa.Column("epoch", sa.Integer),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("sent_at", MOMENT),
        sa.Column("parked", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="fk_outbox_study_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_outbox_run_id"),
    )
    pending = sa.text("sent_at IS NULL AND parked IS NULL")
    op.create_index(
        "ix_outbox_pending", "outbox", ["id"], sqlite_where=pending, postgresql_where=pending
    )
