"""Show the progress of a study or of a single run on standard error."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ressmooth.config import Epoch
from ressmooth.formatting import duration, last_line, printable, run_name, settings
from ressmooth.report.measure import MEASURES, Measure
from ressmooth.search.progress import Progress as StudyProgress
from ressmooth.spec import StudySpec
from ressmooth.store import RunRow, State, TrialRow

COLUMNS = (9, 8, 10, 12, 12, 7, 9, 13)  # widths
HEAD = (
    ("", "train", "train", "validation", "validation", "", "", ""),
    ("epoch", "loss", "accuracy", "loss", "accuracy", "scale", "time", "left"),
)
PRINT_SECONDS = 30.0  # between two lines about the same worker, without a terminal


def is_live(console: Console) -> bool:
    """Tell whether lines can be drawn again. A dumb terminal cannot move its cursor."""
    return console.is_terminal and not console.is_dumb_terminal


def outcome(run: RunRow, measure: Measure) -> str:
    """Return a run's state with its best result, or why it failed."""
    if run.state == State.FAILED:
        return f"failed: {last_line(run.error)}"
    if run.state == State.WAITING:
        return f"set down after epoch {run.last_epoch}"
    best = run.result(measure.name, "max")
    return str(run.state) + (f", {measure.word('max')} {measure.amount(best)}" if best else "")


class Source(Protocol):
    """What a view needs to know of a study. A planner knows it."""

    @property
    def spec(self) -> StudySpec: ...

    @property
    def trials(self) -> dict[int, TrialRow]: ...  # at least the unfinished ones

    def progress(self) -> StudyProgress: ...

    def best(self) -> list[TrialRow]: ...  # so far, by arm and condition


@dataclass
class WorkerStatus:
    """The run that a worker executes."""

    text: str = "idle"
    run: RunRow | None = None
    source: Source | None = None
    epoch: int = 0
    epochs: int = 0
    best: float | None = None  # of the study's metric
    printed_at: float = 0.0  # monotonic seconds

    @property
    def is_busy(self) -> bool:
        return self.epochs > 0

    @property
    def measure(self) -> Measure:
        return MEASURES[self.source.spec.metric if self.source else "accuracy"]


class EventLog:
    """Prints a line per event of the runs that an engine executes."""

    is_live = False

    def __init__(self, source_of: Callable[[RunRow], Source], workers: int, *, quiet: bool):
        self.source_of, self.quiet = source_of, quiet
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.workers = [WorkerStatus() for _ in range(workers)]

    def started(self, worker: int, run: RunRow) -> None:
        source = self.source_of(run)
        while worker >= len(self.workers):  # a cluster may grow
            self.workers.append(WorkerStatus())
        self.workers[worker] = WorkerStatus(
            self.name(source, run),
            run,
            source,
            run.last_epoch,
            run.config["epochs"],
            printed_at=time.monotonic(),
        )

    def name(self, source: Source, run: RunRow) -> str:
        """Return how lines name a run."""
        trial = source.trials[run.trial_id]
        return run_name(trial.arm, trial.params, run.seed)

    def epoch(self, worker: int, epoch: Epoch, best: float | None) -> None:
        status = self.workers[worker]
        status.epoch, status.best = epoch.epoch, best
        if not self.is_live and time.monotonic() - status.printed_at > PRINT_SECONDS:
            status.printed_at = time.monotonic()
            shown = "" if best is None else f", best {status.measure.amount(best)}"
            self.print(f"{status.text}: epoch {status.epoch}/{status.epochs}{shown}")

    def ended(self, worker: int, run: RunRow) -> None:
        status = self._clear(worker)
        if status.source and (not self.is_live or run.state == State.FAILED):
            progress = status.source.progress()
            done = f"[{progress.runs_done}/{progress.runs_known}]"
            self.print(f"{done} {status.text}: {outcome(run, status.measure)}")

    def lost(self, worker: int, message: str) -> None:
        """Show that a worker died, with a message about what happens to its run."""
        self.print(f"{self._clear(worker).text}: {message}")

    def _clear(self, worker: int) -> WorkerStatus:
        """Show a worker as idle. Return what it did before."""
        status = self.workers[worker]
        self.workers[worker] = WorkerStatus()
        return status

    def print(self, text: str) -> None:
        if not self.quiet:
            self.console.print(escape(printable(text)))

    def notify(self, text: str) -> None:
        """Show what a signal does, also if the view is quiet."""
        self.console.print(text, style="bold")


class ServiceLog(EventLog):
    """Prints the events of many studies, with their names."""

    def name(self, source: Source, run: RunRow) -> str:
        return f"{source.spec.name}: {super().name(source, run)}"


class View(EventLog):
    """Shows a study: live on a terminal, and otherwise as a line per event."""

    def __init__(self, source: Source, workers: int, *, quiet: bool) -> None:
        super().__init__(lambda run: source, workers, quiet=quiet)
        self.source = source
        self.measure = MEASURES[source.spec.metric]
        self.is_live = is_live(self.console) and not quiet
        self.began = time.monotonic()
        self.trained, self.train_seconds = 0, 0.0  # epochs of this launch, and their time
        self.live = Live(
            console=self.console, get_renderable=self.render, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        if self.is_live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_live:
            self.live.stop()

    def epoch(self, worker: int, epoch: Epoch, best: float | None) -> None:
        self.trained, self.train_seconds = self.trained + 1, self.train_seconds + epoch.seconds
        super().epoch(worker, epoch, best)

    def render(self) -> RenderableType:
        return Group(self._header(), self._worker_table(), self._best_table())

    def _header(self) -> Table:
        progress = self.source.progress()
        done = progress.epochs_done + sum(status.epoch for status in self.workers)
        header = Table.grid("", Column(ratio=1), "", padding=(0, 1), expand=True)
        header.add_row(
            f"[bold]{self.source.spec.name}[/] {progress.runs_done}/{progress.runs_known} runs",
            ProgressBar(total=max(1, progress.epochs_known), completed=done),
            self._time_left(done, progress.epochs_known),
        )
        return header

    def _time_left(self, done: int, known: int) -> str:
        """Return the time left by the epochs so far, or the elapsed time before the first."""
        if not self.trained or done >= known:
            return f"{duration(time.monotonic() - self.began)} elapsed"
        busy = sum(status.is_busy for status in self.workers)
        seconds = self.train_seconds / self.trained * (known - done) / max(1, busy)
        return f"{duration(seconds)} left"

    def _worker_table(self) -> Table:
        table = _table("", "run", "epoch", "best")
        for number, status in enumerate(self.workers, start=1):
            epoch = f"{status.epoch}/{status.epochs}" if status.is_busy else ""
            table.add_row(str(number), status.text, epoch, self.measure.amount(status.best))
        return table

    def _best_table(self) -> RenderableType:
        best = self.source.best()
        table = _table("best so far", "", "")
        for trial in best:
            table.add_row(trial.arm, self.measure.amount(trial.value), settings(trial.params))
        return table if best else Text()


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, padding=(0, 1), header_style="dim")


class EpochBar:
    """Shows a single run: a line per epoch, and a progress bar on a terminal."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.done = epochs, 0
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.progress = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.console,
            disable=not is_live(self.console),
            speed_estimate_period=3600,
        )
        self.task = self.progress.add_task("", total=epochs)

    def start(self, done: int) -> None:
        """Begin training after `done` epochs."""
        self.done = done
        self.progress.reset(self.task, total=self.epochs, completed=done)
        for head in HEAD:
            self.console.print(_line(*head))

    def advance(self, epoch: Epoch) -> None:
        self.done = epoch.epoch
        self.progress.update(self.task, completed=epoch.epoch)
        cells = (
            f"{epoch.epoch}/{self.epochs}",
            f"{epoch.train_loss:.4f}",
            f"{epoch.train_acc:.2f} %",
            "" if epoch.val_loss is None else f"{epoch.val_loss:.4f}",
            "" if epoch.val_acc is None else f"{epoch.val_acc:.2f} %",
            f"{epoch.scale:.3f}",
            f"{epoch.seconds:.1f} s",
            duration((self.epochs - epoch.epoch) * epoch.seconds),
        )
        self.console.print(_line(*cells))


def _line(*cells: str) -> str:
    """Return the columns of an epoch, in at most 80 characters."""
    columns = zip(cells, COLUMNS, strict=True)
    return "".join(f"{cell:>{width}}" for cell, width in columns).rstrip()
