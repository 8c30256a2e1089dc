"""What the Store knows of studies, as text."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.table import Table

from ressmooth.arms import Arm
from ressmooth.compare import Comparison
from ressmooth.phrases import duration, last_line, settings
from ressmooth.report import tables
from ressmooth.store import StudyRow, TrialRow


def overview(studies: Sequence[tuple[StudyRow, Sequence[TrialRow], Sequence[Arm]]]) -> str:
    """A line per study."""
    table = Table()
    for column in ("study", "dataset", "model", "runs", "best arm", "since", "held by"):
        table.add_column(column)
    for study, trials, arms in studies:
        best = max(arms, key=lambda arm: arm.leading.mean, default=None)
        common = study.spec["settings"]
        table.add_row(
            study.name,
            str(common.get("dataset", "digits")),
            str(common.get("model", "small")),
            _states(run.state for trial in trials for run in trial.runs),
            f"{best.name} {best.leading.mean:.2f} %" if best else "–",
            f"{study.created_at:%Y-%m-%d %H:%M}",
            study.held_by or "",
        )
    return tables.rendered(table).rstrip()


def details(study: StudyRow, trials: Sequence[TrialRow], comparisons: Sequence[Comparison]) -> str:
    """Every trial and run of a study, then the comparison."""
    table = Table(title=study.name)
    for column in ("arm", "configuration", "value", "run", "seed", "epochs", "state", "max"):
        table.add_column(column, overflow="fold")
    for column in ("mean", "time"):
        table.add_column(column)
    for trial in trials:
        arm = trial.arm if trial.confirms is None else f"{trial.arm} (fresh seeds)"
        head = [arm, settings(trial.params), _percent(trial.value)]
        for run in trial.runs:
            table.add_row(
                *(head if run is trial.runs[0] else [""] * len(head)),
                str(run.id),
                str(run.seed),
                f"{run.last_epoch}/{run.config['epochs']}",
                run.state,
                _percent(run.max_acc),
                _percent(run.mean_acc),
                duration(run.seconds) if run.seconds is not None else "",
            )
    errors = [
        f"run {run.id} ({trial.arm}, seed {run.seed}): {last_line(run.error)}"
        for trial in trials
        for run in trial.runs
        if run.error
    ]
    compared = tables.text(comparisons, against_paper=False)
    return "\n".join([tables.rendered(table).rstrip(), *errors, compared])


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.2f}"


def _states(states: Iterable[str]) -> str:
    counts = Counter(states)
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"
