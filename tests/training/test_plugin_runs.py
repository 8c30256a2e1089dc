"""Runs whose data, network, method and optimizer are plug-ins, or networks of libraries."""

import pytest
import torch
from helpers.images import draw_folder
from helpers.plugins import ALL, SOURCE, plugins
from torch import nn

from ressmooth.config import parse
from ressmooth.errors import ConfigError
from ressmooth.training import checkpoint, models
from ressmooth.training.trainer import Trainer

SETTINGS = {**ALL, "epochs": 4, "batch_size": 16, "threads": 1, "device": "cpu", "lr": 0.02}


def trainer(folder, source=SOURCE, **values):
    given = plugins(source)
    return Trainer(parse({**SETTINGS, **values}, given), folder, given)


def finish(trainer):
    while trainer.train_epoch() is not None:
        pass
    return trainer


def weights(trainer):
    return checkpoint.sha256(checkpoint.encode(trainer.model.state_dict()))


def test_a_run_of_plugins_learns(tmp_path):
    result = finish(trainer(tmp_path, epochs=8)).result()
    assert result.max_acc > 90


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_run_of_plugins_resumes_bit_for_bit(tmp_path, stop_after):
    whole = finish(trainer(tmp_path))
    stopped = trainer(tmp_path)
    for _ in range(stop_after):
        stopped.train_epoch()
    checkpoint.save(tmp_path / "c.pt", stopped.state())
    resumed = trainer(tmp_path)
    resumed.restore(checkpoint.load(tmp_path / "c.pt"))
    assert weights(finish(resumed)) == weights(whole)


STATEFUL = """
import random
import numpy as np

@ressmooth.method
class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, logits, target, progress):
        if self.training:
            self.mean.lerp_(logits.detach().mean(0), 0.1)
        noise = random.random() + np.random.rand()
        return F.cross_entropy((logits - self.mean) * self.temperature + noise * logits, target)


@ressmooth.model
def drawn(num_classes: int, in_channels: int) -> nn.Module:
    linear = nn.Linear(64, num_classes)
    start = np.random.randn(num_classes, 64) * random.random() / 8
    linear.weight.data = torch.from_numpy(start).float()
    return nn.Sequential(nn.Flatten(), linear)
"""


def test_a_loss_with_a_state_and_other_random_numbers_resumes_bit_for_bit(tmp_path):
    own = {"source": SOURCE + STATEFUL, "method": "Centred", "model": "drawn"}
    whole = finish(trainer(tmp_path, **own))
    stopped = trainer(tmp_path, **own)
    stopped.train_epoch()
    checkpoint.save(tmp_path / "c.pt", stopped.state())
    finish(stopped)  # leaves the generators of Python and numpy elsewhere
    resumed = trainer(tmp_path, **own)
    resumed.restore(checkpoint.load(tmp_path / "c.pt"))
    assert weights(finish(resumed)) == weights(stopped) == weights(whole)
    assert [e.val_loss for e in resumed.curve] == [e.val_loss for e in whole.curve]


def test_a_loss_is_trained_with_the_network_and_does_not_learn_from_checks(tmp_path):
    run = trainer(tmp_path, SOURCE + STATEFUL, method="Centred")
    assert run.loss.mean.tolist() == [0, 0] and run.loss.temperature.item() == 1
    run.train_epoch()
    after_training = run.loss.mean.clone()
    assert after_training.abs().min() > 0 and run.loss.temperature.item() != 1
    run._evaluate(run.validation)
    assert torch.equal(run.loss.mean, after_training)


def test_settings_reach_the_plugins(tmp_path):
    built = trainer(tmp_path, gamma=0.5, width=7, beta=0.3, count=40, weight_decay=0.01)
    assert built.loss.gamma == 0.5
    assert built.model[1].out_features == 7
    (group,) = built.optimizer.param_groups
    assert (group["momentum"], group["weight_decay"], group["lr"]) == (0.3, 0.01, 0.02)
    assert len(built.batches.labels) == 40


def test_the_hash_of_a_plugins_data_follows_its_content(tmp_path):
    first, again, other = (trainer(tmp_path, count=n).data_sha256 for n in (40, 40, 50))
    assert first == again != other


@pytest.mark.parametrize(
    "before, after, message",
    [
        ("nn.Linear(width, num_classes)", "nn.Linear(width, 5)", r"model 'mlp' should .*\[2, 2\]"),
        ("* loss).mean()", "* loss)", r"method 'FocalLoss' should .*\[\], but returned \[2\]"),
        ("* loss).mean()", "* loss).mean().item()", "method 'FocalLoss' .* returned float"),
        ("draw(20), num_classes=2)", "draw(20), num_classes=2).train", "ressmooth.Dataset, but"),
        (".to(torch.uint8)[..., None]", ".to(torch.uint8)", r"uint8 \[N, H, W, C\], but are"),
        (
            "torch.arange(number) % 2",
            "torch.arange(number) % 3",
            "labels should be 0 to 1, but reach 0",
        ),
        ("num_classes=2)", "num_classes='2')", "num_classes should be an int above 1, but is '2'"),
        ("draw(20), num", "draw(0), num", r"test: pixels .* but are torch.uint8 \[0, 8, 8, 1\]"),
        ("draw(20), num", "[], num", "test: has no images"),
        ("draw(20), num", "[(1, 2)], num", r"test: item 0 should be .*, but is \(1, 2\)"),
        (
            "    return torch.optim.SGD(",
            "    torch.optim.SGD(",
            "optimizer 'sign_sgd' should .* returned None",
        ),
        ("    return nn.Sequential(", "    return print(", "model 'mlp' should .* returned None"),
    ],
)
def test_a_plugin_that_returns_something_else_is_refused(tmp_path, before, after, message):
    assert before in SOURCE
    with pytest.raises(ConfigError, match=message):
        trainer(tmp_path, SOURCE.replace(before, after))


# networks of torchvision and timm


@pytest.mark.parametrize("name", ["torchvision:resnet18", "torchvision:squeezenet1_0"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_network_of_torchvision_fits_classes_and_channels(name, channels):
    with torch.device("meta"):
        model = models.build(name, num_classes=7, in_channels=channels)
        assert model(torch.empty(2, channels, 64, 64)).shape == (2, 7)


def test_a_network_of_timm_fits_classes_and_channels():
    model = models.build("timm:resnet10t", num_classes=7, in_channels=1)
    assert model.eval()(torch.zeros(1, 1, 32, 32)).shape == (1, 7)


def test_another_number_of_channels_keeps_the_response_to_grey_images():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3, stride=2, padding=1))
    grey = torch.rand(2, 1, 8, 8)
    expected = model(grey.expand(-1, 3, -1, -1))
    models._fit_channels(model, 1)
    torch.testing.assert_close(model(grey), expected)
    assert model[0].stride == (2, 2)


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_0", "vit_b_32"])
def test_the_head_of_pretrained_weights_is_replaced(name):
    from torchvision import models as theirs

    with torch.device("meta"):
        model = theirs.get_model(name)
        models._replace_head(model, 7)
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 7)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet10t"])
def test_unknown_weights_are_refused(name):
    with pytest.raises(ConfigError, match="weights = 'best'.*none.*DEFAULT"):
        models.build(name, num_classes=3, in_channels=3, weights="best")


def test_a_run_with_own_images_and_a_network_of_torchvision(tmp_path):
    source = draw_folder(tmp_path / "set", {"dark": 20, "bright": 20})
    config = {"dataset": f"images:{source}", "model": "torchvision:shufflenet_v2_x0_5"}
    run = Trainer(parse({**config, "epochs": 1, "batch_size": 8, "threads": 1}), tmp_path)
    assert run.train_epoch() is not None
    assert len(run.data_sha256) == 64
