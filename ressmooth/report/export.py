"""Export a study: its trials as Optuna studies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from ressmooth.config import values_of
from ressmooth.search.sampler import TRIAL_STATES, direction, distribution
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store import EpochRow, State, Store, StudyRow, TrialRow

APPLICATION_ID = b"ress"  # in the header of the SQLite files that we write
MAX_SHOWN = 300  # trials of an arm in a figure, and behind importances
LOG_RATIO = 100.0  # a grid that spans at least this ratio gets a logarithmic axis

Space = dict[str, BaseDistribution]


def write_optuna(store: Store, study: StudyRow, path: Path) -> None:
    """Write a study per arm with its finished trials, each with the curve of its first seed."""
    spec = read_stored(study.spec)
    trials = [t for t in store.trials(study.id) if t.state.is_terminal and t.confirms is None]
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    for arm in spec.arms:
        space = distributions(spec, arm)
        name = f"{study.name} {arm}"
        exported = optuna.create_study(study_name=name, direction=direction(spec), storage=storage)
        for trial in [each for each in trials if each.arm == arm]:
            values = _values(spec, store.curve(trial.runs[0].id))
            exported.add_trial(_optuna_trial(trial, space, values))
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


def optuna_study(spec: StudySpec, trials: Sequence[TrialRow], space: Space) -> optuna.Study:
    """Return complete trials of one arm as an Optuna study with the parameters of `space`."""
    study = optuna.create_study(direction=direction(spec))
    study.add_trials([_optuna_trial(trial, space) for trial in trials])
    return study


def _values(spec: StudySpec, curve: Sequence[EpochRow]) -> dict[int, float]:
    """Return the study's metric by epoch."""
    return {epoch.epoch: value for epoch in curve for value in values_of([epoch], spec.metric)}


def _optuna_trial(
    trial: TrialRow, space: Space, values: Mapping[int, float] | None = None
) -> FrozenTrial:
    return optuna.trial.create_trial(
        state=TRIAL_STATES[trial.state],
        params={name: trial.params[name] for name in space},
        distributions=space,
        value=trial.value,
        intermediate_values=dict(values or {}),
        user_attrs={"trial": trial.id},
    )


def complete_trials(trials: Sequence[TrialRow], arm: str) -> list[TrialRow]:
    """Return the complete trials of an arm's search, without confirmations."""
    return [t for t in trials if t.arm == arm and t.state == State.COMPLETE and t.confirms is None]


def sample(trials: Sequence[TrialRow], is_higher_better: bool = True) -> list[TrialRow]:
    """Return trials at even distances, and the best one, if there are too many for a figure."""
    if len(trials) <= MAX_SHOWN:
        return list(trials)
    sign = 1 if is_higher_better else -1
    valued = [n for n, trial in enumerate(trials) if trial.value is not None]
    best = max(valued, key=lambda n: sign * (trials[n].value or 0.0), default=0)
    chosen = {number * len(trials) // MAX_SHOWN for number in range(MAX_SHOWN)} | {best}
    return [trials[number] for number in sorted(chosen)]


def sample_note(shown: int, found: int) -> str:
    """Return a sentence about a sample, or nothing if all trials are shown."""
    return "" if shown == found else f" These are {shown} of {found:,} trials, a sample."


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
