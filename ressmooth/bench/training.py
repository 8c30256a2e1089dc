"""Measure the cost of the method and of the trainer on this machine: `ressmooth bench`."""

import tempfile
import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from torchvision import transforms

from ressmooth.bench.timing import Bench, Row, Work
from ressmooth.config import parse
from ressmooth.smoothing import Constant, SmoothingLoss, diffusivity, residual
from ressmooth.training import models
from ressmooth.training.checkpoint import save
from ressmooth.training.data import Batches, Normaliser
from ressmooth.training.datasets import load
from ressmooth.training.device import set_up
from ressmooth.training.losses import SquaredError
from ressmooth.training.trainer import EVALUATION_BATCH, Trainer

BATCH = 128
OURS = partial(SmoothingLoss(Constant(0.5)), progress=0.5)
PLAIN = SquaredError("softmax", "sum")


def measure(*, quick: bool, device: str, threads: int) -> list[Row]:
    torch.set_num_threads(threads)
    bench = Bench(quick, device)
    if bench.device.type == "cuda":  # kernels count there, so the goals differ
        for part in (measure_step, measure_trainer, measure_determinism, measure_checkpoint):
            part(bench)
        return bench.rows
    method = (measure_loss, measure_step, measure_matrix_form)
    for part in (*method, measure_trainer, measure_evaluation, measure_batches, measure_checkpoint):
        part(bench)
    return bench.rows


def measure_loss(bench: Bench) -> None:
    """G1: compare the smoothing loss with the squared error."""
    unsmoothed = partial(SmoothingLoss(Constant(0.0)), progress=0.5)
    for classes, must in ((10, 2.2), (100, 2.7), (1000, 4.0), (10_000, 3.5)):
        sample = _sample(bench, classes)
        assert torch.equal(unsmoothed(*sample), PLAIN(*sample))
        what = f"loss: smoothing / squared error, M={classes}"
        ours, plain = _forward_backward(OURS, *sample), _forward_backward(PLAIN, *sample)
        bench.compare("G1", what, ours, plain, must=must)


def measure_step(bench: Bench) -> None:
    """G2: compare a training step with the smoothing loss and with the squared error."""
    model, batch = _network(bench, "resnet20"), _batch(bench)
    ours, plain = (partial(_stepper(model, loss), *batch) for loss in (OURS, PLAIN))
    what = "ResNet20 step: smoothing / squared error (paper: 1.67)"
    bench.compare("G2", what, ours, plain, must=1.02 if bench.device.type == "cpu" else 1.03)


def measure_matrix_form(bench: Bench) -> None:
    """G3: compare the paper's M x M layer with ours, and check that ours is linear in M."""
    for classes, must in ((100, 8.0), (1000, 120.0)):
        sample = _sample(bench, classes)
        torch.testing.assert_close(OURS(*sample), literal_loss(*sample))
        what = f"loss: the paper's M x M layer / ours, M={classes}"
        matrix, ours = _forward_backward(literal_loss, *sample), _forward_backward(OURS, *sample)
        bench.compare("G3", what, matrix, ours, must=must, at_most=False)
    large, small = (_forward_backward(OURS, *_sample(bench, classes)) for classes in (10_000, 1000))
    bench.compare("G3b", "loss: ours at M=10000 / M=1000 (linear: 10)", large, small, must=14.0)


def literal_loss(logits: Tensor, target: Tensor, scale: float = 0.5, alpha: float = 1.0) -> Tensor:
    """Return the loss with the paper's fully connected layer: an M x M matrix per sample (22)."""
    d = residual(logits, target)
    kappa = diffusivity(d.detach(), scale, alpha)
    m = d.shape[-1]
    weights = (kappa / (m - 1)).unsqueeze(-1).expand(-1, m, m).clone()  # [B, M, M]
    weights.diagonal(dim1=-2, dim2=-1).copy_(1 - kappa)
    smoothed = (weights @ d.unsqueeze(-1)).squeeze(-1)
    return smoothed.square().sum(-1).mean()


def _sample(bench: Bench, classes: int) -> tuple[Tensor, Tensor]:
    """Return random logits and labels."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(BATCH, classes, generator=generator).to(bench.device)
    target = torch.randint(classes, (BATCH,), generator=generator).to(bench.device)
    return logits.requires_grad_(), target


def _forward_backward(loss: Callable[..., Tensor], logits: Tensor, target: Tensor) -> Work:
    return lambda: torch.autograd.grad(loss(logits, target), logits)


def measure_trainer(bench: Bench) -> None:
    """G4: compare an epoch of the trainer with as many bare steps."""
    for name, must in (("resnet20", 1.03), ("small", 1.20)):
        trainer = _trainer(bench, name)
        bare = partial(_stepper(_network(bench, name), OURS), *_batch(bench))
        bare_epoch = partial(bench.seconds, bare, len(trainer.batches))
        what = f"trainer's epoch / bare steps on one batch, {name}"
        bench.compare("G4", what, partial(trainer._train, 1), bare_epoch, must=must)


def measure_evaluation(bench: Bench) -> None:
    """G16: compare an evaluation in small passes with one in passes of 1,000 images."""
    small, large = _trainer(bench, "resnet20"), _trainer(bench, "resnet20")
    large.pass_size = EVALUATION_BATCH
    images = load("synthetic", Path()).train[torch.arange(EVALUATION_BATCH)]
    assert small._evaluate(images) == large._evaluate(images)
    what = f"ResNet20 evaluation: passes of {small.pass_size} / of {EVALUATION_BATCH:,}"
    bench.compare(
        "G16", what, lambda: small._evaluate(images), lambda: large._evaluate(images), must=0.65
    )


def measure_determinism(bench: Bench) -> None:
    """G4: compare steps that give the same bits again with those that need not."""
    trainer, batch = _trainer(bench, "resnet20"), _batch(bench)

    def step(is_deterministic: bool) -> None:
        config = trainer.config.model_copy(update={"deterministic": is_deterministic})
        set_up(bench.device, config)
        trainer._step(*batch, 0.5)

    what = "ResNet20 step: deterministic / not"
    bench.compare("G4", what, partial(step, True), partial(step, False), must=1.25)


def measure_checkpoint(bench: Bench) -> None:
    """G12: compare saving a checkpoint with the shortest epoch of the paper's studies."""
    trainer = _trainer(bench, "resnet20")
    trainer.train_epoch()  # so that momentum and best weights exist
    step = partial(trainer._step, *_batch(bench), 0.5)
    what = "checkpoint / epoch of 58 ResNet20 steps"  # an eighth of Fashion-MNIST
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkpoint.pt"
        bench.compare("G12", what, lambda: save(path, trainer.state()), step, must=0.01, parts=58)


def _trainer(bench: Bench, model: str) -> Trainer:
    settings = {"dataset": "synthetic", "model": model, "epochs": 1000, "lr": 1e-3}
    fraction = 0.1 if bench.quick else 0.5
    return Trainer(parse({**settings, "device": bench.device.type, "fraction": fraction}), Path())


def _network(bench: Bench, name: str) -> nn.Module:
    torch.manual_seed(0)
    model = models.build(name, num_classes=10, in_channels=3)
    return model.to(bench.device).to(memory_format=torch.channels_last)


def _batch(bench: Bench) -> tuple[Tensor, Tensor]:
    train = load("synthetic", Path()).train
    images = Normaliser(train)(train.pixels[:BATCH])
    return images.to(bench.device), train.labels[:BATCH].to(bench.device)


def _stepper(model: nn.Module, loss: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a bare training step, which returns the logits."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, weight_decay=1e-4)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        logits: Tensor = model(images)
        torch.autograd.backward(loss(logits, labels))
        optimizer.step()
        return logits

    return step


def measure_batches(bench: Bench) -> None:
    """G5: compare a DataLoader of PIL images with our batches, alone and in an epoch."""
    train = load("synthetic", Path()).train.to(bench.device)
    batches = Batches(train, Normaliser(train), BATCH, "crop-flip", 0, bench.device)
    loader = partial(DataLoader, _PilImages(), BATCH, shuffle=True, drop_last=True)
    what = "crop-flip batches: PIL DataLoader / ours"
    theirs, ours = lambda: deque(loader(), 0), lambda: deque(batches.epoch(1), 0)  # keep none
    bench.compare("G5a", what, theirs, ours, must=12.0, at_most=False)
    steps = 2 if bench.quick else 10
    our_step = _stepper(_network(bench, "resnet20"), PLAIN)
    default_layout = _network(bench, "resnet20").to(memory_format=torch.contiguous_format)
    their_step = _stepper(default_layout, PLAIN)

    def their_epoch(workers: int) -> None:
        """Train as most scripts do: default layout, and the accuracy read at every step."""
        for images, labels in islice(loader(num_workers=workers), steps):
            labels = torch.as_tensor(labels).to(bench.device)
            logits = their_step(images.to(bench.device), labels)
            (logits.argmax(1) == labels).sum().item()

    def our_epoch() -> None:
        for images, labels in islice(batches.epoch(1), steps):
            our_step(images, labels)

    candidates = (0,) if bench.quick else (0, 2, 4)
    with warnings.catch_warnings(action="ignore"):  # more workers than cores
        workers = min(candidates, key=lambda n: bench.seconds(partial(their_epoch, n)))
    what = f"ResNet20 epoch: PIL DataLoader with {workers} workers / ours"
    bench.compare("G5b", what, partial(their_epoch, workers), our_epoch, must=1.08, at_most=False)


class _PilImages(TorchDataset[tuple[Tensor, int]]):
    """PIL images with torchvision transforms per sample, as in most training scripts."""

    def __init__(self) -> None:
        train = load("synthetic", Path()).train
        self.pixels, self.labels = train.pixels.numpy(), train.labels.tolist()
        normalise = transforms.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
        augment = transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip()
        self.transform = transforms.Compose([*augment, transforms.ToTensor(), normalise])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]
