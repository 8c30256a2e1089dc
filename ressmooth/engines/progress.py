"""Show the progress of a study or of a single run on standard error."""

import time
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ressmooth.config import Epoch
from ressmooth.formatting import duration, last_line, printable, run_name, settings
from ressmooth.search.planner import Planner
from ressmooth.store import RunRow, State, TrialRow

PRINT_SECONDS = 30.0  # between two lines about the same worker, without a terminal


@dataclass
class WorkerStatus:
    """The run that a worker executes, as one row of the view."""

    text: str = "idle"
    epoch: int = 0
    epochs: int = 1
    best: float | None = None  # accuracy in %
    printed_at: float = 0.0  # monotonic seconds


class View:
    """Shows a study: live on a terminal, and otherwise as a line per event."""

    def __init__(self, planner: Planner, workers: int, *, quiet: bool) -> None:
        self.planner, self.quiet = planner, quiet
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.is_live = self.console.is_terminal and not quiet
        self.workers = [WorkerStatus() for _ in range(workers)]
        self.began = time.monotonic()
        self.epochs_before = planner.progress().epochs_done
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

    def started(self, worker: int, run: RunRow) -> None:
        trial = self.planner.trials[run.trial_id]
        while worker >= len(self.workers):  # a cluster may grow
            self.workers.append(WorkerStatus())
        self.workers[worker] = WorkerStatus(
            run_name(trial.arm, trial.params, run.seed),
            run.last_epoch,
            run.config["epochs"],
            printed_at=time.monotonic(),
        )

    def epoch(self, worker: int, epoch: Epoch, best: float) -> None:
        status = self.workers[worker]
        status.epoch, status.best = epoch.epoch, best
        if not self.is_live and time.monotonic() - status.printed_at > PRINT_SECONDS:
            status.printed_at = time.monotonic()
            self.print(f"{status.text}: epoch {status.epoch}/{status.epochs}, best {best:.2f} %")

    def ended(self, worker: int, run: RunRow) -> None:
        text = self._clear(worker)
        outcome = str(run.state)
        if run.state == State.FAILED:
            outcome = f"failed: {last_line(run.error)}"
        elif run.max_acc is not None:
            outcome += f", max {run.max_acc:.2f} %"
        if not self.is_live or run.state == State.FAILED:
            progress = self.planner.progress()
            self.print(f"[{progress.runs_done}/{progress.runs_known}] {text}: {outcome}")

    def lost(self, worker: int, message: str) -> None:
        """Show that a worker died, with a message about what happens to its run."""
        self.print(f"{self._clear(worker)}: {message}")

    def _clear(self, worker: int) -> str:
        """Show a worker as idle. Return the text of the run that it executed."""
        text = self.workers[worker].text
        self.workers[worker] = WorkerStatus()
        return text

    def print(self, text: str) -> None:
        if not self.quiet:
            self.console.print(escape(printable(text)))

    def render(self) -> RenderableType:
        return Group(self._header(), self._worker_table(), self._best_table())

    def _header(self) -> Table:
        progress = self.planner.progress()
        done = progress.epochs_done + sum(status.epoch for status in self.workers)
        header = Table.grid("", Column(ratio=1), "", padding=(0, 1), expand=True)
        header.add_row(
            f"[bold]{self.planner.spec.name}[/] {progress.runs_done}/{progress.runs_known} runs",
            ProgressBar(total=max(1, progress.epochs_known), completed=done),
            self._time_left(done, progress.epochs_known),
        )
        return header

    def _time_left(self, done: int, known: int) -> str:
        """Return the estimated time left, or the elapsed time if there is no estimate."""
        trained = done - self.epochs_before
        elapsed = time.monotonic() - self.began
        if trained <= 0 or done >= known:
            return f"{duration(elapsed)} elapsed"
        return f"{duration(elapsed / trained * (known - done))} left"

    def _worker_table(self) -> Table:
        table = _table("", "run", "epoch", "best")
        for number, status in enumerate(self.workers, start=1):
            epoch = f"{status.epoch}/{status.epochs}" if status.text != "idle" else ""
            best = f"{status.best:.2f} %" if status.best else ""
            table.add_row(str(number), status.text, epoch, best)
        return table

    def _best_table(self) -> RenderableType:
        best: dict[tuple[str, str], TrialRow] = {}  # by arm and condition
        for trial in list(self.planner.trials.values()):
            if trial.confirms is None and trial.value is not None:
                key = trial.arm, str(trial.condition)
                best[key] = max(best.get(key, trial), trial, key=lambda t: t.value or 0.0)
        table = _table("best so far", "", "")
        for trial in best.values():
            table.add_row(trial.arm, f"{trial.value:.2f} %", settings(trial.params))
        return table if best else Text()


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, padding=(0, 1), header_style="dim")


class EpochBar:
    """Shows a single run: a progress bar on a terminal, and otherwise a line per epoch."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.done = epochs, 0
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[metrics]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=3600,
        )
        self.task = self.progress.add_task("", total=epochs, metrics="preparing")

    def start(self, done: int) -> None:
        """Begin training after `done` epochs."""
        self.done = done
        self.progress.reset(self.task, total=self.epochs, completed=done, metrics="training")

    def advance(self, epoch: Epoch) -> None:
        self.done = epoch.epoch
        metrics = _format_metrics(epoch)
        self.progress.update(self.task, completed=epoch.epoch, metrics=metrics)
        if not self.console.is_terminal:
            left = (self.epochs - epoch.epoch) * epoch.seconds
            self.console.print(
                f"epoch {epoch.epoch}/{self.epochs}  {metrics}  {epoch.seconds:.1f} s"
                f"  about {left:.0f} s left",
                highlight=False,
                soft_wrap=True,
            )


def _format_metrics(epoch: Epoch) -> str:
    text = f"train {epoch.train_loss:.4f} {epoch.train_acc:.2f} %"
    if epoch.val_loss is not None:
        text += f"  val {epoch.val_loss:.4f} {epoch.val_acc:.2f} %"
    if epoch.scale:
        text += f"  s {epoch.scale:.3f}"
    return text
