import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ressmooth import Constant, Laplace, Logistic, SmoothingLoss
from ressmooth.config import (
    LEARNING_RATE,
    PROTOCOL,
    Augmentation,
    DatasetName,
    Distribution,
    Method,
    ModelName,
    OptimizerName,
    RunConfig,
    parse,
    used_settings,
)
from ressmooth.errors import ConfigError
from ressmooth.training.data import Batches, Images
from ressmooth.training.datasets import LOADERS
from ressmooth.training.losses import (
    METHODS,
    OPTIMIZERS,
    AdaptiveDecay,
    SquaredError,
    annealing,
    build_loss,
    build_optimizer,
    build_validation_loss,
    learning_rate,
)
from ressmooth.training.models import MODELS


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=generator), torch.randint(5, (8,), generator=generator)


def squared_errors(logits, target):
    onehot = torch.eye(logits.shape[-1], dtype=logits.dtype)[target]
    return (logits.softmax(-1) - onehot).square().sum(-1)  # [B]


# names


@pytest.mark.parametrize(
    "registry, names",
    [
        (METHODS, Method),
        (OPTIMIZERS, OptimizerName),
        (LEARNING_RATE, OptimizerName),
        (MODELS, ModelName),
        (LOADERS, DatasetName),
        (PROTOCOL, DatasetName),
    ],
)
def test_a_registry_holds_exactly_the_names_that_a_config_allows(registry, names):
    assert set(registry) == set(get_args(names))


OTHER = {  # another value than the default of every setting that only some runs use
    "distribution": "logistic",
    "mu": 0.6,
    "b": 0.7,
    "horizon": 5.0,
    "scale": 0.5,
    "alpha": 2.0,
    "layers": 2,
    "through_diffusivity": True,
    "output": "identity",
    "reduction": "mean",
    "epsilon": 0.2,
    "nu": 2.0,
    "momentum": 0.8,
}


def effect(values, model, batch):
    """Return what a run's settings decide: the loss, its gradient, and the optimizer's options."""
    x, target = batch
    config = parse(values)
    loss = build_loss(config, model)(model(x), target, 0.5)
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    options = build_optimizer(config, model).defaults
    return loss.item(), [part.tolist() for part in gradient], options


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize("distribution", get_args(Distribution))
@pytest.mark.parametrize("optimizer", get_args(OptimizerName))
def test_exactly_the_used_settings_have_an_effect(method, distribution, optimizer, model, batch):
    values = {"method": method, "distribution": distribution, "optimizer": optimizer}
    before = effect(values, model, batch)
    changed = [k for k in OTHER if effect({**values, k: _other(values, k)}, model, batch) != before]
    assert set(changed) == set(OTHER) & set(used_settings(values))


def _other(values, key):
    return "laplace" if values.get(key) == OTHER[key] else OTHER[key]


@pytest.mark.parametrize("name", get_args(Augmentation))
def test_every_augmentation_that_a_config_allows_exists(name):
    Batches(Images(torch.zeros(2, 3, 3, 1, dtype=torch.uint8), torch.zeros(2)), None, 1, name, 0)


@pytest.mark.parametrize("name", get_args(Method))
def test_every_method_builds_a_loss_with_a_gradient(name, model, batch):
    x, target = batch
    loss = build_loss(parse({"method": name}), model)(model(x), target, 0.5)
    loss.backward()
    assert loss.shape == () and loss > 0
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


def test_an_unknown_name_is_refused_with_the_known_ones(model):
    config = RunConfig().model_copy(update={"method": "mze", "optimizer": "sdg"})
    with pytest.raises(ValueError, match="'mze'.*'mse'.*label_smoothing"):
        build_loss(config, model)
    with pytest.raises(ValueError, match="'sdg'.*'sgd'.*adagrad, adam, adamw, sgd"):
        build_optimizer(config, model)


# losses


def test_the_baseline_is_the_squared_distance_of_softmax_and_onehot(model, batch):
    x, target = batch
    logits = model(x)
    loss = build_loss(parse({"method": "mse"}), model)(logits, target, 0.5)
    torch.testing.assert_close(loss, squared_errors(logits, target).mean())


def test_a_hand_computed_baseline():
    logits = torch.tensor([[0.0, math.log(3.0)]])  # softmax 1/4, 3/4
    assert SquaredError("softmax", "sum")(logits, torch.tensor([1])).item() == pytest.approx(0.125)
    assert SquaredError("softmax", "mean")(logits, torch.tensor([1])).item() == pytest.approx(
        1 / 16
    )
    expected = (math.log(3) - 1) ** 2
    assert SquaredError("identity", "sum")(logits, torch.tensor([1])).item() == pytest.approx(
        expected
    )


def test_hand_computed_label_smoothing(model):
    logits = torch.tensor([[0.0, math.log(3.0)]])  # softmax 1/4, 3/4; target 0.05, 0.95
    loss = build_loss(parse({"method": "label_smoothing"}), model)
    assert loss(logits, torch.tensor([1]), 0.5).item() == pytest.approx(0.2**2 + 0.2**2)


@pytest.mark.parametrize("epsilon", [0.1, 0.3])
def test_label_smoothing_mixes_the_onehot_with_the_uniform_distribution(epsilon, model, batch):
    x, target = batch
    logits = model(x)
    soft = (1 - epsilon) * torch.eye(5)[target] + epsilon / 5
    loss = build_loss(parse({"method": "label_smoothing", "epsilon": epsilon}), model)
    expected = (logits.softmax(-1) - soft).square().sum(-1).mean()
    torch.testing.assert_close(loss(logits, target, 0.5), expected)


def test_label_smoothing_with_epsilon_zero_is_the_baseline(model, batch):
    x, target = batch
    loss = build_loss(parse({"method": "label_smoothing", "epsilon": 0.0}), model)
    baseline = build_loss(parse({"method": "mse"}), model)
    assert torch.equal(loss(model(x), target, 0.5), baseline(model(x), target, 0.5))


def test_cross_entropy_is_that_of_torch(model, batch):
    x, target = batch
    loss = build_loss(parse({"method": "cross_entropy"}), model)
    assert torch.equal(loss(model(x), target, 0.5), F.cross_entropy(model(x), target))


@pytest.mark.parametrize("method", get_args(Method))
def test_every_loss_is_fp32_for_half_precision_logits(method, model, batch):
    x, target = batch
    logits = model(x).bfloat16()
    loss = build_loss(parse({"method": method}), model)
    assert loss(logits, target, 0.5).dtype == torch.float32
    torch.testing.assert_close(loss(logits, target, 0.5), loss(logits.float(), target, 0.5))


@pytest.mark.parametrize("nu", [0.5, 2.0])
def test_adaptive_decay_adds_the_weights_times_the_mean_adapted_decay(nu, model, batch):
    x, target = batch
    model, x = model.double(), x.double()
    config = parse({"method": "adaptive_decay", "weight_decay": 0.3, "nu": nu})
    weights = list(model.parameters())
    actual = torch.autograd.grad(build_loss(config, model)(model(x), target, 0.5), weights)
    errors = squared_errors(model(x), target)
    rate = 0.3 * (1 - torch.exp(-errors.detach() / nu)).mean()
    plain = torch.autograd.grad(errors.mean(), weights)
    for gradient, f, w in zip(actual, plain, weights, strict=True):
        torch.testing.assert_close(gradient, f + rate * w, rtol=0, atol=1e-12)


def test_adaptive_decay_owns_no_parameters(model):
    loss = build_loss(parse({"method": "adaptive_decay"}), model)
    assert isinstance(loss, AdaptiveDecay) and list(loss.parameters()) == []


@pytest.mark.parametrize(
    "distribution, expected",
    [
        ("laplace", Laplace(0.6, 0.3, 5.0)),
        ("logistic", Logistic(0.6, 0.3, 5.0)),
        ("constant", Constant(0.4)),
    ],
)
def test_the_annealing_takes_the_settings_of_the_config(distribution, expected):
    config = parse(
        {"distribution": distribution, "mu": 0.6, "b": 0.3, "horizon": 5.0, "scale": 0.4}
    )
    assert type(annealing(config)) is type(expected) and annealing(config) == expected
    assert distribution in get_args(Distribution)


def test_smoothing_takes_the_settings_of_the_config(model, batch):
    x, target = batch
    config = parse(
        {
            "distribution": "logistic",
            "mu": 0.6,
            "b": 2.0,
            "alpha": 3.0,
            "layers": 2,
            "through_diffusivity": True,
            "output": "identity",
            "reduction": "mean",
        }
    )
    expected = SmoothingLoss(
        Logistic(0.6, 2.0), 3.0, 2, True, output="identity", class_reduction="mean"
    )
    loss = build_loss(config, model)
    assert repr(loss) == repr(expected)
    assert torch.equal(loss(model(x), target, 0.5), expected(model(x), target, 0.5))


@pytest.mark.parametrize("method", get_args(Method))
def test_the_validation_loss_has_neither_smoothing_nor_penalty(method, model, batch):
    x, target = batch
    logits = model(x)
    loss = build_validation_loss(parse({"method": method}), nn.Identity())(logits, target)
    expected = squared_errors(logits, target).mean()
    if method == "cross_entropy":
        expected = F.cross_entropy(logits, target)
    torch.testing.assert_close(loss, expected)


# optimizers


@pytest.mark.parametrize(
    "name, kind, expected",
    [
        ("sgd", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}),
        ("adam", torch.optim.Adam, {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 1e-4}),
        ("adagrad", torch.optim.Adagrad, {"lr": 1e-2, "weight_decay": 1e-4}),
    ],
)
def test_an_optimizer_has_the_hyperparameters_of_the_protocol(name, kind, expected, model):
    optimizer = build_optimizer(parse({"optimizer": name}), model)
    (group,) = optimizer.param_groups
    assert type(optimizer) is kind and expected.items() <= group.items()
    assert group["params"] == list(model.parameters()) and not group.get("nesterov")


def test_sgd_takes_the_settings_of_the_config(model):
    config = parse({"lr": 0.5, "momentum": 0.3, "weight_decay": 0.02})
    (group,) = build_optimizer(config, model).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.5, 0.3, 0.02)


def test_nesterov_and_adamw_are_torchs(model):
    (group,) = build_optimizer(parse({"nesterov": True}), model).param_groups
    assert group["nesterov"] is True
    with pytest.raises(ConfigError, match="nesterov = True: needs momentum above 0"):
        parse({"nesterov": True, "momentum": 0.0})
    optimizer = build_optimizer(parse({"optimizer": "adamw", "weight_decay": 0.5}), model)
    weights = [p.clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # without a gradient only the decay is left, by lr * weight_decay
    for before, after in zip(weights, model.parameters(), strict=True):
        torch.testing.assert_close(after, before * (1 - 1e-3 * 0.5))


def test_cross_entropy_smooths_labels_as_torch_does(model, batch):
    x, target = batch
    config = parse({"method": "cross_entropy", "label_smoothing": 0.2})
    expected = F.cross_entropy(model(x), target, label_smoothing=0.2)
    torch.testing.assert_close(build_loss(config, model)(model(x), target, 0.5), expected)
    plain = build_validation_loss(config, nn.Identity())(model(x), target)
    torch.testing.assert_close(plain, F.cross_entropy(model(x), target))


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_adaptive_decay_disables_the_weight_decay_of_the_optimizer(name, model):
    config = parse({"optimizer": name, "method": "adaptive_decay", "weight_decay": 0.5})
    assert build_optimizer(config, model).param_groups[0]["weight_decay"] == 0


def test_the_papers_step_falls_to_a_hundredth_after_three_quarters():
    config = parse({"dataset": "fashion_mnist"})
    rates = [learning_rate(config, epoch) for epoch in range(1, 49)]
    assert rates == [0.1] * 36 + [0.1 / 100] * 12


@pytest.mark.parametrize("epochs, high", [(160, 120), (100, 75), (10, 8), (1, 1)])
def test_the_step_keeps_the_high_rate_for_three_quarters(epochs, high):
    config = parse({"epochs": epochs, "lr": 1.0})
    assert sum(learning_rate(config, e) == 1.0 for e in range(1, epochs + 1)) == high


def test_the_cosine_schedule_falls_from_the_rate_towards_zero():
    config = parse({"schedule": "cosine", "epochs": 4, "lr": 0.2})
    half = 0.1 * math.sqrt(0.5)
    expected = [0.2, 0.1 + half, 0.1, 0.1 - half]
    assert [learning_rate(config, e) for e in (1, 2, 3, 4)] == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["step", "cosine", "constant"])
def test_the_rate_rises_over_the_warm_up_and_then_follows_the_schedule(schedule):
    settings = {"schedule": schedule, "epochs": 12, "warmup_epochs": 4, "lr": 1.0}
    rates = [learning_rate(parse(settings), epoch) for epoch in range(1, 13)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    after = {
        "step": [1.0] * 5 + [0.01] * 3,
        "cosine": [(1 + math.cos(math.pi * done / 8)) / 2 for done in range(8)],
        "constant": [1.0] * 8,
    }
    assert rates[4:] == pytest.approx(after[schedule])


def test_the_constant_schedule_never_changes():
    config = parse({"schedule": "constant", "epochs": 20, "lr": 0.3})
    assert {learning_rate(config, e) for e in range(1, 21)} == {0.3}
