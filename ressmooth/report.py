"""Studies as text: the comparison of the arms, and what the Store knows of a study."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from ressmooth.compare import Arm, spread
from ressmooth.phrases import duration, settings
from ressmooth.store import StudyRow, TrialRow

WIDTH = 110
SELECTION = {
    "paper": "Validation is the test set, as in the paper: figures that selected flatter.",
    "holdout": "A tenth of the training set selected; the test set, read at the end, did not.",
}


def comparison(study: StudyRow, arms: Sequence[Arm]) -> str:
    """Per arm the selected configuration and its accuracies over seeds."""
    selection = study.spec["settings"].get("selection", "paper")
    table = Table(title=f"{study.name}: accuracy in %, mean ± std over seeds")
    columns = ["arm", "configuration", "trials", "seeds", "max", "mean"]
    for column in columns + (["test"] if selection == "holdout" else []):
        table.add_column(column)
    best = max((arm.value for arm in arms), default=None)
    for arm in arms:
        cells = [
            arm.name,
            settings(arm.params),
            str(arm.trials),
            str(len(arm.max_acc)),
            spread(arm.max_acc),
            spread(arm.mean_acc),
        ]
        if selection == "holdout":
            cells.append(spread(arm.test_acc))
        table.add_row(*cells, style="bold" if arm.value == best else None)
    return render(table) + SELECTION[selection]


def overview(studies: Sequence[tuple[StudyRow, Sequence[TrialRow], Sequence[Arm]]]) -> str:
    """A line per study."""
    table = Table()
    for column in ("study", "dataset", "model", "runs", "best arm", "since", "held by"):
        table.add_column(column)
    for study, trials, arms in studies:
        best = max(arms, key=lambda arm: arm.value, default=None)
        common = study.spec["settings"]
        table.add_row(
            study.name,
            str(common.get("dataset", "digits")),
            str(common.get("model", "small")),
            _states(run.state for trial in trials for run in trial.runs),
            f"{best.name} {best.value:.2f} %" if best else "–",
            f"{study.created_at:%Y-%m-%d %H:%M}",
            study.held_by or "",
        )
    return render(table).rstrip()


def details(study: StudyRow, trials: Sequence[TrialRow], arms: Sequence[Arm]) -> str:
    """Every trial and run of a study, then the comparison."""
    table = Table(title=study.name)
    for column in ("arm", "configuration", "value", "run", "seed", "epochs", "state", "max"):
        table.add_column(column, overflow="fold")
    for column in ("mean", "time"):
        table.add_column(column)
    for trial in trials:
        head = [trial.arm, settings(trial.params), _percent(trial.value)]
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
        f"run {run.id} ({trial.arm}, seed {run.seed}): {_last_line(run.error)}"
        for trial in trials
        for run in trial.runs
        if run.error
    ]
    parts = [render(table).rstrip(), *errors, comparison(study, arms)]
    return "\n".join(parts)


def render(table: Table) -> str:
    console = Console(width=WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else f"{accuracy:.2f}"


def _states(states: Iterable[str]) -> str:
    counts = Counter(states)
    return ", ".join(f"{count} {state}" for state, count in counts.items()) or "none"


def _last_line(error: str) -> str:
    line = error.strip().splitlines()[-1]
    return line.encode("unicode_escape").decode()[:300]
