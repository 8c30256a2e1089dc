"""Export a study: every epoch as a flat CSV or JSON table, or its trials as Optuna studies."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from ressmooth.search.sampler import TRIAL_STATES, distribution
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store import EpochRow, State, Store, StudyRow, TrialRow

APPLICATION_ID = b"ress"  # in the header of the SQLite files that we write
LOG_RATIO = 100.0  # a grid that spans at least this ratio gets a logarithmic axis

Space = dict[str, BaseDistribution]


def write_epochs(store: Store, study: StudyRow, form: str, out: TextIO) -> None:
    """Write one row per epoch, as "csv" or "json"."""
    rows = list(_epochs(store, study))
    if form == "json":
        json.dump(rows, out, indent=1)
        out.write("\n")
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _epochs(store: Store, study: StudyRow) -> Iterator[dict[str, Any]]:
    for trial in store.trials(study.id):
        for run in trial.runs:
            head = {
                "study": study.name,
                "arm": trial.arm,
                "trial": trial.id,
                "run": run.id,
                "seed": run.seed,
                "state": run.state,
                **{f"param.{key}": value for key, value in trial.params.items()},
            }
            for epoch in store.curve(run.id):
                row = {**head, **asdict(epoch), "recorded_at": epoch.recorded_at.isoformat()}
                del row["checkpoint_sha256"]
                yield row


def write_optuna(store: Store, study: StudyRow, path: Path) -> None:
    """Write a study per arm with its finished trials, each with the curve of its first seed."""
    spec = read_stored(study.spec)
    trials = [t for t in store.trials(study.id) if t.state.is_terminal and t.confirms is None]
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    for arm in spec.arms:
        space = distributions(spec, arm)
        name = f"{study.name} {arm}"
        exported = optuna.create_study(study_name=name, direction="maximize", storage=storage)
        for trial in trials:
            if trial.arm == arm:
                exported.add_trial(_optuna_trial(trial, space, store.curve(trial.runs[0].id)))
    with storage.engine.begin() as connection:
        connection.exec_driver_sql(f"PRAGMA application_id = {int.from_bytes(APPLICATION_ID)}")
    storage.engine.dispose()


def is_optuna_export(path: Path) -> bool:
    """Tell whether a file is a database that `write_optuna` has written."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        header = file.read(100)
    return header[68:72] == APPLICATION_ID  # https://sqlite.org/fileformat.html


def optuna_study(trials: Sequence[TrialRow], space: Space) -> optuna.Study:
    """Return complete trials of one arm as an Optuna study with the parameters of `space`."""
    study = optuna.create_study(direction="maximize")
    study.add_trials([_optuna_trial(trial, space) for trial in trials])
    return study


def _optuna_trial(trial: TrialRow, space: Space, curve: Sequence[EpochRow] = ()) -> FrozenTrial:
    return optuna.trial.create_trial(
        state=TRIAL_STATES[trial.state],
        params={name: trial.params[name] for name in space},
        distributions=space,
        value=trial.value,
        intermediate_values={e.epoch: e.val_acc for e in curve if e.val_acc is not None},
        user_attrs={"trial": trial.id},
    )


def complete_trials(trials: Sequence[TrialRow], arm: str) -> list[TrialRow]:
    """Return the complete trials of an arm's search, without confirmations."""
    return [t for t in trials if t.arm == arm and t.state == State.COMPLETE and t.confirms is None]


def varied_parameters(spec: StudySpec, arm: str, trials: Sequence[TrialRow]) -> Space:
    """Return the parameters in which these trials of an arm differ, in the order of the file."""
    return {
        name: axis
        for name, axis in distributions(spec, arm).items()
        if len({trial.params[name] for trial in trials}) > 1
    }


def distributions(spec: StudySpec, arm: str) -> Space:
    """Return an arm's search space, grids included, in the order of the file."""
    grids = {**spec.grid, **spec.arms[arm].grid}
    return {
        **{name: _grid_distribution(values) for name, values in grids.items()},
        **{name: distribution(name, search) for name, search in spec.arms[arm].space.items()},
    }


def _grid_distribution(values: list[Any]) -> BaseDistribution:
    """Return the range of a grid of numbers, or the choices of any other grid."""
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return optuna.distributions.CategoricalDistribution(values)
    low, high = min(values), max(values)
    if all(isinstance(v, int) for v in values):
        return optuna.distributions.IntDistribution(low, high)
    return optuna.distributions.FloatDistribution(
        low, high, log=low > 0 and high / low >= LOG_RATIO
    )
