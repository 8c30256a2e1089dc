"""The plain beginning of a run, and what makes it the same for two runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ressmooth.config import parse
from ressmooth.prefix import prefix_of, shared_epochs
from ressmooth.smoothing import Laplace, Logistic
from ressmooth.training import losses


def smoothing(**settings):
    return parse({"method": "smoothing", "cutoff": 1e-3, **settings}).model_dump()


@given(
    distribution=st.sampled_from(["laplace", "logistic"]),
    mu=st.floats(0, 1),
    b=st.floats(1e-3, 2),
    horizon=st.sampled_from([1.0, 10.0, 16.0]),
    cutoff=st.floats(1e-12, 0.999),
    epochs=st.integers(1, 60),
    steps=st.integers(1, 50),
)
def test_a_prefix_ends_with_the_last_epoch_whose_scale_is_zero(
    distribution, mu, b, horizon, cutoff, epochs, steps
):
    settings = {"distribution": distribution, "mu": mu, "b": b, "horizon": horizon}
    config = parse({**smoothing(), **settings, "cutoff": cutoff, "epochs": epochs})
    prefix = prefix_of(config.model_dump())
    plain = prefix.epochs if prefix else 0
    annealing = losses.annealing(config)
    scales = [annealing(step / (steps * epochs)) for step in range(steps * epochs)]
    assert not any(scales[: plain * steps])
    # the next epoch is smoothed, or its end is, which no step begins with
    end = [annealing(min((plain + 1) / epochs, mu))]
    assert any(scales[plain * steps : (plain + 1) * steps] + end)


@pytest.mark.parametrize(
    ("b", "laplace", "logistic"), [(0.1, 32, 32), (0.3, 26, 24), (0.5, 19, 16), (0.9, 6, None)]
)
def test_the_forks_of_table_1(b, laplace, logistic):
    """48 epochs; s reaches 1e-3 at x = 7.5 - 6.908 b, and at 7.5 - 8.294 b."""
    for distribution, epochs in (("laplace", laplace), ("logistic", logistic)):
        found = prefix_of(smoothing(dataset="fashion_mnist", distribution=distribution, b=b))
        assert (found and found.epochs) == epochs


def test_only_smoothing_with_a_cutoff_and_plain_sgd_have_a_prefix():
    assert prefix_of(parse({"method": "mse"}).model_dump()).epochs == 20
    assert prefix_of(smoothing(b=0.1)).epochs == 13
    for settings in (
        smoothing(cutoff=0.0, b=1e-3),
        smoothing(distribution="constant", scale=0.0),
        smoothing(mu=0.0),
        parse({"method": "label_smoothing"}).model_dump(),
        parse({"method": "adaptive_decay"}).model_dump(),
        {},
    ):
        assert prefix_of(settings) is None


@pytest.mark.parametrize(
    "same",
    [{"alpha": 0.0}, {"distribution": "logistic"}, {"layers": 3}, {"seed": 7}, {"threads": 2}]
    + [{"through_diffusivity": True}, {"mu": 0.6}, {"cutoff": 1e-2}, {"device": "cpu"}],
)
def test_settings_of_smoothing_the_seed_and_the_machine_are_not_in_the_key(same):
    plain = prefix_of(parse({"method": "mse"}).model_dump())
    assert prefix_of(smoothing(b=0.1)).key == prefix_of(smoothing(b=0.2, **same)).key == plain.key


@pytest.mark.parametrize(
    "other",
    [{"weight_decay": 1e-2}, {"epochs": 21}, {"metric": "nll"}, {"output": "identity"}]
    + [{"reduction": "mean"}, {"lr": 0.2}, {"fraction": 0.5}, {"eval_every": 2}]
    + [{"precision": "bf16"}, {"schedule": "cosine"}, {"optimizer": "adam"}, {"batch_size": 64}],
)
def test_what_a_plain_epoch_depends_on_is_in_the_key(other):
    assert prefix_of(smoothing(b=0.1)).key != prefix_of(smoothing(b=0.1, **other)).key


def test_settings_of_plugins_are_in_the_key():
    own = [{**smoothing(b=0.1), "plugin_settings": {"width": n}} for n in (1, 2)]
    assert prefix_of(own[0]).key != prefix_of(own[1]).key


@pytest.mark.parametrize(
    ("prefixes", "shared"),
    [
        ([48, 32, 26], 58),
        ([32, 26, 48], 58),
        ([26, 32, 48], 58),
        ([32], 0),
        ([], 0),
        ([32, 32], 32),
    ],
)
def test_each_epoch_of_a_prefix_is_trained_once_in_any_order(prefixes, shared):
    assert shared_epochs(prefixes, [26, 32]) == shared


def test_a_run_forks_at_the_last_checkpoint_before_its_own_fork():
    assert shared_epochs([48, 29], [10, 20, 30]) == 20


@pytest.mark.parametrize("kind", [Laplace, Logistic])
def test_a_scale_below_the_cutoff_is_zero_before_and_after_the_peak(kind):
    cut, whole = kind(0.75, 0.3, cutoff=1e-3), kind(0.75, 0.3)
    for progress in (0.0, 0.5, 0.6, 0.75, 0.9, 1.0):
        scale = whole(progress)
        assert cut(progress) == (scale if scale >= 1e-3 else 0.0)
    assert cut(0.0) == 0.0 and cut(0.75) == 1.0


@pytest.mark.parametrize("cutoff", [-0.1, 1.0])
def test_a_cutoff_outside_its_range_is_refused(cutoff):
    with pytest.raises(ValueError, match="cutoff must be at least 0 and below 1"):
        Laplace(0.75, 0.5, cutoff=cutoff)
