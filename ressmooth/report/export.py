"""A study's curves as one flat table, for whatever people use to look at tables."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from ressmooth.search.sampler import distribution
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store import Store, StudyRow

if TYPE_CHECKING:
    from ressmooth.store import EpochRow, Store, StudyRow, TrialRow


def write(store: Store, study: StudyRow, form: str, out: TextIO) -> None:
    rows = list(_rows(store, study))
    if form == "json":
        json.dump(rows, out, indent=1)
        out.write("\n")
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _rows(store: Store, study: StudyRow) -> Iterator[dict[str, Any]]:
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


STATES = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


DECADES = 100.0  # a grid that spans so large a ratio is drawn on a logarithmic axis


def complete_trials(trials: Sequence["TrialRow"], arm: str) -> list["TrialRow"]:
    """What the search of an arm has to show; a confirmation is none of it."""
    return [t for t in trials if t.arm == arm and t.state == "complete" and t.confirms is None]


def varied(spec: StudySpec, arm: str, trials: Sequence["TrialRow"]) -> dict[str, BaseDistribution]:
    """What differs between these trials of an arm, in the order of the file."""
    return {
        name: axis
        for name, axis in distributions(spec, arm).items()
        if len({trial.params[name] for trial in trials}) > 1
    }


def optuna_study(
    trials: Sequence["TrialRow"], axes: Mapping[str, BaseDistribution]
) -> optuna.Study:
    """Complete trials of one arm as Optuna knows them, with the parameters that `axes` names."""
    study = optuna.create_study(direction="maximize")
    study.add_trials([_as_optuna(trial, axes) for trial in trials])
    return study


def save_optuna(store: "Store", study: "StudyRow", path: Path) -> None:
    """Arms as the studies of an Optuna database: ended trials, their first seed's curves."""
    spec = read_stored(study.spec)
    trials = [t for t in store.trials(study.id) if t.state in STATES and t.confirms is None]
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    for arm in spec.arms:
        axes = distributions(spec, arm)
        one = optuna.create_study(
            study_name=f"{study.name} {arm}", direction="maximize", storage=storage
        )
        for trial in trials:
            if trial.arm == arm:
                one.add_trial(_as_optuna(trial, axes, store.curve(trial.runs[0].id)))
    storage.engine.dispose()


def _as_optuna(
    trial: "TrialRow", axes: Mapping[str, BaseDistribution], curve: Sequence["EpochRow"] = ()
) -> FrozenTrial:
    return optuna.trial.create_trial(
        state=STATES[trial.state],
        params={name: trial.params[name] for name in axes},
        distributions=dict(axes),
        value=trial.value,
        intermediate_values={e.epoch: e.val_acc for e in curve if e.val_acc is not None},
        user_attrs={"trial": trial.id},
    )


def distributions(spec: StudySpec, arm: str) -> dict[str, BaseDistribution]:
    """What an arm searches, grids included, in the order of the file."""
    grids = {**spec.grid, **spec.arms[arm].grid}
    space = spec.arms[arm].space
    return {
        **{name: _axis(values) for name, values in grids.items()},
        **{name: distribution(name, search) for name, search in space.items()},
    }


def _axis(values: list[Any]) -> BaseDistribution:
    """Where a grid's values lie: between the least and the largest if they are numbers."""
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return CategoricalDistribution(values)
    low, high = min(values), max(values)
    if all(isinstance(v, int) for v in values):
        return IntDistribution(low, high)
    return FloatDistribution(low, high, log=low > 0 and high / low >= DECADES)
