"""Networks with the weights of a run."""

import pytest
import torch
from helpers.plugins import ALL, plugins

from ressmooth.config import parse
from ressmooth.plugins import NO_PLUGINS
from ressmooth.training.datasets import load_for
from ressmooth.training.trained import load_classifier
from ressmooth.training.trainer import Trainer

DIGITS = {"dataset": "digits", "fraction": 0.2, "channels_last": False}


@pytest.mark.parametrize(
    "settings, given",
    [
        (ALL, plugins()),
        (DIGITS, NO_PLUGINS),
        ({**DIGITS, "selection": "holdout"}, NO_PLUGINS),
        ({**DIGITS, "padding": 2}, NO_PLUGINS),
    ],
    ids=["plug-ins with a lazy layer", "paper", "holdout", "padding"],
)
def test_a_classifier_gives_the_accuracy_of_the_best_epoch(tmp_path, settings, given):
    values = {**settings, "epochs": 3, "batch_size": 16, "lr": 0.02, "seed": 4, "threads": 1}
    config = parse(values, given)
    trainer = Trainer(config, tmp_path, given)
    while trainer.train_epoch() is not None:
        pass
    threads = torch.get_num_threads()
    classifier = load_classifier(config, trainer.best_weights, tmp_path, given)
    assert torch.get_num_threads() == threads and not classifier.network.training
    with torch.inference_mode():
        found = classifier(trainer.validation.pixels).argmax(1) == trainer.validation.labels
    assert 100 * found.double().mean() == pytest.approx(trainer.best)
    assert classifier.image == load_for(config, tmp_path, given).train.image
