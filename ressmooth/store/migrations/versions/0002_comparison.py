"""What a comparison needs: a trial's condition, what it confirms, and the paper's figures."""

import json
from dataclasses import asdict

import sqlalchemy as sa
from alembic import op

from ressmooth import paper

revision = "0002"
down_revision = "0001"

PROBLEM = ("dataset", "model", "fraction")


def upgrade() -> None:
    op.drop_index("ix_trial_value", "trial")
    with op.batch_alter_table("trial") as trial:
        trial.add_column(sa.Column("condition", sa.Text, nullable=False, server_default="{}"))
        trial.add_column(sa.Column("confirms", sa.Integer))
        trial.create_foreign_key("fk_trial_confirms", "trial", ["confirms"], ["id"])
    _fill_conditions(op.get_bind())
    with op.batch_alter_table("trial") as trial:
        trial.alter_column("condition", server_default=None)
    columns = ["study_id", "state", "confirms", "arm", "condition", "value"]
    op.create_index("ix_trial_value", "trial", columns)
    confirming = sa.text("confirms IS NOT NULL")
    op.create_index(
        "ix_trial_confirms",
        "trial",
        ["confirms"],
        sqlite_where=confirming,
        postgresql_where=confirming,
    )
    with op.batch_alter_table("baseline") as baseline:
        baseline.add_column(sa.Column("version", sa.Integer, nullable=False, server_default="1"))
        baseline.alter_column("weight_decay", existing_type=sa.Double, nullable=False)
    with op.batch_alter_table("baseline") as baseline:
        baseline.alter_column("version", server_default=None)
    _load_baselines()


def _fill_conditions(connection: sa.Connection) -> None:
    """The problem, from the trial's first run, and its cell of the study's [grid]."""
    study = sa.table("study", sa.column("id"), sa.column("spec", sa.JSON))
    trial = sa.table("trial", sa.column("id"), sa.column("study_id"), sa.column("condition"))
    run = sa.table("run", sa.column("trial_id"), sa.column("config", sa.JSON))
    of_trial = sa.select(trial.c.id, study.c.spec, run.c.config).select_from(
        trial.join(study, study.c.id == trial.c.study_id).join(run, run.c.trial_id == trial.c.id)
    )
    conditions = {
        row.id: {key: row.config[key] for key in (*PROBLEM, *row.spec["grid"]) if key in row.config}
        for row in connection.execute(of_trial)
    }
    for id, condition in conditions.items():
        text = json.dumps(condition, sort_keys=True)
        connection.execute(sa.update(trial).where(trial.c.id == id).values(condition=text))


def _load_baselines() -> None:
    rows = [{"version": paper.VERSION, **asdict(row)} for row in paper.baselines()]
    table = sa.table("baseline", *map(sa.column, rows[0]))
    op.execute(sa.delete(table))
    op.bulk_insert(table, rows)
