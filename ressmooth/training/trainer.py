"""Train one network with one configuration and one seed.

`train` communicates only through `report`, which it calls after every epoch and which may raise to
stop. A state saved there resumes bit for bit on a CPU with the same number of threads: batches and
augmentation are drawn from (seed, epoch), so there is no generator to save.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ressmooth.config import Epoch, RunConfig
from ressmooth.errors import CheckpointError, ConfigError
from ressmooth.smoothing import SmoothingLoss
from ressmooth.training import losses, models
from ressmooth.training.checkpoint import TrainerState
from ressmooth.training.data import Batches, Dataset, Images, Normaliser, load, split, stream

EVALUATION_BATCH = 1000
MACHINE = {"device", "threads"}  # may change on resuming, though the bits may then differ


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

    @property
    def outcome(self) -> str:
        return "completed" if self.diverged_at is None else f"diverged at epoch {self.diverged_at}"


Report = Callable[[Epoch, Callable[[], TrainerState]], None]


def train(
    config: RunConfig, report: Report, *, data: Path, state: TrainerState | None = None
) -> Result:
    """Train a run, from `state` if given. Call `report(epoch, get_state)` after each epoch."""
    trainer = Trainer(config, data)
    if state is not None:
        trainer.restore(state)
    while (epoch := trainer.train_epoch()) is not None:
        report(epoch, trainer.state)
    return trainer.result()


class Trainer:
    def __init__(self, config: RunConfig, data: Path) -> None:
        self.config = config
        self.device = _device(config.device)
        if config.threads:
            torch.set_num_threads(config.threads)
        dataset = load(config.dataset, data)
        self._split(dataset)
        self._build_model(dataset)
        self.loss = losses.build_loss(config, self.model)
        self.validation_loss = losses.build_validation_loss(config)
        self.annealing = losses.annealing(config) if config.method == "smoothing" else None
        self.optimizer = losses.build_optimizer(config, self.model)
        self.curve: list[Epoch] = []
        self.best_weights: dict[str, Tensor] = {}
        self.diverged_at: int | None = None

    def _split(self, dataset: Dataset) -> None:
        c = self.config
        splits = split(dataset, fraction=c.fraction, selection=c.selection, seed=c.seed)
        train = splits.train.to(self.device)
        self.validation, self.test = splits.validation.to(self.device), splits.test
        self.normalise = Normaliser(train)
        self.batches = Batches(train, self.normalise, c.batch_size, c.augmentation, c.seed)

    def _build_model(self, dataset: Dataset) -> None:
        torch.manual_seed(stream(self.config.seed, "weights").initial_seed())
        classes, channels = dataset.num_classes, dataset.train.pixels.shape[-1]
        model = models.build(self.config.model, num_classes=classes, in_channels=channels)
        self.layout = torch.channels_last if self.config.channels_last else torch.contiguous_format
        self.model = model.to(self.device).to(memory_format=self.layout)
        self.forward = torch.compile(self.model) if self.config.compile else self.model

    def train_epoch(self) -> Epoch | None:
        """Train and return the next epoch, or None if the run is finished or has diverged."""
        number = len(self.curve) + 1
        if self.diverged_at is not None or number > self.config.epochs:
            return None
        started = time.perf_counter()
        lr = losses.learning_rate(self.config, number)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        torch.manual_seed(stream(self.config.seed, "epoch", number).initial_seed())
        train_loss, train_acc, diffusivity, scale = self._train(number)
        val_loss = val_acc = None
        if self.config.evaluates(number):
            val_loss, val_acc = self._evaluate(self.validation)
        measured = (train_loss, train_acc, val_loss, val_acc)
        if not all(value is None or math.isfinite(value) for value in measured):
            self.diverged_at = number
            return None
        if val_acc is not None and val_acc > max(self._accuracies(), default=-1.0):
            self.best_weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        seconds = time.perf_counter() - started
        self.curve.append(Epoch(number, *measured, lr, scale, diffusivity, seconds))
        return self.curve[-1]

    def _train(self, number: int) -> tuple[float, float, float, float]:
        """Train on all batches. Return mean loss, accuracy in %, mean diffusivity, mean scale."""
        self.model.train()
        steps, epochs = len(self.batches), self.config.epochs
        progress = [(steps * (number - 1) + step) / (steps * epochs) for step in range(steps)]
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)  # loss, correct, kappa
        for now, (images, labels) in zip(progress, self.batches.epoch(number), strict=True):
            logits, loss = self._step(images, labels, now)
            # sums stay on the device, because reading them would wait for it at every step
            sums[0] += loss
            sums[1] += (logits.argmax(-1) == labels).sum()
            if isinstance(self.loss, SmoothingLoss) and self.loss.diffusivity is not None:
                sums[2] += self.loss.diffusivity.mean()
        loss_sum, correct, kappa = sums.tolist()
        scale = fmean(map(self.annealing, progress)) if self.annealing else 0.0
        samples = steps * self.batches.batch_size
        return loss_sum / steps, 100 * correct / samples, kappa / steps, scale

    def _step(self, images: Tensor, labels: Tensor, progress: float) -> tuple[Tensor, Tensor]:
        images = images.contiguous(memory_format=self.layout)
        with self._autocast():
            logits = self.forward(images)
        loss = self.loss(logits, labels, progress)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return logits.detach(), loss.detach()

    @torch.inference_mode()
    def _evaluate(self, images: Images) -> tuple[float, float]:
        """Return the mean loss, and the accuracy in %."""
        self.model.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        parts = (torch.split(t, EVALUATION_BATCH) for t in (images.pixels, images.labels))
        for pixels, labels in zip(*parts, strict=True):
            with self._autocast():
                logits = self.model(self.normalise(pixels).contiguous(memory_format=self.layout))
            sums[0] += self.validation_loss(logits, labels) * len(labels)
            sums[1] += (logits.argmax(-1) == labels).sum()
        loss_sum, correct = sums.tolist()
        return loss_sum / len(images), 100 * correct / len(images)

    def _autocast(self) -> torch.autocast:
        enabled = self.config.precision == "bf16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    def _accuracies(self) -> list[float]:
        return [epoch.val_acc for epoch in self.curve if epoch.val_acc is not None]

    def state(self) -> TrainerState:
        """Return everything that `restore` needs to resume after the last epoch."""
        return {
            "config": self.config.model_dump(),
            "threads": torch.get_num_threads(),
            "model": self.model.state_dict(),
            "best_weights": self.best_weights,
            "optimizer": self.optimizer.state_dict(),
            "curve": [asdict(epoch) for epoch in self.curve],
        }

    def restore(self, state: TrainerState) -> None:
        """Resume from a state of the same configuration."""
        try:
            if differing := "; ".join(config_differences(state["config"], self.config)):
                raise CheckpointError(f"The checkpoint belongs to another run: {differing}.")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.best_weights = {k: v.to(self.device) for k, v in state["best_weights"].items()}
            self.curve = [Epoch(**row) for row in state["curve"]]
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = str(error).partition("\n")[0]
            raise CheckpointError(f"The checkpoint does not fit this run: {reason}") from error

    def result(self) -> Result:
        machine = torch.get_num_threads(), str(self.device)
        result = Result(tuple(self.curve), self.diverged_at, *machine)
        if self.diverged_at is not None or len(self.curve) < self.config.epochs:
            return result
        accuracies = self._accuracies()
        mean_acc = fmean(accuracies[-self.config.window :])
        if self.config.selection == "paper":
            test_acc = accuracies[-1]  # validation used the test set
        else:
            test_acc = self._evaluate(self.test.to(self.device))[1]
        return replace(result, max_acc=max(accuracies), mean_acc=mean_acc, test_acc=test_acc)


def config_differences(stored: dict[str, Any], config: RunConfig) -> list[str]:
    """Return how a stored configuration differs from `config`, apart from the machine."""
    now = config.model_dump()
    return [
        f"{key} is {stored.get(key)!r}, not {now.get(key)!r}"
        for key in sorted((stored.keys() | now.keys()) - MACHINE)
        if stored.get(key) != now.get(key)
    ]


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = 'cuda': torch sees no GPU here; use 'auto' or 'cpu'")
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(automatic if name == "auto" else name)
