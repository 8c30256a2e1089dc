import math

import pytest
import torch
from sklearn.metrics import f1_score

from ressmooth.training.measures import BINS, measure


def literal_calibration_error(probabilities, labels):
    """Equal bins of the confidence, one after the other."""
    error = 0.0
    confidence, predicted = probabilities.double().max(-1)
    for number in range(BINS):
        inside = (confidence >= number / BINS) & (confidence < (number + 1) / BINS)
        if number == BINS - 1:
            inside |= confidence == 1
        if inside.any():
            accuracy = (predicted[inside] == labels[inside]).double().mean()
            error += float(inside.double().mean() * (accuracy - confidence[inside].mean()).abs())
    return error


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_measures_equal_their_definitions(classes, spread):
    generator = torch.Generator().manual_seed(classes)
    logits = spread * torch.randn(360, classes, generator=generator)
    labels = torch.randint(classes, (360,), generator=generator)
    found = measure(logits, labels)
    probabilities = logits.softmax(-1)
    ece = literal_calibration_error(probabilities, labels)
    f1 = f1_score(labels, logits.argmax(-1), average="macro")
    assert found.ece == pytest.approx(100 * float(ece), abs=1e-4)
    assert found.macro_f1 == pytest.approx(100 * float(f1), abs=1e-4)
    likelihood = probabilities.gather(1, labels[:, None]).log().mean().item()
    assert found.nll == pytest.approx(-likelihood, abs=1e-5)
    # exactly, because recorded accuracies are compared bit for bit
    assert found.accuracy == 100 * int((logits.argmax(-1) == labels).sum()) / 360


def test_a_class_that_never_occurs_does_not_count():
    logits = torch.tensor([[9.0, 0, 0], [0, 9.0, 0], [9.0, 0, 0]])
    labels = torch.tensor([0, 1, 1])
    # class 0: TP 1, FP 1 -> 2/3; class 1: TP 1, FN 1 -> 2/3
    assert measure(logits, labels).macro_f1 == pytest.approx(200 / 3)


def test_a_perfect_classifier_has_perfect_measures():
    logits = 100.0 * torch.eye(4)
    assert measure(logits, torch.arange(4)) == (100.0, 0.0, 0.0, 100.0)


def test_a_confident_and_wrong_classifier_has_a_large_calibration_error():
    logits, labels = 100.0 * torch.eye(4), torch.tensor([1, 2, 3, 0])
    found = measure(logits, labels)
    assert (found.accuracy, found.ece, found.macro_f1) == (0.0, 100.0, 0.0)
    assert found.nll == pytest.approx(100.0)


def test_nan_logits_give_a_nan_likelihood():
    found = measure(torch.full((2, 3), torch.nan), torch.tensor([0, 1]))
    assert math.isnan(found.nll) and math.isnan(found.ece)
