"""What a comparison needs: a trial's condition, what it confirms, and the paper's figures."""

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

PROBLEM = ("dataset", "model", "fraction")
VERSION = 1  # of the published figures; a correction is a new version and a new migration

# The paper's three tables: accuracy in %, mean of five runs. SGD appears at four weight decays.
TABLE_1 = """
             sgd:1e-2 sgd:1e-3 sgd:1e-4 sgd:1e-5 global_laplace global_logistic laplace logistic
    1  max   88.46    93.36    93.25    93.21    93.73          93.77           93.89   93.91
    1  mean  88.04    93.30    93.19    93.16    93.65          93.64           93.79   93.67
"""
TABLE_2 = """
             sgd:1e-2 sgd:1e-3 sgd:1e-4 sgd:1e-5 laplace logistic
    0.5    max     88.84    92.52    91.76    91.92    92.99   92.93
    0.5    mean    88.55    92.45    91.73    91.87    92.87   92.80
    0.25   max     88.46    91.32    90.55    90.58    91.75   91.73
    0.25   mean    88.27    91.25    90.52    90.53    91.65   91.58
    0.125  max     88.14    89.79    89.00    88.62    90.12   90.18
    0.125  mean    88.02    89.72    88.94    88.55    90.01   90.09
"""
TABLE_3 = """
                                     sgd   adam  adagrad label_smoothing laplace logistic
    resnet56           cifar10  max  92.66 90.50 87.67   92.36           92.93   92.89
    resnet56           cifar10  mean 92.54 89.86 86.47   92.21           92.78   92.74
    resnet56           cifar100 max  70.94 68.42 66.55   71.09           71.06   71.46
    resnet56           cifar100 mean 70.71 68.21 66.41   70.86           70.89   71.11
    resnet56           svhn     max  95.88 95.82 94.70   95.99           96.09   96.11
    resnet56           svhn     mean 95.83 95.37 94.36   95.95           96.05   96.06
    densenet_bc_100_12 cifar10  max  94.43 91.91 87.16   94.43           94.64   94.76
    densenet_bc_100_12 cifar10  mean 94.32 91.39 86.81   94.32           94.53   94.66
    densenet_bc_100_12 cifar100 max  75.41 67.37 58.66   75.30           75.67   75.75
    densenet_bc_100_12 cifar100 mean 75.22 66.75 58.44   75.12           75.46   75.31
    densenet_bc_100_12 svhn     max  96.82 96.11 95.10   96.86           96.89   96.97
    densenet_bc_100_12 svhn     mean 96.78 95.67 94.78   96.83           96.85   96.93
"""


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
    rows = list(_published_figures())
    table = sa.table("baseline", *map(sa.column, rows[0]))
    op.execute(sa.delete(table))
    op.bulk_insert(table, rows)


def _published_figures() -> Iterator[dict[str, Any]]:
    """Yield all 124 rows, in the order of the tables."""
    for table, text in (("1", TABLE_1), ("2", TABLE_2)):
        columns, *rows = (line.split() for line in text.strip().splitlines())
        for fraction, statistic, *values in rows:
            problem = ("fashion_mnist", "resnet20", float(fraction))
            yield from _row(table, problem, 1e-3, statistic, columns, values)
    columns, *rows = (line.split() for line in TABLE_3.strip().splitlines())
    for model, dataset, statistic, *values in rows:
        yield from _row("3", (dataset, model, 1.0), 1e-4, statistic, columns, values)


def _row(
    table: str,
    problem: tuple[str, str, float],
    decay: float,
    statistic: str,
    columns: list[str],
    values: list[str],
) -> Iterator[dict[str, Any]]:
    for column, value in zip(columns, values, strict=True):
        name, _, its_decay = column.partition(":")
        yield {
            "version": VERSION,
            "table_name": table,
            **dict(zip(PROBLEM, problem, strict=True)),
            "method": name.replace("_", " "),
            "weight_decay": float(its_decay or decay),
            "statistic": statistic,
            "value": float(value),
        }
