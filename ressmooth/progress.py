"""What a person sees while one run trains: a bar on a terminal, a line per epoch elsewhere."""

from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from ressmooth.curves import Epoch


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
