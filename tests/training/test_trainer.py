import dataclasses
import hashlib
from statistics import fmean
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from helpers.nvml import Nvml

from ressmooth.config import COSTS, METRIC, MetricName
from ressmooth.errors import CheckpointError, ConfigError
from ressmooth.training import checkpoint
from ressmooth.training.gpu import Monitor, gpu_uuid
from ressmooth.training.trainer import EVALUATION_BATCH, SAME_BITS, Trainer, train


def run(config, data, state=None, stop_after=None):
    """Train. Return the result and each epoch's state, as checkpoints would hold it."""
    states = []

    def report(epoch, state):
        states.append(state())
        if epoch.epoch == stop_after:
            raise KeyboardInterrupt

    try:
        return train(config, report, data=data, state=state), states
    except KeyboardInterrupt:
        return None, states


def weights_hash(state):
    digest = hashlib.sha256()
    for group in ("model", "best_weights"):
        for name, tensor in sorted(state[group].items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def untimed(curve):
    return [dataclasses.replace(epoch, **dict.fromkeys(COSTS, 0.0)) for epoch in curve]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_learns_digits(tiny, tmp_path, precision):
    result, _ = run(tiny(fraction=1.0, epochs=6, precision=precision), tmp_path)
    assert result.max_acc > 90


def test_a_run_depends_on_its_seed(tiny, tmp_path):
    first, _ = run(tiny(seed=1), tmp_path)
    again, _ = run(tiny(seed=1), tmp_path)
    other, _ = run(tiny(seed=2), tmp_path)
    assert untimed(first.curve) == untimed(again.curve)
    assert untimed(first.curve) != untimed(other.curve)


def test_the_use_of_a_gpu_is_in_the_curve_and_changes_nothing_else(tiny, tmp_path, monkeypatch):
    nvml = Nvml(2).install(monkeypatch)
    unmeasured, measured = Trainer(tiny(), tmp_path), Trainer(tiny(), tmp_path)
    assert unmeasured.gpu.read is None and nvml.sessions == 0  # this run is on a CPU
    measured.gpu = Monitor("1")
    while measured.train_epoch() and unmeasured.train_epoch():
        pass
    names = ("gpu_memory_mib", "gpu_utilization_percent", "gpu_power_watts")
    for run, values in ((measured, (3072.0, 50.0, 100.0)), (unmeasured, (None, None, None))):
        assert [tuple(getattr(epoch, name) for name in names) for epoch in run.curve] == [
            values
        ] * run.config.epochs
    assert untimed(measured.curve) == untimed(unmeasured.curve)
    assert weights_hash(measured.state()) == weights_hash(unmeasured.state())


def test_a_gpu_is_known_to_nvml_by_its_uuid(monkeypatch):
    """torch's index counts the devices in CUDA_VISIBLE_DEVICES, NVML's those of the machine."""
    found = {torch.device("cuda"): "a"}
    properties = lambda device: SimpleNamespace(uuid=found[device])  # noqa: E731
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert gpu_uuid(torch.device("cuda")) == "a"
    assert gpu_uuid(torch.device("cpu")) is None


def test_a_state_of_the_version_before_gpus_were_measured_resumes(tiny, tmp_path):
    whole, _ = run(tiny(), tmp_path)
    _, [old] = run(tiny(), tmp_path, stop_after=1)
    for name in (name for name in COSTS if name != "seconds"):
        del old["curve"][0][name]
    resumed, _ = run(tiny(), tmp_path, state=old)
    assert untimed(resumed.curve) == untimed(whole.curve)


def test_a_run_does_not_depend_on_the_state_of_torch(tiny, tmp_path):
    first, _ = run(tiny(), tmp_path)
    torch.rand(17)
    again, _ = run(tiny(), tmp_path)
    assert untimed(first.curve) == untimed(again.curve)


@pytest.mark.parametrize("stop_after", [1, 2, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "smoothing", "augmentation": "crop-flip"},
        {"augmentation": "crop", "crop_padding": 1, "padding": 2, "drop_last": False},
        {"method": "adaptive_decay", "schedule": "cosine"},
        {"optimizer": "adam", "method": "label_smoothing", "selection": "holdout"},
        {"optimizer": "adagrad", "method": "cross_entropy", "eval_every": 2},
        {"optimizer": "adamw", "schedule": "cosine", "warmup_epochs": 2},
        {"method": "cross_entropy", "label_smoothing": 0.1, "nesterov": True, "precision": "fp16"},
    ],
    ids=lambda settings: "-".join(settings.values() if all(
        isinstance(v, str) for v in settings.values()) else map(str, settings.values())),
)  # fmt: skip
def test_resumes_bit_for_bit_after_any_epoch(tiny, tmp_path, settings, stop_after):
    config = tiny(**settings, epochs=4)
    whole, states = run(config, tmp_path)
    _, stopped = run(config, tmp_path, stop_after=stop_after)
    checkpoint.save(tmp_path / "c.pt", stopped[-1])
    resumed, rest = run(config, tmp_path, state=checkpoint.load(tmp_path / "c.pt"))
    assert len(rest) == 4 - stop_after
    assert weights_hash(rest[-1]) == weights_hash(states[-1])
    assert untimed(resumed.curve) == untimed(whole.curve)
    assert (resumed.max_acc, resumed.mean_acc) == (whole.max_acc, whole.mean_acc)
    assert resumed.test_acc == whole.test_acc


def test_resuming_without_the_optimizers_state_changes_the_weights(tiny, tmp_path):
    """Guards the test above: it would detect lost momentum."""
    config = tiny(epochs=4)
    _, states = run(config, tmp_path)
    _, stopped = run(config, tmp_path, stop_after=2)
    stopped[-1]["optimizer"] = Trainer(config, tmp_path).optimizer.state_dict()
    _, rest = run(config, tmp_path, state=stopped[-1])
    assert weights_hash(rest[-1]) != weights_hash(states[-1])


def test_an_fp16_state_holds_the_scale_of_the_loss(tiny, tmp_path):
    trainer = Trainer(tiny(precision="fp16"), tmp_path)
    trainer.train_epoch()
    trainer.scaler.update(new_scale=8.0)
    resumed = Trainer(tiny(precision="fp16"), tmp_path)
    resumed.restore(trainer.state())
    assert resumed.scaler.get_scale() == 8.0


def test_an_fp16_step_that_overflows_is_skipped_and_lowers_the_scale(tiny, tmp_path):
    trainer = Trainer(tiny(precision="fp16"), tmp_path)
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.scaler = torch.GradScaler("cpu", init_scale=2.0**40)
    images, labels = next(trainer.batches.epoch(1))
    trainer._step(images, labels, 0.5)
    assert trainer.scaler.get_scale() == 2.0**39
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_a_state_of_an_earlier_version_has_the_defaults_of_newer_settings(tiny, tmp_path):
    _, states = run(tiny(), tmp_path, stop_after=1)
    for newer in ("nesterov", "warmup_epochs", "label_smoothing"):
        del states[-1]["config"][newer]
    del states[-1]["scaler"]
    Trainer(tiny(), tmp_path).restore(states[-1])
    with pytest.raises(CheckpointError, match="warmup_epochs is 0, not 2"):
        Trainer(tiny(warmup_epochs=2), tmp_path).restore(states[-1])


def test_a_finished_run_trains_nothing_more(tiny, tmp_path):
    whole, states = run(tiny(), tmp_path)
    again, rest = run(tiny(), tmp_path, state=states[-1])
    assert rest == []
    assert again.max_acc == whole.max_acc


def test_max_and_mean_accuracy_are_those_of_the_curve(tiny, tmp_path):
    result, _ = run(tiny(epochs=11, fraction=0.1), tmp_path)
    accuracies = [epoch.val_acc for epoch in result.curve]
    assert result.max_acc == max(accuracies)
    assert result.mean_acc == fmean(accuracies[-2:])  # a tenth of 11, rounded up
    assert result.test_acc == accuracies[-1]


def test_best_weights_are_those_of_the_best_epoch(tiny, tmp_path):
    _, states = run(tiny(epochs=6, lr=0.5), tmp_path)
    final = states[-1]
    accuracies = [row["val_acc"] for row in final["curve"]]
    trainer = Trainer(tiny(epochs=6, lr=0.5), tmp_path)
    trainer.model.load_state_dict(final["best_weights"])
    assert trainer._evaluate(trainer.validation)[1].accuracy == pytest.approx(max(accuracies))


@pytest.mark.parametrize("metric", get_args(MetricName))
def test_the_metric_selects_the_best_epoch(tiny, tmp_path, metric):
    config = tiny(epochs=6, lr=0.5, metric=metric)
    result, states = run(config, tmp_path)
    column, is_higher_better, _ = METRIC[metric]
    values = [row[column] for row in states[-1]["curve"]]
    best = max(values) if is_higher_better else min(values)
    trainer = Trainer(config, tmp_path)
    trainer.model.load_state_dict(states[-1]["best_weights"])
    assert getattr(trainer._evaluate(trainer.validation)[1], metric) == pytest.approx(best)
    statistics = {**result.metrics, "accuracy": {"max": result.max_acc, "mean": result.mean_acc}}
    assert statistics[metric]["max"] == best
    assert statistics[metric]["mean"] == values[-1]  # a tenth of six epochs


def test_evaluation_is_sparse_before_the_last_tenth(tiny, tmp_path):
    result, _ = run(tiny(epochs=11, fraction=0.1, eval_every=4), tmp_path)
    evaluated = [epoch.epoch for epoch in result.curve if epoch.val_acc is not None]
    assert evaluated == [4, 8, 10, 11]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", SAME_BITS)
def test_an_evaluation_in_small_passes_has_the_bits_of_one_pass(tiny, tmp_path, model, precision):
    trainer = Trainer(tiny(model=model, precision=precision), tmp_path)
    trainer._step(*next(trainer.batches.epoch(1)), 0.5)  # so that running statistics differ
    passes = []
    trainer.model.register_forward_pre_hook(lambda _, images: passes.append(len(images[0])))
    small = [trainer._evaluate(trainer.validation[torch.arange(n)]) for n in (126, 360)]
    assert passes == [63, 63, 120, 120, 120]
    trainer.pass_size = EVALUATION_BATCH
    large = [trainer._evaluate(trainer.validation[torch.arange(n)]) for n in (126, 360)]
    assert passes[5:] == [126, 360]
    assert small == large


def test_scale_and_diffusivity_follow_the_annealing(tiny, tmp_path):
    result, _ = run(tiny(epochs=8, method="smoothing", mu=0.75, alpha=0.0), tmp_path)
    scales = [epoch.scale for epoch in result.curve]
    assert scales.index(max(scales)) in (5, 6)  # the peak lies between epochs 6 and 7
    for epoch in result.curve:
        assert epoch.diffusivity == pytest.approx(epoch.scale / 2, rel=1e-5)


def test_without_smoothing_there_is_no_scale(tiny, tmp_path):
    result, _ = run(tiny(method="mse", epochs=1), tmp_path)
    assert (result.curve[0].scale, result.curve[0].diffusivity) == (0.0, 0.0)


def test_progress_advances_every_iteration(tiny, tmp_path):
    seen = []
    trainer = Trainer(tiny(epochs=2), tmp_path)
    trainer.loss.register_forward_pre_hook(lambda _, given: seen.append(given[2]))
    while trainer.train_epoch():
        pass
    steps = len(trainer.batches)
    assert seen == [i / (2 * steps) for i in range(2 * steps)]


@pytest.mark.parametrize("lr", [1e4, 1e6])
def test_a_diverged_run_names_the_epoch(tiny, tmp_path, lr):
    result, states = run(tiny(method="mse", output="identity", lr=lr), tmp_path)
    assert result.diverged_at == len(result.curve) + 1 == len(states) + 1
    assert result.outcome == f"diverged at epoch {result.diverged_at}"
    assert result.max_acc is None and result.mean_acc is None


def test_holdout_validates_on_a_tenth_of_the_training_set(tiny, tmp_path):
    trainer = Trainer(tiny(selection="holdout"), tmp_path)
    assert len(trainer.validation) == 144  # a tenth of 1437
    assert len(trainer.test) == 360


def test_a_step_changes_every_parameter_of_every_network(tiny, tmp_path):
    for model in ("small", "resnet20", "resnet56", "densenet_bc_100_12"):
        for precision in ("fp32", "bf16"):
            config = tiny(model=model, precision=precision, channels_last=precision == "fp32")
            trainer = Trainer(config, tmp_path)
            before = [p.clone() for p in trainer.model.parameters()]
            images, labels = next(trainer.batches.epoch(1))
            trainer._step(images[:8], labels[:8], 0.5)
            moved = [
                not torch.equal(a, b)
                for a, b in zip(before, trainer.model.parameters(), strict=True)
            ]
            assert all(moved), (model, precision)


def test_the_memory_layout_does_not_change_the_loss(tiny, tmp_path):
    first, _ = run(tiny(channels_last=True, epochs=1), tmp_path)
    other, _ = run(tiny(channels_last=False, epochs=1), tmp_path)
    assert first.curve[0].train_loss == pytest.approx(other.curve[0].train_loss, rel=1e-3)


def test_a_state_of_another_configuration_is_refused(tiny, tmp_path):
    _, states = run(tiny(lr=0.1), tmp_path, stop_after=1)
    with pytest.raises(CheckpointError, match="lr is 0.1, not 0.2"):
        Trainer(tiny(lr=0.2), tmp_path).restore(states[-1])


def test_a_state_with_parts_missing_is_refused(tiny, tmp_path):
    _, states = run(tiny(), tmp_path, stop_after=1)
    del states[-1]["optimizer"]
    with pytest.raises(CheckpointError, match="does not fit"):
        Trainer(tiny(), tmp_path).restore(states[-1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_missing_gpu_is_an_error_that_names_the_setting(tiny, tmp_path):
    with pytest.raises(ConfigError, match="use 'auto' or 'cpu'"):
        Trainer(tiny(device="cuda"), tmp_path)


def test_an_epoch_in_which_the_scale_passes_the_cutoff_has_smoothed_and_plain_steps(tiny, tmp_path):
    config = tiny(method="smoothing", b=0.5, mu=0.5, cutoff=0.1, epochs=2, batch_size=16)
    trainer = Trainer(config, tmp_path)
    first = trainer.train_epoch()
    steps = len(trainer.batches)
    scales = [trainer.annealing(step / (2 * steps)) for step in range(steps)]
    assert 0 < sum(scale == 0 for scale in scales) < steps
    assert first.scale == pytest.approx(sum(scales) / steps)
    assert 0 < first.diffusivity < first.scale  # kappa is below s, and 0 in plain steps
