"""Train on the emulated GPU, as it is and with bugs planted. Prints what was found as JSON.

A process of its own: `python gpu_checks.py`, from tests/training/test_emulated_gpu.py.
"""

import dataclasses
import io
import json
import os
import sys
import tempfile
import traceback
import warnings
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parent))
import emulated_cuda  # noqa: E402

emulated_cuda.prepare()
torch.set_num_threads(1)

from ressmooth.config import COSTS, parse  # noqa: E402
from ressmooth.engines import runner  # noqa: E402
from ressmooth.training import checkpoint, data, device, trainer  # noqa: E402
from ressmooth.training.trainer import Trainer  # noqa: E402

HOME = Path(tempfile.mkdtemp())
BASE = {"dataset": "digits", "model": "small", "epochs": 2, "fraction": 0.2, "batch_size": 48}
VARIANTS = [
    {"augmentation": "crop-flip"},
    {"precision": "bf16", "augmentation": "flip", "channels_last": False},
    {"precision": "fp16"},
    {"method": "adaptive_decay", "schedule": "cosine"},
    {"optimizer": "adam", "method": "label_smoothing", "selection": "holdout"},
    {"optimizer": "adagrad", "method": "cross_entropy"},
    {"optimizer": "adamw", "method": "mse", "deterministic": False},
    {"model": "resnet20", "fraction": 0.05},
]
QUICK = VARIANTS[:1]  # enough for a planted bug


def build(name, settings):
    return Trainer(parse({**BASE, **settings, "device": name, "threads": 1}), HOME)


def train(it):
    while it.train_epoch():
        pass
    return it


def untimed(curve):
    return [dataclasses.replace(epoch, **dict.fromkeys(COSTS, 0.0)) for epoch in curve]


def whole_runs_give_the_bits_of_a_cpu(variants):
    for settings in variants:
        cpu = train(build("cpu", settings))
        with emulated_cuda.gpu():
            gpu = train(build("cuda", settings))
            everything = [*gpu.model.state_dict().values(), *gpu.best_weights.values()]
            assert all(t.is_cuda for t in everything), "weights are not on the GPU"
            assert gpu.result().metrics == cpu.result().metrics
            weights = runner.best_weights(gpu)
        assert untimed(gpu.curve) == untimed(cpu.curve), settings
        assert weights == runner.best_weights(cpu), settings


def the_host_waits_as_often_for_many_steps_as_for_few(variants):
    for settings in variants:
        if settings.get("precision") == "fp16":
            continue  # torch's GradScaler reads at every step whether gradients overflowed
        with emulated_cuda.gpu() as gpu:
            waits = []
            for batch in (48, 12):
                it = build("cuda", {**settings, "batch_size": batch})
                gpu.syncs.clear()
                it._train(1)
                waits.append(list(gpu.syncs))
            assert len(waits[0]) == len(waits[1]), sorted(set(waits[1]))
            batches = it.batches.epoch(1)
            next(batches)
            with gpu.no_sync():
                it._step(*next(batches), 0.5)
            counts = []
            for size in (1000, 50):
                gpu.syncs.clear()
                with mock.patch.object(trainer, "EVALUATION_BATCH", size):
                    it._evaluate(it.validation)
                counts.append(len(gpu.syncs))
            assert counts[0] == counts[1], sorted(set(gpu.syncs))


def checkpoints_go_from_gpu_to_cpu_and_back(variants):
    whole = train(build("cpu", variants[0]))
    path = HOME / "checkpoint.pt"
    for first, second in (("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")):
        with emulated_cuda.gpu():
            begun = build(first, variants[0])
            begun.train_epoch()
            checkpoint.save(path, begun.state())
        if first == "cuda":  # the file says cuda:0, so that map_location matters
            assert "deserialize object on a CUDA" in find(lambda p: torch.load(p), path)
        with emulated_cuda.gpu() if second == "cuda" else nullcontext():
            resumed = build(second, variants[0])
            resumed.restore(checkpoint.load(path))
            train(resumed)
            on_gpu = {t.is_cuda for t in resumed.best_weights.values()}
            assert on_gpu == {second == "cuda"}, "best weights are on the wrong device"
        assert untimed(resumed.curve) == untimed(whole.curve), (first, second)


def the_device_holds_the_images_once(variants):
    with emulated_cuda.gpu() as gpu, gpu.recording() as log:
        it = build("cuda", {**variants[0], "fraction": 1.0})
        size = it.batches.labels.numel() * 64  # pixels without padding
        large = [out for _, out in log if isinstance(out, torch.Tensor) and out.numel() >= size]
        assert len(large) == 1, f"{len(large)} tensors of the size of the training set"


def bits_are_decided_by_settings(variants):
    for settings, products, is_deterministic in (
        ({}, "ieee", True),
        ({"precision": "tf32"}, "tf32", True),
        ({"deterministic": False}, "ieee", False),
    ):
        with emulated_cuda.gpu():
            build("cuda", settings)
            backends = torch.backends
            assert backends.cudnn.allow_tf32 is (products == "tf32"), settings
            assert backends.cuda.matmul.allow_tf32 is (products == "tf32"), settings
            assert torch.are_deterministic_algorithms_enabled() is is_deterministic
            assert backends.cudnn.benchmark is not is_deterministic
            recorded = device.describe(parse(settings))
            assert recorded["TF32"] == ("on" if products == "tf32" else "off")
            assert recorded["deterministic"] == ("on" if is_deterministic else "off")


CHECKS = (
    bits_are_decided_by_settings,
    the_device_holds_the_images_once,
    the_host_waits_as_often_for_many_steps_as_for_few,
    checkpoints_go_from_gpu_to_cpu_and_back,
    whole_runs_give_the_bits_of_a_cpu,
)


# -- bugs: each returns a patch ------------------------------------------------------------------


def patched_crop(change):
    """Return a patch of `_crop`: `change(real, batches, index, first, step)`."""
    real = data.Batches._crop
    return mock.patch.object(data.Batches, "_crop", lambda *args: change(real, *args))


def labels_stay_on_the_cpu():
    real = data.Batches.__init__

    def init(self, *args, **options):
        real(self, *args, **options)
        self.labels = self.labels.cpu()

    return mock.patch.object(data.Batches, "__init__", init)


def normaliser_stays_on_the_cpu():
    return mock.patch.object(data.Normaliser, "to", lambda self, *_: self)


def validation_stays_on_the_cpu():
    return mock.patch.object(data.Images, "to", lambda self, *_: self)


def crops_are_computed_on_the_cpu():
    return patched_crop(lambda real, self, index, first, step: real(self, index, first.cpu(), step))


def flips_by_a_mask():
    def crop(real, self, index, first, step):
        pixels = real(self, index, first, step)
        pixels[step < 0] = pixels[step < 0]
        return pixels

    return patched_crop(crop)


def noise_from_a_generator_of_the_cpu():
    def crop(real, self, index, first, step):
        noise = torch.empty(3, device=index.device).normal_(generator=torch.Generator())
        return real(self, index, first, step) + noise.to(torch.uint8)[0] * 0

    return patched_crop(crop)


def the_loss_is_read_at_every_step():
    def step(self, images, labels, progress, real=Trainer._step):
        logits, loss = real(self, images, labels, progress)
        assert torch.isfinite(loss).item()
        return logits, loss

    return mock.patch.object(Trainer, "_step", step)


def the_loss_is_read_at_every_evaluated_batch():
    def logits(self, images, real=Trainer._logits):
        found = real(self, images)
        assert found.sum().item() is not None
        return found

    return mock.patch.object(Trainer, "_logits", logits)


def images_are_moved_before_they_are_padded():
    real = data.Batches.__init__

    def init(self, train, normalise, size, augmentation, seed, place, **options):
        real(self, train.to(place), normalise, size, augmentation, seed, place, **options)

    return mock.patch.object(data.Batches, "__init__", init)


def checkpoints_are_read_without_map_location():
    def load(path, expected=None):
        return torch.load(io.BytesIO(path.read_bytes()), weights_only=True)

    return mock.patch.object(checkpoint, "load", load)


def best_weights_stay_on_the_cpu():
    def restore(self, state, real=Trainer.restore):
        real(self, state)
        self.best_weights = state["best_weights"]

    return mock.patch.object(Trainer, "restore", restore)


def determinism_is_not_set():
    return mock.patch.object(device, "set_up", lambda *_: None)


def tf32_is_left_on():
    def set_up(place, config, real=device.set_up):
        real(place, config)
        torch.backends.cudnn.allow_tf32 = True

    return mock.patch.object(device, "set_up", set_up)


def an_operator_has_no_deterministic_kernel():
    def step(self, images, labels, progress, real=Trainer._step):
        logits, loss = real(self, images, labels, progress)
        logits.float().histc()
        return logits, loss

    return mock.patch.object(Trainer, "_step", step)


BUGS = (
    labels_stay_on_the_cpu,
    normaliser_stays_on_the_cpu,
    validation_stays_on_the_cpu,
    crops_are_computed_on_the_cpu,
    flips_by_a_mask,
    noise_from_a_generator_of_the_cpu,
    the_loss_is_read_at_every_step,
    the_loss_is_read_at_every_evaluated_batch,
    images_are_moved_before_they_are_padded,
    checkpoints_are_read_without_map_location,
    best_weights_stay_on_the_cpu,
    determinism_is_not_set,
    tf32_is_left_on,
    an_operator_has_no_deterministic_kernel,
)


def find(check, variants):
    """Return what a check found, or None."""
    try:
        check(variants)
    except Exception as error:
        text = str(error).partition("\n")[0]
        return f"{type(error).__name__}: {text}" if text else traceback.format_exc()
    return None


def first_find(bug):
    """Return what the first check that notices a bug found, or None."""
    with bug():
        return next(filter(None, (find(check, QUICK) for check in CHECKS)), None)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    wrong = {check.__name__: find(check, VARIANTS) for check in CHECKS}
    caught = {bug.__name__: first_find(bug) for bug in BUGS}
    print(json.dumps({"checks": wrong, "bugs": caught}), flush=True)
    os._exit(0)  # autograd's thread for the stand-in does not end by itself
