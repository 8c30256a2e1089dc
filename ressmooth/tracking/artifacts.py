"""The files that MLflow shows beside a run or a study, written into a directory."""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from ressmooth import curves
from ressmooth.compare import Comparison
from ressmooth.report import tables
from ressmooth.spec import StudySpec

if TYPE_CHECKING:
    from ressmooth.store import EpochRow, RunRow, StudyRow, TrialRow


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
    directory: Path,
    study: "StudyRow",
    trials: Sequence["TrialRow"],
    comparisons: Sequence[Comparison],
) -> None:
    """study.toml, comparison.md and .csv, and search/ARM.html where something was searched."""
    (directory / "study.toml").write_text(study.file_text)
    spec = StudySpec.from_dict(study.spec)
    against = any(table.has_paper for table in comparisons)
    markdown = tables.markdown(comparisons, against_paper=against)
    (directory / "comparison.md").write_text(f"{markdown}\n")
    (directory / "comparison.csv").write_text(f"{tables.as_csv(comparisons)}\n")
    from ressmooth.tracking import plots  # loads plotly

    (directory / "search").mkdir()
    for arm in spec.arms:
        page = plots.page(spec, arm, trials)
        if page is not None:
            (directory / "search" / f"{arm}.html").write_text(page)
