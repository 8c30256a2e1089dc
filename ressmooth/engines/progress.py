"""What a person sees while a study or a single run trains."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ressmooth.formatting import duration, last_line, printable, settings
from ressmooth.search.planner import Planner
from ressmooth.store import State

if TYPE_CHECKING:
    from ressmooth.config import Epoch
    from ressmooth.store import RunRow

QUIET_SECONDS = 30.0  # between two lines about the same worker where there is no terminal


@dataclass
class _Line:
    """What a worker is doing."""

    text: str = "idle"
    epoch: int = 0
    epochs: int = 1
    accuracy: float | None = None
    printed: float = 0.0


class View:
    def __init__(self, planner: Planner, workers: int, *, quiet: bool) -> None:
        self.planner, self.quiet = planner, quiet
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.lines = [_Line() for _ in range(workers)]
        self.began = time.monotonic()
        self.epochs_before = planner.progress().epochs_done
        self.live = Live(
            console=self.console, get_renderable=self.render, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        if self._is_live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live:
            self.live.stop()

    @property
    def _is_live(self) -> bool:
        return self.console.is_terminal and not self.quiet

    def started(self, worker: int, run: "RunRow") -> None:
        trial = self.planner.trials[run.trial_id]
        while worker >= len(self.lines):  # a cluster may grow
            self.lines.append(_Line())
        self.lines[worker] = _Line(
            " ".join(filter(None, [trial.arm, settings(trial.params), f"seed {run.seed}"])),
            run.last_epoch,
            run.config["epochs"],
            printed=time.monotonic(),
        )

    def epoch(self, worker: int, run: "RunRow", epoch: "Epoch", best: float) -> None:
        line = self.lines[worker]
        line.epoch, line.accuracy = epoch.epoch, best
        if not self._is_live and time.monotonic() - line.printed > QUIET_SECONDS:
            line.printed = time.monotonic()
            self.say(f"{line.text}: epoch {line.epoch}/{line.epochs}, best {best:.2f} %")

    def ended(self, worker: int, run: "RunRow") -> None:
        line = self.lines[worker]
        self.lines[worker] = _Line()
        progress = self.planner.progress()
        outcome = str(run.state)
        if run.state == State.FAILED:
            outcome = f"failed: {last_line(run.error)}"
        elif run.max_acc is not None:
            outcome += f", max {run.max_acc:.2f} %"
        if not self._is_live or run.state == State.FAILED:
            self.say(f"[{progress.runs_done}/{progress.runs_known}] {line.text}: {outcome}")

    def lost(self, worker: int, message: str) -> None:
        self.say(f"{self.lines[worker].text}: {message}")
        self.lines[worker] = _Line()

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(escape(printable(text)))

    def render(self) -> RenderableType:
        progress = self.planner.progress()
        running = sum(line.epoch for line in self.lines)
        done = progress.epochs_done + running
        head = Table.grid(padding=(0, 1), expand=True)
        for _ in range(3):
            head.add_column()
        head.columns[1].ratio = 1
        head.add_row(
            f"[bold]{self.planner.spec.name}[/] {progress.runs_done}/{progress.runs_known} runs",
            ProgressBar(total=max(1, progress.epochs_known), completed=done),
            self._eta(done, progress.epochs_known),
        )
        workers = Table(box=None, padding=(0, 1), header_style="dim")
        for name in ("", "run", "epoch", "best"):
            workers.add_column(name)
        for number, line in enumerate(self.lines):
            epoch = f"{line.epoch}/{line.epochs}" if line.text != "idle" else ""
            accuracy = f"{line.accuracy:.2f} %" if line.accuracy else ""
            workers.add_row(str(number + 1), line.text, epoch, accuracy)
        return Group(head, workers, self._best())

    def _best(self) -> RenderableType:
        best: dict[tuple[str, str], Any] = {}  # by arm and condition
        for trial in list(self.planner.trials.values()):
            key = trial.arm, str(trial.condition)
            searched = trial.confirms is None and trial.value is not None
            if searched and trial.value > best.get(key, (-1.0,))[0]:
                best[key] = (trial.value, trial.params)
        table = Table(box=None, padding=(0, 1), header_style="dim")
        for name in ("best so far", "", ""):
            table.add_column(name)
        for (arm, _), (value, params) in best.items():
            table.add_row(arm, f"{value:.2f} %", settings(params))
        return table if best else Text()

    def _eta(self, done: int, known: int) -> str:
        trained = done - self.epochs_before
        elapsed = time.monotonic() - self.began
        if trained <= 0 or done >= known:
            return f"{duration(elapsed)} elapsed"
        return f"{duration(elapsed / trained * (known - done))} left"


class EpochBar:
    def __init__(self, epochs: int) -> None:
        self.epochs, self.done = epochs, 0
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            speed_estimate_period=3600,
        )
        self.task = self.progress.add_task("", total=epochs, figures="preparing")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def start(self, done: int) -> None:
        self.done = done
        self.progress.reset(self.task, total=self.epochs, completed=done, figures="training")

    def advance(self, epoch: "Epoch") -> None:
        self.done = epoch.epoch
        figures = figures_of(epoch)
        self.progress.update(self.task, completed=epoch.epoch, figures=figures)
        if not self.console.is_terminal:
            left = (self.epochs - epoch.epoch) * epoch.seconds
            self.console.print(
                f"epoch {epoch.epoch}/{self.epochs}  {figures}  {epoch.seconds:.1f} s"
                f"  about {left:.0f} s left",
                highlight=False,
                soft_wrap=True,
            )


def figures_of(epoch: "Epoch") -> str:
    figures = f"train {epoch.train_loss:.4f} {epoch.train_acc:.2f} %"
    if epoch.val_loss is not None:
        figures += f"  val {epoch.val_loss:.4f} {epoch.val_acc:.2f} %"
    if epoch.scale:
        figures += f"  s {epoch.scale:.3f}"
    return figures
