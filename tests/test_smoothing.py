"""The method against the paper's M x M matrix, multiplied out, with plain autograd."""

import math
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import ressmooth
from ressmooth import (
    Constant,
    Laplace,
    Logistic,
    SmoothingLoss,
    SpatialSmoothingLoss,
    diffuse,
    smooth,
)
from ressmooth.smoothing import diffusivity, residual

PROGRESS = 0.6  # x = 6, and mu = 0.75 puts the peak at x = 7.5
# annealing, alpha, and s(PROGRESS) computed by hand
SCHEMES = {
    "global": (Laplace(0.75, 2.0), 0.0, math.exp(-1.5 / 2)),
    "local": (Constant(0.7), 2.0, 0.7),
    "full-laplace": (Laplace(0.75, 2.0), 1.0, math.exp(-1.5 / 2)),
    "full-logistic": (Logistic(0.75, 2.0), 1.0, 1 / math.cosh(1.5 / 4) ** 2),
}
property_test = settings(max_examples=100, deadline=None, database=None, derandomize=True)


def literal_diffusivity(d, scale, alpha):
    std = d.std(-1, correction=0, keepdim=True)
    flat = std < 1e-12  # equal elements up to rounding: d~ = 0
    centred = d - d.mean(-1, keepdim=True)
    safe = torch.where(flat, 1.0, d).std(-1, correction=0, keepdim=True)
    normalised = torch.where(flat, 0.0, centred / torch.where(flat, 1.0, safe))
    return scale / (1 + torch.exp(-alpha * normalised))


def weight_matrix(kappa):
    """[..., M, M] with w_jj = 1 - kappa_j and w_jk = kappa_j / (M - 1)."""
    m = kappa.shape[-1]
    eye = torch.eye(m, dtype=kappa.dtype)
    return (1 - kappa)[..., None] * eye + (kappa / (m - 1))[..., None] * (1 - eye)


def literal_loss(
    logits, target, scale, alpha, layers=1, through=False, output="softmax", reduction="sum"
):
    h = torch.softmax(logits, -1) if output == "softmax" else logits
    y = target if target.is_floating_point() else torch.eye(h.shape[-1], dtype=h.dtype)[target]
    d = (h - y).abs()
    weights = weight_matrix(literal_diffusivity(d if through else d.detach(), scale, alpha))
    r = d[..., None]
    for _ in range(layers):
        r = weights @ r
    squares = r[..., 0] ** 2
    return (squares.sum(-1) if reduction == "sum" else squares.mean(-1)).mean()


def with_gradient(function, logits, *args):
    leaf = logits.clone().requires_grad_()
    loss = function(leaf, *args)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def assert_same(actual, expected, atol=1e-10):
    for a, e in zip(actual, expected, strict=True):
        assert e.isfinite().all()
        torch.testing.assert_close(a, e, rtol=0, atol=atol)


def draw(*shape, dtype=torch.float64, spread=2.0):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return spread * torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def classes(shape, m):
    return torch.randint(m, shape, generator=torch.Generator().manual_seed(m))


def squared_error(logits, target):
    onehot = torch.eye(logits.shape[-1], dtype=logits.dtype)[target]
    return (logits.softmax(-1) - onehot).square().sum(-1).mean()


# the loss against the matrix form


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("m", [2, 3, 10, 100, 1000])
def test_loss_and_gradient_equal_the_literal_matrix_form(m, scheme, through, layers):
    annealing, alpha, scale = SCHEMES[scheme]
    logits, target = draw(4, m), classes((4,), m)
    loss = SmoothingLoss(annealing, alpha, layers, through)
    actual = with_gradient(loss, logits, target, PROGRESS)
    expected = with_gradient(literal_loss, logits, target, scale, alpha, layers, through)
    assert_same(actual, expected)


@pytest.mark.parametrize("shape", [(5,), (2, 3), ()], ids=str)
@pytest.mark.parametrize("output", ["softmax", "identity"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
def test_every_head_reduction_target_and_shape_equals_the_literal_form(
    shape, output, reduction, soft
):
    annealing, alpha, scale = SCHEMES["full-logistic"]
    logits = draw(*shape, 7)
    target = draw(*shape, 7, spread=1.0).softmax(-1) if soft else classes(shape, 7)
    for layers, through in product((1, 3), (False, True)):
        loss = SmoothingLoss(
            annealing, alpha, layers, through, output=output, class_reduction=reduction
        )
        actual = with_gradient(loss, logits, target, PROGRESS)
        setting = scale, alpha, layers, through, output, reduction
        assert_same(actual, with_gradient(literal_loss, logits, target, *setting))


@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
def test_saturated_logits_equal_the_literal_form(right, scheme, through):
    annealing, alpha, scale = SCHEMES[scheme]
    target = torch.tensor([0, 3, 9])
    logits = torch.full((3, 10), -1e4, dtype=torch.float64)
    logits[torch.arange(3), target if right else (target + 1) % 10] = 1e4
    actual = with_gradient(SmoothingLoss(annealing, alpha, 1, through), logits, target, PROGRESS)
    assert_same(actual, with_gradient(literal_loss, logits, target, scale, alpha, 1, through))


@pytest.mark.parametrize("through", [False, True])
def test_a_perfect_prediction_has_zero_loss_and_zero_gradient(through):
    target = classes((6,), 5)
    logits = torch.eye(5)[target]
    loss = SmoothingLoss(Constant(1.0), 4.0, 3, through, output="identity")
    value, gradient = with_gradient(loss, logits, target, 0.5)
    assert value == 0 and torch.equal(gradient, torch.zeros(6, 5))


@pytest.mark.parametrize("annealing", [Constant(0.0), Laplace(0.75, 1e-3)], ids=repr)
@pytest.mark.parametrize("through", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_diffusivity_the_loss_is_exactly_the_squared_error(dtype, through, annealing):
    logits, target = draw(32, 10, dtype=dtype), classes((32,), 10)
    loss = SmoothingLoss(annealing, 1.0, 2, through)
    for actual, expected in zip(
        with_gradient(loss, logits, target, 0.0),
        with_gradient(squared_error, logits, target),
        strict=True,
    ):
        assert torch.equal(actual, expected)


def test_the_gradient_through_the_diffusivity_passes_gradcheck():
    target = classes((3,), 4)
    loss = SmoothingLoss(Constant(0.8), 1.5, 2, through_diffusivity=True)
    logits = draw(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, target, 0.5), logits)


def test_the_gradient_differs_with_and_without_the_diffusivity():
    logits, target = draw(3, 4), classes((3,), 4)
    constant, through = (
        with_gradient(SmoothingLoss(Constant(0.8), 1.5, 1, flag), logits, target, 0.5)
        for flag in (False, True)
    )
    assert torch.equal(constant[0], through[0])
    assert not torch.allclose(constant[1], through[1], rtol=1e-3)


def test_permuting_the_classes_permutes_the_gradient():
    logits, target = draw(6, 9), classes((6,), 9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    loss = SmoothingLoss(Constant(0.9), 2.0, 2, through_diffusivity=True)
    value, gradient = with_gradient(loss, logits, target, 0.5)
    permuted = with_gradient(loss, logits[:, order], order.argsort()[target], 0.5)
    assert_same(permuted, (value, gradient[:, order]), atol=1e-12)


def test_the_last_diffusivity_is_kept_without_its_graph():
    loss = SmoothingLoss(Constant(1.0), 0.0, through_diffusivity=True)
    assert loss.diffusivity is None
    loss(draw(2, 5).requires_grad_(), torch.tensor([0, 1]), 0.5)
    assert torch.equal(loss.diffusivity, torch.full((2, 5), 0.5, dtype=torch.float64))
    assert not loss.diffusivity.requires_grad


def test_a_hundred_thousand_classes_fit_in_memory():
    m = 100_000  # four M x M matrices in fp32 would need 160 GB
    logits, target = draw(4, m, dtype=torch.float32, spread=4.0), classes((4,), m)
    value, gradient = with_gradient(SmoothingLoss(Constant(1.0), 1.0), logits, target, 0.5)
    d = (logits.double().softmax(-1) - torch.zeros(4, m).scatter_(1, target[:, None], 1)).abs()
    kappa = literal_diffusivity(d, 1.0, 1.0)
    r = (1 - kappa) * d + kappa / (m - 1) * (d.sum(-1, keepdim=True) - d)
    torch.testing.assert_close(value.double(), r.square().sum(-1).mean(), rtol=1e-4, atol=0)
    assert gradient.isfinite().all() and gradient.abs().max() > 0


# samples that count, and how they are reduced


def test_reduction_none_returns_one_loss_per_sample_and_the_others_reduce_it():
    logits, target = draw(2, 3, 5), classes((2, 3), 5)
    annealing, alpha, _ = SCHEMES["full-laplace"]
    each, total, mean = (
        SmoothingLoss(annealing, alpha, reduction=how)(logits, target, PROGRESS)
        for how in ("none", "sum", "mean")
    )
    assert each.shape == (2, 3)
    torch.testing.assert_close(total, each.sum())
    torch.testing.assert_close(mean, each.mean())
    alone = SmoothingLoss(annealing, alpha)(logits[1, 2], target[1, 2], PROGRESS)
    torch.testing.assert_close(each[1, 2], alone)


def test_reduction_none_of_a_dense_loss_is_one_value_per_image():
    logits, target = draw(2, 3, 4, 4), classes((2, 4, 4), 3)
    each = SpatialSmoothingLoss(Constant(0.5), reduction="none")(logits, target, PROGRESS)
    assert each.shape == (2,)
    mean = SpatialSmoothingLoss(Constant(0.5))(logits, target, PROGRESS)
    torch.testing.assert_close(each.mean(), mean)


@pytest.mark.parametrize("ignored", [-100, 255])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_ignored_targets_count_as_in_cross_entropy(reduction, ignored):
    logits, target = draw(6, 5), classes((6,), 5)
    target[[1, 4]] = ignored
    kept = target != ignored
    annealing, alpha, _ = SCHEMES["full-logistic"]
    plain = SmoothingLoss(annealing, alpha, reduction=reduction)
    masked = SmoothingLoss(annealing, alpha, reduction=reduction, ignore_index=ignored)

    def summed(loss):
        return lambda *args: loss(*args).sum()

    value, gradient = with_gradient(summed(masked), logits, target, PROGRESS)
    expected = with_gradient(summed(plain), logits[kept], target[kept], PROGRESS)
    assert_same((value, gradient[kept]), expected)
    assert (gradient[~kept] == 0).all()
    if reduction == "none":
        assert (masked(logits, target, PROGRESS)[~kept] == 0).all()
    in_torch = torch.nn.functional.cross_entropy(
        logits, target, reduction=reduction, ignore_index=ignored
    )
    assert masked(logits, target, PROGRESS).shape == in_torch.shape


def test_ignore_index_leaves_targets_without_it_and_probabilities_alone():
    logits, target = draw(4, 5), classes((4,), 5)
    plain, masked = (SmoothingLoss(Constant(0.5), ignore_index=i) for i in (None, -100))
    assert_same([masked(logits, target, 0.5)], [plain(logits, target, 0.5)])
    soft = logits.softmax(-1)
    assert masked(logits, soft, 0.5) == plain(logits, soft, 0.5)


def test_a_batch_of_ignored_targets_has_the_mean_that_cross_entropy_has():
    logits, target = draw(3, 5), torch.full((3,), -100)
    loss = SmoothingLoss(Constant(0.5), ignore_index=-100)(logits, target, 0.5)
    assert loss.isnan() and torch.nn.functional.cross_entropy(logits, target).isnan()


# the parts of the loss


def test_a_hand_computed_smoothing():
    d = torch.tensor([1.0, 0.0, 0.5])
    kappa = torch.tensor([0.5, 1.0, 0.25])
    expected = [0.5 * 1 + 0.25 * 0.5, 0.5 * 1.5, 0.75 * 0.5 + 0.125 * 1]
    torch.testing.assert_close(smooth(d, kappa), torch.tensor(expected))


def test_a_hand_computed_diffusivity():
    d = torch.tensor([0.0, 0.0, 3.0, 1.0], dtype=torch.float64)  # mean 1, population std sqrt(3/2)
    z = torch.tensor([-1.0, -1.0, 2.0, 0.0], dtype=torch.float64) / math.sqrt(1.5)
    expected = 0.8 / (1 + torch.exp(-2.0 * z))
    torch.testing.assert_close(diffusivity(d, 0.8, 2.0), expected, rtol=0, atol=1e-12)


def test_a_hand_computed_residual():
    logits = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64)
    expected = torch.tensor([[0.25, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(residual(logits, torch.tensor([1])), expected)
    torch.testing.assert_close(residual(logits, torch.tensor([[0.5, 0.5]])), expected)


@pytest.mark.parametrize("m", [2, 3, 10])
def test_the_rows_of_the_operator_sum_to_one(m):
    kappa = draw(m).sigmoid()
    operator = torch.autograd.functional.jacobian(lambda d: smooth(d, kappa), draw(m))
    torch.testing.assert_close(operator, weight_matrix(kappa))
    torch.testing.assert_close(operator.sum(-1), torch.ones(m, dtype=torch.float64))


def test_each_element_moves_towards_the_mean():
    d, kappa = draw(8, 6).abs(), torch.full((8, 6), 0.5, dtype=torch.float64)
    mean = d.mean(-1, keepdim=True)
    r = smooth(d, kappa)
    assert ((r - mean).abs() < (d - mean).abs()).all()
    torch.testing.assert_close(smooth(d, kappa, layers=50), mean.expand_as(d))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("m", [2, 3, 7, 10, 100])
def test_equal_residuals_have_half_the_scale_as_diffusivity(m, dtype):
    d = torch.full((4, m), 0.1, dtype=dtype) * torch.tensor([0.0, 1.0, 3.0, 7.0])[:, None]
    expected = torch.full((4, m), 0.4, dtype=dtype)
    torch.testing.assert_close(diffusivity(d, 0.8, 1.0), expected, rtol=0, atol=0.01)


# annealing


@pytest.mark.parametrize("kind", [Laplace, Logistic])
@pytest.mark.parametrize("mu", [0.0, 0.3, 0.75, 1.0])
def test_the_peak_is_exactly_one_at_mu(kind, mu):
    annealing = kind(mu, 0.5)
    assert annealing(mu) == 1
    assert all(0 < annealing(t) < 1 for t in np.linspace(0, 1, 20) if abs(t - mu) > 1e-9)


def test_hand_computed_annealing():
    assert Laplace(0.75, 0.5)(0.7) == pytest.approx(math.exp(-1), rel=1e-12)
    assert Logistic(0.75, 0.5)(0.8) == pytest.approx(1 / math.cosh(0.5) ** 2, rel=1e-12)
    assert Logistic(0.75, 0.5, horizon=1)(0.0) == pytest.approx(0.60, abs=0.005)
    assert Logistic(0.75, 0.5, horizon=1)(1.0) == pytest.approx(0.94, abs=0.005)
    assert Constant(0.3)(0.0) == Constant(0.3)(0.9) == 0.3


@pytest.mark.parametrize(
    "kind, distribution",
    [(Laplace, scipy.stats.laplace), (Logistic, scipy.stats.logistic)],
)
def test_annealing_is_the_density_divided_by_its_maximum(kind, distribution):
    for mu, b, horizon in product((0.0, 0.4, 0.75), (0.1, 0.9, 5.0), (1.0, 10.0)):
        density = distribution(loc=mu * horizon, scale=b)
        for t in np.linspace(0, 1, 11):
            expected = density.pdf(t * horizon) / density.pdf(mu * horizon)
            assert kind(mu, b, horizon)(float(t)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", [Laplace, Logistic])
def test_annealing_depends_on_b_over_horizon_alone(kind):
    assert kind(0.75, 0.5, 10.0)(0.4) == pytest.approx(kind(0.75, 0.05, 1.0)(0.4))
    assert kind(0.75, 0.5)(0.4) == kind(0.75, 0.5, 10.0)(0.4)


@pytest.mark.parametrize("annealing", [a for a, _, _ in SCHEMES.values()], ids=repr)
def test_a_number_and_a_tensor_as_progress_give_the_same_scale(annealing):
    for t in (0.0, 0.3, 0.75, 1.0):
        tensor = annealing(torch.tensor(t, dtype=torch.float64))
        assert isinstance(annealing(t), float)
        assert tensor.shape == () and tensor.item() == pytest.approx(annealing(t), rel=1e-14)


@pytest.mark.parametrize("kind", [Laplace, Logistic])
@pytest.mark.parametrize("b, horizon", [(1e-3, 10.0), (1e-6, 10.0), (1e-6, 1e6)])
def test_a_tiny_width_neither_overflows_nor_misses_the_peak(kind, b, horizon):
    annealing = kind(0.75, b, horizon)
    assert annealing(0.0) == annealing(1.0) == 0
    assert annealing(0.75) == 1
    assert annealing(torch.tensor(0.0)) == annealing(torch.tensor(1.0)) == 0
    assert annealing(torch.tensor(0.75)) == 1


@pytest.mark.parametrize(
    "make, value",
    [
        (lambda: Laplace(-0.1, 0.5), "-0.1"),
        (lambda: Logistic(1.5, 0.5), "1.5"),
        (lambda: Laplace(math.nan, 0.5), "nan"),
        (lambda: Laplace(0.5, 0.0), "0.0"),
        (lambda: Logistic(0.5, math.inf), "inf"),
        (lambda: Laplace(0.5, 1e-7), "1e-07"),
        (lambda: Logistic(0.5, 0.5, 1e7), "10000000.0"),
        (lambda: Laplace(0.5, 0.5, -2.0), "-2.0"),
        (lambda: Constant(1.25), "1.25"),
        (lambda: SmoothingLoss(Constant(1.0), alpha=-3.0), "-3.0"),
        (lambda: SmoothingLoss(Constant(1.0), alpha=math.inf), "inf"),
        (lambda: SmoothingLoss(Constant(1.0), layers=0), "0"),
        (lambda: SmoothingLoss(Constant(1.0), output="sofmax"), "sofmax.*softmax"),
        (lambda: SmoothingLoss(Constant(1.0), class_reduction="max"), "max.*mean, sum"),
        (lambda: SmoothingLoss(Constant(1.0), reduction="max"), "max.*mean, none, sum"),
        (lambda: SpatialSmoothingLoss(Constant(1.0), ignore_index=255), "255.*classes last"),
        (lambda: SmoothingLoss(Constant(1.0))(torch.ones(3, 1), torch.zeros(3).long(), 0.5), "1"),
        (lambda: residual(torch.ones(3, 4), torch.ones(3)), r"\(3, 4\).*\(3,\)"),
        (lambda: residual(torch.ones(3, 4).long(), torch.zeros(3).long()), "torch.int64"),
        (lambda: residual(torch.ones(3, 4) * 1j, torch.zeros(3).long()), "torch.complex64"),
        (
            lambda: SpatialSmoothingLoss(Constant(1.0))(torch.ones(3, 4), torch.ones(3, 4), 0.5),
            r"\[N, C, H, W\].*\(3, 4\)",
        ),
    ],
)
def test_a_bad_argument_raises_an_error_that_names_it(make, value):
    with pytest.raises(ValueError, match=value):
        make()


# dtypes and compilation


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_fp32(dtype):
    logits, target = draw(16, 10, dtype=dtype), classes((16,), 10)
    loss = SmoothingLoss(Logistic(0.75, 2.0))
    value, gradient = with_gradient(loss, logits, target, PROGRESS)
    expected, expected_gradient = with_gradient(loss, logits.float(), target, PROGRESS)
    assert value.dtype == torch.float32 and torch.equal(value, expected)
    assert torch.equal(gradient, expected_gradient.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("output", ["softmax", "identity"])
def test_autocast_changes_nothing(output, dtype):
    logits, target = draw(16, 10, dtype=dtype), classes((16,), 10)
    loss = SmoothingLoss(Logistic(0.75, 2.0), layers=2, through_diffusivity=True, output=output)
    expected = with_gradient(loss, logits, target, PROGRESS)
    with torch.autocast("cpu", torch.bfloat16):
        actual = with_gradient(loss, logits, target, PROGRESS)
    assert actual[0].dtype == torch.float32
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])


def test_double_precision_stays_double():
    value, gradient = with_gradient(SmoothingLoss(Constant(1.0)), draw(2, 3), classes((2,), 3), 0.5)
    assert value.dtype == gradient.dtype == torch.float64


@pytest.mark.parametrize("as_progress", [float, torch.tensor], ids=["number", "tensor"])
def test_compiling_changes_neither_value_nor_gradient(as_progress):
    logits, target = draw(8, 10, dtype=torch.float32), classes((8,), 10)
    loss = SmoothingLoss(Logistic(0.75, 2.0), through_diffusivity=True)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for progress in map(as_progress, (0.0, 0.4, 0.75, 1.0)):
        actual = with_gradient(compiled, logits, target, progress)
        assert_same(actual, with_gradient(loss, logits, target, progress), atol=1e-6)


# diffusion in space


def literal_diffusion(u, kappa, dt):
    """Take one explicit step on [H, W]. A neighbour beyond the border is the pixel itself."""
    height, width = u.shape
    result = u.clone()
    for y, x in product(range(height), range(width)):
        for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            ny, nx = y + dy, x + dx
            if 0 <= ny < height and 0 <= nx < width:
                result[y, x] += dt * kappa[y, x] * (u[ny, nx] - u[y, x])
    return result


@pytest.mark.parametrize("dt", [0.25, 0.1])
@pytest.mark.parametrize("size", [(5, 4), (1, 6), (2, 2)], ids=str)
def test_diffusion_equals_a_loop_over_pixels(size, dt):
    u, kappa = draw(2, 3, *size), draw(2, 3, *size).sigmoid()
    expected = u.clone()
    for n, c in product(range(2), range(3)):
        for _ in range(3):
            expected[n, c] = literal_diffusion(expected[n, c], kappa[n, c], dt)
    torch.testing.assert_close(diffuse(u, kappa, 3, dt), expected, rtol=0, atol=1e-12)


def test_a_constant_map_does_not_diffuse():
    u, kappa = torch.full((2, 3, 6, 5), 0.375), draw(2, 3, 6, 5, dtype=torch.float32).sigmoid()
    assert torch.equal(diffuse(u, kappa, steps=10), u)


def test_diffusion_conserves_each_sum_and_converges_to_the_mean():
    u, kappa = draw(2, 3, 4, 3), torch.tensor(0.8, dtype=torch.float64)
    torch.testing.assert_close(diffuse(u, kappa, 5).sum((2, 3)), u.sum((2, 3)))
    level = u.mean((2, 3), keepdim=True).expand_as(u)
    torch.testing.assert_close(diffuse(u, kappa, 200), level)


def test_diffusion_without_diffusivity_is_the_identity():
    u = draw(2, 3, 6, 5)
    assert torch.equal(diffuse(u, torch.zeros_like(u), 4), u)


@property_test
@given(
    u=arrays(np.float64, (1, 1, 3, 4), elements=st.floats(-1e3, 1e3)),
    kappa=arrays(np.float64, (1, 1, 3, 4), elements=st.floats(0, 1)),
    steps=st.integers(1, 5),
)
def test_diffusion_never_leaves_the_range_of_the_map(u, kappa, steps):
    u = torch.from_numpy(u)
    result = diffuse(u, torch.from_numpy(kappa), steps)
    assert (result >= u.amin((2, 3), True) - 1e-9).all()
    assert (result <= u.amax((2, 3), True) + 1e-9).all()


def spatial_squared_error(logits, target):
    onehot = torch.nn.functional.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2)
    return (logits.softmax(1) - onehot).square().sum((1, 2, 3)).mean()


def test_the_spatial_loss_without_diffusivity_is_the_squared_error():
    logits, target = draw(2, 3, 4, 5), classes((2, 4, 5), 3)
    actual = with_gradient(SpatialSmoothingLoss(Constant(0.0)), logits, target, 0.5)
    assert_same(actual, with_gradient(spatial_squared_error, logits, target), atol=1e-12)


@pytest.mark.parametrize("layers", [1, 3])
def test_the_spatial_loss_equals_the_loop_over_pixels(layers):
    logits, target = draw(2, 3, 4, 5), classes((2, 4, 5), 3)
    onehot = torch.nn.functional.one_hot(target, 3).permute(0, 3, 1, 2)
    d = (logits.softmax(1) - onehot).abs()
    kappa = literal_diffusivity(d.flatten(1), 0.7, 2.0).view_as(d)
    r = d.clone()
    for _, n, c in product(range(layers), range(2), range(3)):
        r[n, c] = literal_diffusion(r[n, c], kappa[n, c], 0.25)
    expected = r.square().sum() / 2
    actual = SpatialSmoothingLoss(Constant(0.7), 2.0, layers)(logits, target, 0.5)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("through", [False, True])
def test_the_spatial_loss_is_the_same_for_values_and_indices(through):
    logits, target = draw(2, 3, 4, 5), classes((2, 4, 5), 3)
    values = torch.nn.functional.one_hot(target, 3).permute(0, 3, 1, 2).double()
    loss = SpatialSmoothingLoss(Logistic(0.75, 2.0), layers=2, through_diffusivity=through)
    by_index = with_gradient(loss, logits, target, PROGRESS)
    assert_same(with_gradient(loss, logits, values, PROGRESS), by_index, atol=1e-12)
    assert by_index[1].abs().max() > 0


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_spatial_gradient_is_finite_for_float_targets(scale):
    logits, target = draw(2, 3, 4, 5, dtype=torch.float32, spread=scale), torch.zeros(2, 3, 4, 5)
    loss = SpatialSmoothingLoss(Constant(1.0), 4.0, 3, True, output="identity")
    value, gradient = with_gradient(loss, logits, target, 0.5)
    assert value.isfinite() and gradient.isfinite().all()


# properties


@st.composite
def problems(draw):
    m = draw(st.integers(2, 50))
    batch = draw(st.integers(1, 4))
    size = 10.0 ** draw(st.integers(-3, 5))
    logits = draw(arrays(np.float64, (batch, m), elements=st.floats(-size, size)))
    target = draw(st.lists(st.integers(0, m - 1), min_size=batch, max_size=batch))
    return torch.from_numpy(logits), torch.tensor(target)


steepness, unit = st.floats(0, 100), st.floats(0, 1)


@property_test
@given(problem=problems(), alpha=steepness, scale=unit, layers=st.integers(1, 3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_are_finite_and_bounded(dtype, problem, alpha, scale, layers):
    logits, target = problem[0].to(dtype), problem[1]
    loss = SmoothingLoss(Constant(scale), alpha, layers, through_diffusivity=True)
    value, gradient = with_gradient(loss, logits, target, 0.5)
    assert 0 <= value <= logits.shape[-1]  # every |r_j| <= 1
    assert gradient.isfinite().all()


@property_test
@given(problem=problems(), alpha=steepness, scale=unit)
def test_diffusivity_lies_between_zero_and_scale_and_grows_with_the_residual(problem, alpha, scale):
    d = residual(*problem)
    kappa = diffusivity(d, scale, alpha)
    assert (kappa >= 0).all() and (kappa <= scale).all()
    by_residual = kappa.gather(-1, d.argsort(-1))
    assert (by_residual.diff() >= -1e-12).all()


@property_test
@given(problem=problems(), alpha=steepness, scale=unit, layers=st.integers(1, 3))
def test_smoothing_stays_within_the_range_of_the_residual(problem, alpha, scale, layers):
    d = residual(*problem)
    r = smooth(d, diffusivity(d, scale, alpha), layers)
    assert (r >= d.amin(-1, keepdim=True) - 1e-12).all()
    assert (r <= d.amax(-1, keepdim=True) + 1e-12).all()


@property_test
@given(problem=problems(), scale=unit)
def test_global_smoothing_keeps_the_mean_and_never_raises_the_squares(problem, scale):
    d = residual(*problem)
    r = smooth(d, diffusivity(d, scale, 0.0))
    torch.testing.assert_close(r.mean(-1), d.mean(-1), rtol=0, atol=1e-12)
    assert (r.square().sum(-1) <= d.square().sum(-1) + 1e-12).all()


@property_test
@given(problem=problems(), alpha=steepness, scale=unit)
def test_a_random_loss_equals_the_literal_form(problem, alpha, scale):
    actual = SmoothingLoss(Constant(scale), alpha)(*problem, 0.5)
    torch.testing.assert_close(actual, literal_loss(*problem, scale, alpha), rtol=0, atol=1e-10)


# the package


@pytest.mark.parametrize("name", ressmooth.PUBLIC["smoothing"])
def test_every_exported_name_is_that_of_smoothing(name):
    assert getattr(ressmooth, name) is getattr(ressmooth.smoothing, name)


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Laplacian"):
        _ = ressmooth.Laplacian


def test_importing_the_package_does_not_import_torch():
    code = "import sys, ressmooth; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("target", [torch.zeros(3), torch.zeros(1), torch.zeros(4, 5)])
def test_class_indices_must_fit_the_logits(target):
    with pytest.raises(ValueError, match=r"must be integers \(4,\), but got"):
        SmoothingLoss(Constant(0.5))(torch.randn(4, 5), target.long(), 0.5)


def test_class_indices_of_dense_outputs_must_fit():
    with pytest.raises(ValueError, match=r"must be integers \(2, 8, 8\)"):
        SpatialSmoothingLoss(Constant(0.5))(
            torch.randn(2, 5, 8, 8), torch.zeros(2, 4, 8, dtype=torch.long), 0.5
        )


def test_boolean_targets_are_refused():
    with pytest.raises(ValueError, match="torch.bool"):
        SmoothingLoss(Constant(0.5))(torch.randn(4, 2), torch.zeros(4, dtype=torch.bool), 0.5)


@pytest.mark.parametrize("progress", [7, -1, 1.001, math.nan, torch.tensor([0.5, 0.6])])
def test_progress_is_a_fraction_of_training(progress):
    with pytest.raises(ValueError, match="progress must be"):
        SmoothingLoss(Constant(0.5))(torch.randn(4, 5), torch.zeros(4, dtype=torch.long), progress)
