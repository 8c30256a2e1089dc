"""Measures of a classifier besides its loss: accuracy, likelihood, calibration and F1.

Written out here because loading torchmetrics takes longer than a short run.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ressmooth.config import METRIC

BINS = 15  # of the calibration error, equal in width


class Measures(NamedTuple):
    """What selects a configuration is one of these."""

    accuracy: float  # in %
    nll: float  # mean negative log-likelihood, in nats
    ece: float  # expected calibration error, in %
    macro_f1: float  # mean over classes, in %


def columns(measures: Measures) -> dict[str, float]:
    """Return the measures by column of an epoch."""
    return {METRIC[name].column: value for name, value in measures._asdict().items()}


def measure(logits: Tensor, labels: Tensor) -> Measures:
    """Return the measures of logits [N, M] and labels [N], with one transfer from the device."""
    logits = logits.float()
    confidence, predicted = logits.softmax(-1).max(-1)
    correct = predicted == labels
    values = (
        correct.double().sum(),
        F.cross_entropy(logits, labels).double(),
        100 * _calibration_error(confidence, correct),
        100 * _macro_f1(predicted, labels, logits.shape[-1]),
    )
    count, *others = torch.stack(values).tolist()
    return Measures(100 * count / len(labels), *others)  # a mean would round differently


def _calibration_error(confidence: Tensor, correct: Tensor) -> Tensor:
    """Return sum_b |accuracy - confidence| in bin b, weighted by the bin's share of samples."""
    bins = (confidence.nan_to_num() * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64, device=confidence.device)
    gaps.index_add_(0, bins, correct.double() - confidence.double())
    return gaps.abs().sum() / len(confidence)


def _macro_f1(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean of 2 TP / (2 TP + FP + FN) over the classes that occur."""
    hits = torch.bincount(labels[predicted == labels], minlength=classes).double()
    counts = torch.bincount(predicted, minlength=classes) + torch.bincount(
        labels, minlength=classes
    )
    occurs = counts > 0
    return (2 * hits / counts.clamp_min(1))[occurs].mean()
