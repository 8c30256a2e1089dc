import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ressmooth.training import models
from ressmooth.training.models import MODELS, build

PUBLISHED_COUNTS = {"resnet20": 269_722, "resnet56": 853_018, "densenet_bc_100_12": 769_162}


def documented_counts():
    rows = re.findall(r"^ {4}(\w+) +(\d[\d,]*)\b", models.__doc__, re.MULTILINE)
    return {name: int(count.replace(",", "")) for name, count in rows}


def seeded(name, seed=0, num_classes=10, in_channels=3):
    torch.manual_seed(seed)
    return build(name, num_classes=num_classes, in_channels=in_channels)


def shapes_only(name, **shape):
    with torch.device("meta"):
        return seeded(name, **shape)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def weighted_layers(model):
    return [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


def test_the_docstring_documents_every_model():
    assert documented_counts().keys() == MODELS.keys()


@pytest.mark.parametrize("name", MODELS)
def test_the_parameter_count_is_the_documented_one(name):
    assert parameters(shapes_only(name)) == documented_counts()[name]


@pytest.mark.parametrize("name", PUBLISHED_COUNTS)
def test_the_documented_count_is_the_papers(name):
    assert documented_counts()[name] == PUBLISHED_COUNTS[name]


@pytest.mark.parametrize("name", MODELS)
def test_channels_and_classes_change_only_the_first_and_the_last_layer(name):
    model = shapes_only(name)
    first, *_, last = weighted_layers(model)
    count = parameters(model)
    assert parameters(shapes_only(name, in_channels=1)) == count - 2 * 9 * first.out_channels
    assert parameters(shapes_only(name, num_classes=100)) == count + 90 * (last.in_features + 1)


@pytest.mark.parametrize("name, depth", [("resnet20", 20), ("resnet56", 56)])
def test_a_resnet_has_the_depth_of_its_name(name, depth):
    assert len(weighted_layers(shapes_only(name))) == depth


def test_the_densenet_has_the_depth_of_its_name():
    assert len(weighted_layers(shapes_only("densenet_bc_100_12"))) == 100


@pytest.mark.parametrize("size", [8, 28, 32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_an_image_of_any_size_gives_one_logit_per_class(name, channels, size):
    model = shapes_only(name, num_classes=7, in_channels=channels)
    assert model(torch.empty(2, channels, size, size, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_finite_and_every_parameter_has_a_gradient(name):
    model = seeded(name)
    logits = model(torch.randn(2, 3, 8, 8))
    assert logits.isfinite().all()
    logits.square().sum().backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


def test_a_wider_block_passes_its_input_subsampled_and_padded_with_zero_channels():
    block = next(m for m in seeded("resnet20") if getattr(m, "stride", None) == 2)
    nn.init.zeros_(block.bn2.weight)  # switches the residual branch off
    x = torch.rand(2, 16, 8, 8)
    expected = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 8, 8))
    assert torch.equal(block(x.clone()), expected)


def test_a_block_of_equal_width_passes_its_input_unchanged():
    block = next(m for m in seeded("resnet20") if hasattr(m, "bn2"))
    nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 16, 8, 8)
    assert torch.equal(block(x.clone()), x)


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_he_normal_and_biases_zero(name):
    for layer in weighted_layers(seeded(name)):
        weight, n = layer.weight, layer.weight.numel()
        expected = math.sqrt(2 / weight[0].numel())  # fan in
        assert weight.std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * n))
        assert abs(weight.mean().item()) < 5 * expected / math.sqrt(n)
        assert layer.bias is None or not layer.bias.any()


def test_the_weights_depend_on_the_seed_of_torch():
    first, again, other = (seeded("small", seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'resnet21'.*'resnet20'") as error:
        build("resnet21", num_classes=10, in_channels=3)
    assert all(name in str(error.value) for name in MODELS)
