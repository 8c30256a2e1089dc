"""The files that MLflow shows beside a run or a study, written into a directory."""

import csv
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from ressmooth import curves
from ressmooth.compare import Arm, spread
from ressmooth.phrases import settings
from ressmooth.report import SELECTION
from ressmooth.spec import StudySpec

if TYPE_CHECKING:
    from ressmooth.store import EpochRow, RunRow, StudyRow, TrialRow

HEAD = ("arm", "configuration", "trials", "seeds", "max", "mean", "test")


def write_run(directory: Path, run: "RunRow", title: str, curve: Sequence["EpochRow"]) -> None:
    """config.json, and curves.csv and curves.png if an epoch was trained."""
    (directory / "config.json").write_text(json.dumps(run.config, indent=1) + "\n")
    if not curve:
        return
    names = [field.name for field in fields(curves.Epoch)]
    epochs = [curves.Epoch(**{name: getattr(row, name) for name in names}) for row in curve]
    curves.write_csv(directory / "curves.csv", epochs)
    curves.draw(epochs, title).savefig(directory / "curves.png", dpi=100)


def write_study(
    directory: Path, study: "StudyRow", trials: Sequence["TrialRow"], arms: Sequence[Arm]
) -> None:
    """study.toml, comparison.md and .csv, and search/ARM.html where something was searched."""
    (directory / "study.toml").write_text(study.file_text)
    spec = StudySpec.from_dict(study.spec)
    selection = spec.settings.get("selection", "paper")
    (directory / "comparison.md").write_text(markdown(arms, selection))
    _write_csv(directory / "comparison.csv", arms)
    from ressmooth.tracking import plots  # loads plotly

    (directory / "search").mkdir()
    for arm in spec.arms:
        page = plots.page(spec, arm, trials)
        if page is not None:
            (directory / "search" / f"{arm}.html").write_text(page)


def _write_csv(path: Path, arms: Sequence[Arm]) -> None:
    """The comparison as numbers, a row per arm and seed."""
    params = list(dict.fromkeys(name for arm in arms for name in arm.params))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["arm", *params, "seed", "max_acc", "mean_acc", "test_acc"])
        for arm in arms:
            accuracies = zip(arm.max_acc, arm.mean_acc, arm.test_acc, strict=True)
            for seed, values in enumerate(accuracies):
                given = [arm.params.get(name, "") for name in params]
                writer.writerow([arm.name, *given, seed, *values])


def markdown(arms: Sequence[Arm], selection: str) -> str:
    """The comparison as a table: accuracies in %, mean ± standard deviation over seeds."""
    lines = [HEAD, ["---"] * len(HEAD), *map(_cells, arms)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table}\n\nAccuracies in %, mean ± std over seeds. {SELECTION[selection]}\n"


def _cells(arm: Arm) -> list[str]:
    accuracies = (arm.max_acc, arm.mean_acc, arm.test_acc)
    return [
        arm.name,
        settings(arm.params),
        str(arm.trials),
        str(len(arm.max_acc)),
        *(spread(values) for values in accuracies),
    ]
