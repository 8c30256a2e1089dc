"""Train one network with one configuration and one seed.

`train` communicates only through `report`, which it calls after every epoch and which may raise to
stop. A state saved there resumes bit for bit on a CPU with the same number of threads: batches and
augmentation are drawn from (seed, epoch), so there is no generator to save.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, replace
from functools import reduce
from operator import add
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ressmooth.config import METRIC, Epoch, RunConfig, config_differences, values_of
from ressmooth.errors import CheckpointError
from ressmooth.plugins import NO_PLUGINS, Plugins
from ressmooth.smoothing import SmoothingLoss
from ressmooth.training import device as devices
from ressmooth.training import losses, models
from ressmooth.training.checkpoint import TrainerState
from ressmooth.training.contracts import check_kind, check_tensor
from ressmooth.training.data import Batches, Dataset, Normaliser, seed_python, split, stream
from ressmooth.training.datasets import load_for
from ressmooth.training.gpu import Monitor, gpu_uuid
from ressmooth.training.measures import Measures, columns, measure
from ressmooth.training.result import Result
from ressmooth.training.streaming import StreamBatches, Streamed, StreamNormaliser

EVALUATION_BATCH = 1000  # images whose losses are averaged at once: the rounding depends on it
# Images per forward pass of an evaluation on a CPU: activations that stay small are not paged in
# anew each time. Only for networks whose logits then have the same bits; DenseNet's have not.
CPU_PASS = 125
SAME_BITS = ("small", "resnet20", "resnet56")


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
    def __init__(
        self,
        config: RunConfig,
        data: Path,
        plugins: Plugins = NO_PLUGINS,
        dataset: Dataset | None = None,
    ) -> None:
        """Prepare a run on `dataset`, or on the one that is in `data` or downloaded to it."""
        self.config, self.plugins = config, plugins
        self.device = devices.find_device(config.device)
        devices.set_up(self.device, config)
        is_split = self.device.type == "cpu" and config.model in SAME_BITS
        self.pass_size = CPU_PASS if is_split else EVALUATION_BATCH
        self.gpu = Monitor(gpu_uuid(self.device))
        if config.threads:
            torch.set_num_threads(config.threads)
        dataset = dataset or load_for(config, data, plugins)
        self.data_sha256 = dataset.sha256
        self.image = dataset.train.image  # [H, W, C]
        self._split(dataset)
        self._build_model(dataset)
        self.loss = losses.build_loss(config, self.model, plugins)
        self.validation_loss = losses.build_validation_loss(config, self.loss)
        if config.method not in losses.METHODS:
            self._check_loss(dataset.num_classes)
            self.loss.to(self.device)
        self.annealing = losses.annealing(config) if config.method == "smoothing" else None
        self.optimizer = losses.build_optimizer(config, self.model, plugins, self.loss)
        check_kind(f"optimizer {config.optimizer!r}", self.optimizer, Optimizer)
        # fp16 loses small gradients, so the loss is scaled up; steps that overflow are skipped
        self.scaler = torch.GradScaler(self.device.type, enabled=config.precision == "fp16")
        self.curve: list[Epoch] = []
        self.best_weights: dict[str, Tensor] = {}
        self.diverged_at: int | None = None

    def _split(self, dataset: Dataset) -> None:
        c = self.config
        splits = split(dataset, fraction=c.fraction, selection=c.selection, seed=c.seed)
        train = splits.train
        self.validation, self.test = splits.validation.to(self.device), splits.test
        self.batching: Any = {"crop_padding": c.crop_padding, "drop_last": c.drop_last}
        self.normalise: Any
        self.batches: Any
        if isinstance(train, Streamed):
            self.normalise = StreamNormaliser(train, self.device, c.padding)
            self.batches = self._stream(train, c.batch_size, c.augmentation)
        else:
            self.normalise = Normaliser(train, c.padding).to(self.device)
            settings = self.normalise, c.batch_size, c.augmentation, c.seed, self.device
            self.batches = Batches(train, *settings, **self.batching)

    def _stream(self, images: Streamed, batch_size: int, augmentation: str) -> StreamBatches:
        c = self.config
        settings = self.normalise, batch_size, augmentation, c.seed, c.loader_workers, self.device
        return StreamBatches(images, *settings, **self.batching)

    def _in_order(self, images: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalised batches for an evaluation."""
        if isinstance(images, Streamed):
            yield from self._stream(images, EVALUATION_BATCH, "none").in_order()
            return
        parts = (torch.split(t, EVALUATION_BATCH) for t in (images.pixels, images.labels))
        for pixels, labels in zip(*parts, strict=True):
            yield self.normalise(pixels), labels

    def _build_model(self, dataset: Dataset) -> None:
        c = self.config
        _seed(c.seed, "weights")
        shape = {"num_classes": dataset.num_classes, "in_channels": dataset.train.image[-1]}
        if self.plugins.get("model", c.model):
            model = self.plugins.call("model", c.model, c.plugin_settings, **shape)
        else:
            model = models.build(c.model, **shape, weights=c.weights)
        check_kind(f"model {c.model!r}", model, nn.Module)
        if c.model not in models.MODELS:
            self._check_logits(model.eval(), dataset.num_classes)
        self.layout = torch.channels_last if self.config.channels_last else torch.contiguous_format
        self.model = model.to(self.device).to(memory_format=self.layout)
        self.forward = torch.compile(self.model) if self.config.compile else self.model

    @torch.no_grad()
    def _check_logits(self, model: nn.Module, classes: int) -> None:
        """Raise a ConfigError if a network returns no logits. Creates weights of lazy layers."""
        height, width, channels = self.image
        p = 2 * self.config.padding
        logits = model(torch.zeros(2, channels, height + p, width + p))
        check_tensor(f"model {self.config.model!r}", logits, (2, classes))

    def check_training(self, classes: int) -> None:
        """Raise a ConfigError if the network returns no logits while it trains, on the CPU.

        It changes what layers count, so the run must not be trained afterwards.
        """
        if self.config.model not in models.MODELS:
            self._check_logits(self.model.train(), classes)

    def _check_loss(self, classes: int) -> None:
        """Raise a ConfigError if a method returns no loss. It learns nothing from this."""
        what = f"method {self.config.method!r}"
        check_kind(what, self.loss, nn.Module)
        logits, labels = torch.zeros(2, classes), torch.zeros(2, dtype=torch.int64)
        check_tensor(what, deepcopy(self.loss)(logits, labels, 0.5), ())

    def train_epoch(self) -> Epoch | None:
        """Train and return the next epoch, or None if the run is finished or has diverged."""
        started = time.perf_counter()
        with self.gpu.measure() as usage:
            epoch = self._next_epoch()
        if epoch is None:
            return None
        self.curve.append(replace(epoch, seconds=time.perf_counter() - started, **usage))
        return self.curve[-1]

    def _next_epoch(self) -> Epoch | None:
        number = len(self.curve) + 1
        if self.diverged_at is not None or number > self.config.epochs:
            return None
        lr = losses.learning_rate(self.config, number)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        _seed(self.config.seed, "epoch", number)
        train_loss, train_acc, diffusivity, scale = self._train(number)
        validated: dict[str, float | None] = {"val_loss": None, "val_acc": None}
        if self.config.evaluates(number):
            val_loss, found = self._evaluate(self.validation)
            validated = {"val_loss": val_loss, **columns(found)}
        measured = (train_loss, train_acc, *validated.values())
        if not all(value is None or math.isfinite(value) for value in measured):
            self.diverged_at = number
            return None
        epoch = Epoch(
            number,
            train_loss,
            train_acc,
            **validated,
            lr=lr,
            scale=scale,
            diffusivity=diffusivity,
            seconds=0.0,
        )
        if self._is_best(epoch):
            self.best_weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        return epoch

    def _is_best(self, epoch: Epoch) -> bool:
        """Tell whether the metric of an epoch is better than that of all before."""
        metric = METRIC[self.config.metric]
        now = values_of([epoch], self.config.metric)
        before = [] if self.best is None else [self.best]
        return bool(now) and now != before and metric.best([*now, *before]) == now[0]

    def _train(self, number: int) -> tuple[float, float, float, float]:
        """Train on all batches. Return mean loss, accuracy in %, mean diffusivity, mean scale."""
        self.model.train()
        self.loss.train()
        steps, epochs = len(self.batches), self.config.epochs
        progress = [(steps * (number - 1) + step) / (steps * epochs) for step in range(steps)]
        # These stay on the device: reading them would wait for it, adding them up takes kernels.
        loss_parts, hits, kappas = [], [], []
        is_ours = self.config.model in models.MODELS
        with models.count_at_end(self.model, steps) if is_ours else nullcontext():
            for now, (images, labels) in zip(progress, self.batches.epoch(number), strict=True):
                logits, loss = self._step(images, labels, now)
                loss_parts.append(loss)
                hits.append((logits.argmax(-1) == labels).sum())
                if isinstance(self.loss, SmoothingLoss) and self.loss.diffusivity is not None:
                    kappas.append(self.loss.diffusivity.mean())
        series = [torch.stack(each).double() for each in (loss_parts, hits, kappas) if each]
        numbers = torch.cat(series).tolist()
        parts = numbers[:steps], numbers[steps : 2 * steps], numbers[2 * steps :]
        # not sum(), which rounds differently from Python 3.12 on
        loss_sum, correct, kappa = (reduce(add, part, 0.0) for part in parts)
        scale = fmean(map(self.annealing, progress)) if self.annealing else 0.0
        accuracy = 100 * correct / self.batches.samples
        return loss_sum / steps, accuracy, kappa / steps, scale

    def _step(self, images: Tensor, labels: Tensor, progress: float) -> tuple[Tensor, Tensor]:
        images = images.contiguous(memory_format=self.layout)
        with self._autocast():
            logits = self.forward(images)
        loss = self.loss(logits, labels, progress)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return logits.detach(), loss.detach()

    @torch.inference_mode()
    def _evaluate(self, images: Any) -> tuple[float, Measures]:
        """Return the mean loss, and the other measures."""
        self.model.eval()
        self.loss.eval()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        outputs, targets = [], []
        for pixels, labels in self._in_order(images):
            logits = self._logits(pixels)
            loss_sum += self.validation_loss(logits, labels) * len(labels)
            outputs.append(logits)
            targets.append(labels)
        return loss_sum.item() / len(images), measure(torch.cat(outputs), torch.cat(targets))

    def _logits(self, images: Tensor) -> Tensor:
        """Return the logits of images, computed in passes of about equal size."""
        passes = images.tensor_split(-(-len(images) // self.pass_size))
        with self._autocast():
            parts = [self.model(each.contiguous(memory_format=self.layout)) for each in passes]
        return torch.cat(parts)

    def _autocast(self) -> torch.autocast:
        dtype = torch.float16 if self.config.precision == "fp16" else torch.bfloat16
        return torch.autocast(
            self.device.type, dtype, enabled=self.config.precision in ("bf16", "fp16")
        )

    def _values(self, metric: str) -> list[float]:
        return values_of(self.curve, metric)

    @property
    def best(self) -> float | None:
        """Return the best value of the metric so far, or None before the first evaluation."""
        return self.best_until(len(self.curve))

    def best_until(self, epoch: int) -> float | None:
        """Return the best value of the metric up to an epoch, or None if there is none."""
        metric = self.config.metric
        return METRIC[metric].best(values_of(self.curve[:epoch], metric))

    def state(self) -> TrainerState:
        """Return everything that `restore` needs to resume after the last epoch."""
        return {
            "config": self.config.model_dump(),
            "threads": torch.get_num_threads(),
            "model": self.model.state_dict(),
            "loss": self.loss.state_dict(),  # empty unless a plug-in's has a state
            "best_weights": self.best_weights,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),  # empty unless the precision is fp16
            "curve": [asdict(epoch) for epoch in self.curve],
        }

    def restore(self, state: TrainerState) -> None:
        """Resume from a state of the same configuration."""
        try:
            if differing := "; ".join(config_differences(state["config"], self.config)):
                raise CheckpointError(f"The checkpoint belongs to another run: {differing}.")
            self.model.load_state_dict(state["model"])
            self.loss.load_state_dict(state.get("loss", {}))
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state.get("scaler", {}))
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
        tested = None  # validation used the test set
        if self.config.selection == "holdout":
            tested = self._evaluate(self.test.to(self.device))[1]
        metrics = {name: self._statistics(name, tested) for name in METRIC}
        accuracy = metrics.pop("accuracy")
        return replace(
            result,
            max_acc=accuracy["max"],
            mean_acc=accuracy["mean"],
            test_acc=accuracy["test"],
            metrics={name: found for name, found in metrics.items() if found},
        )

    def _statistics(self, metric: str, tested: Measures | None) -> dict[str, float]:
        """Return a metric of the best epoch, its mean over the last tenth, and on the test set."""
        values = self._values(metric)
        best = METRIC[metric].best(values)
        if best is None:  # the run was begun by a version that did not measure it
            return {}
        test = values[-1] if tested is None else getattr(tested, metric)
        return {"max": best, "mean": fmean(values[-self.config.window :]), "test": test}


def _seed(seed: int, *purpose: object) -> None:
    """Seed all generators that a network or a plug-in may draw from."""
    number = stream(seed, *purpose).initial_seed()
    torch.manual_seed(number)
    seed_python(number)
