"""Measure a few steps of a run, to tell how long its epochs take."""

import time
from itertools import chain, count
from pathlib import Path

import torch

from ressmooth.config import RunConfig
from ressmooth.plugins import Plugins
from ressmooth.training.datasets import load_for
from ressmooth.training.trainer import EVALUATION_BATCH, Trainer

WARM_UP, STEPS = 1, 10
ENOUGH = 3.0  # seconds after which no further step is measured


def epoch_seconds(config: RunConfig, data: Path, plugins: Plugins) -> tuple[float, float]:
    """Return the seconds of training an epoch, and of evaluating it. Save nothing."""
    trainer = Trainer(config, data, plugins, load_for(config, data, plugins, keep=False))
    return len(trainer.batches) * _step_seconds(trainer), _evaluation_seconds(trainer)


def _step_seconds(trainer: Trainer) -> float:
    trainer.model.train()
    batches = chain.from_iterable(trainer.batches.epoch(number) for number in count(1))
    for _ in range(WARM_UP):
        images, labels = next(batches)
        trainer._step(images, labels, 0.5)
    started, steps = _now(), 0
    while steps < STEPS and (steps == 0 or _now() - started < ENOUGH):
        images, labels = next(batches)
        trainer._step(images, labels, 0.5)
        steps += 1
    return (_now() - started) / steps


def _evaluation_seconds(trainer: Trainer) -> float:
    images = trainer.validation
    part = images[torch.arange(min(len(images), EVALUATION_BATCH))]
    started = _now()
    trainer._evaluate(part)
    return (_now() - started) * len(images) / len(part)


def _now() -> float:
    """Return the time when all that was asked of a GPU is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
