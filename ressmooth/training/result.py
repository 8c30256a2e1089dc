"""What a run gives."""

from dataclasses import dataclass, field

from ressmooth.config import Epoch


@dataclass(frozen=True)
class Result:
    """A run's curve and its accuracies in %, which are None unless the run is complete."""

    curve: tuple[Epoch, ...]
    diverged_at: int | None  # the epoch whose loss was nan or inf
    threads: int
    device: str
    max_acc: float | None = None
    mean_acc: float | None = None  # over the last tenth of the epochs
    test_acc: float | None = None  # after the last epoch
    # the other metrics: max (of the best epoch), mean and test by name
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        return "completed" if self.diverged_at is None else f"diverged at epoch {self.diverged_at}"
