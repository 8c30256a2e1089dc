"""Commands that maintain a home directory, and the checks of `ressmooth doctor`."""

import json
import os
import shutil
import sys
from contextlib import closing
from ctypes import CDLL
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import click

from ressmooth.cli import main, open_home, with_home
from ressmooth.config import BUILT_IN, DatasetName
from ressmooth.errors import RessmoothError, TrackingError
from ressmooth.formatting import count
from ressmooth.paths import (
    DEBIAN_FASHION_MNIST,
    check_writable,
    make_home,
    nearest_place,
)

CPU_INFO = Path("/proc/cpuinfo")
DRIVERS = ("/proc/driver/nvidia", "/dev/dxg", "/dev/kfd")  # NVIDIA, Windows' subsystem, AMD
MIN_FREE_GB = 1.0  # below this, the disk counts as full


@main.command()
@click.argument(
    "names", nargs=-1, required=True, metavar="DATASET...", type=click.Choice(get_args(DatasetName))
)
@with_home
def fetch(names: tuple[str, ...], home: Path) -> None:
    """Download and decode each DATASET, as a study does by itself."""
    from ressmooth.training import datasets

    for name in names:
        found = datasets.load(name, home / "data")
        click.echo(f"{name}: {len(found.train):,} training images, {len(found.test):,} test images")


@main.command()
@click.option("--retry-rejected", is_flag=True, help="also what MLflow rejected before")
@with_home
def sync(retry_rejected: bool, home: Path) -> None:
    """Deliver pending events to MLflow, and messages to the webhook."""
    from ressmooth.tracking import relay, webhook
    from ressmooth.tracking.server import tracking_uri

    store, address = open_home(home), webhook.webhook_address()
    unanswered = None
    if retry_rejected:
        click.echo(f"{count(store.unreject(), 'rejected event')} will be sent again")
    if address:
        try:
            messages = webhook.send_pending(store, home, address)
            click.echo(f"{count(messages, 'message')} sent to the webhook")
        except TrackingError as error:
            unanswered = error  # MLflow may answer
    sent = relay.sync(store, home, tracking_uri(home))
    click.echo(f"{sent} events delivered")
    if unanswered:
        raise unanswered


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), default=5000)
@with_home
def ui(port: int, home: Path) -> None:
    """Serve every study, its report and its curves, on 127.0.0.1."""
    from ressmooth.tracking import server

    server.serve(home, port, click.echo)


@main.group()
def db() -> None:
    """Maintain the database."""


@db.command()
@with_home
def upgrade(home: Path) -> None:
    """Upgrade the database to the schema of this version."""
    from ressmooth import store

    make_home(home)
    url = store.default_url(home)
    before, after = store.upgrade(url)
    result = "is already at" if before == after else f"upgraded from {before or 'nothing'} to"
    click.echo(f"{store.safe_url(url)} {result} {after}")


@main.command()
@click.option(
    "--plugin",
    "plugin_files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="add the names and settings of a plug-in",
)
def schema(plugin_files: tuple[Path, ...]) -> None:
    """Print the JSON Schema of study files, for editors."""
    from ressmooth import plugins
    from ressmooth.spec.json_schema import study_schema
    from ressmooth.spec.reader import SETTINGS

    click.echo(json.dumps(study_schema(plugins.find(plugin_files, SETTINGS)), indent=1))


def _torch(home: Path) -> str:
    """Load torch's libraries, which finds missing and damaged ones in a fifth of torch's time."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise RessmoothError("not installed: pip install torch")
    try:
        CDLL(str(Path(spec.origin).parent / "lib" / "libtorch_python.so"))
    except OSError:
        try:  # it can also load libraries in other ways
            import_module("torch")
        except (ImportError, OSError) as error:
            raise RessmoothError(f"cannot be loaded: {error}") from error
    return version("torch")


def _cpu(home: Path) -> str:
    cores = count(len(os.sched_getaffinity(0)), "core")
    if "avx512_bf16" in CPU_INFO.read_text():
        return f'{cores} with avx512_bf16: precision = "bf16" is faster than fp32 here'
    return f'{cores} without avx512_bf16: precision = "bf16" is slower than fp32 here'


def _cuda(home: Path) -> str:
    """Ask torch for its GPUs, which takes seconds, if NVML or a file of a driver says so."""
    from ressmooth.training.gpu import driver_version, gpus

    found, driver = gpus(), driver_version()
    if not found and not any(Path(each).exists() for each in DRIVERS):
        return "no GPU"
    import torch

    if not torch.cuda.is_available():
        raise RessmoothError(
            f"driver {driver or 'unknown to NVML'}, but torch finds no GPU; is the driver new "
            f"enough for CUDA {torch.version.cuda}? See nvidia-smi"
        )
    shown = "; ".join(map(_gpu, range(torch.cuda.device_count())))
    parts = sum(len(gpu.parts) for gpu in found)
    divided = f", divided into {count(parts, 'MIG instance')}" if parts else ""
    return f"{shown}{divided}; driver {driver}, CUDA {torch.version.cuda}"


def _gpu(index: int) -> str:
    """Describe a GPU, or raise a RessmoothError if torch has no kernels for it."""
    from torch import cuda

    from ressmooth.training.device import NEEDS, unsupported

    name, capability = cuda.get_device_name(index), cuda.get_device_capability(index)
    if problem := unsupported(name, capability, cuda.get_arch_list()):
        raise RessmoothError(problem)
    memory = cuda.get_device_properties(index).total_memory / 2**30
    lacks = [precision for precision, needed in NEEDS.items() if capability < needed]
    without = f", without {' and '.join(lacks)}" if lacks else ""
    return f"{name} ({memory:.0f} GiB, compute capability {capability[0]}.{capability[1]}{without})"


def _database(home: Path) -> str:
    from ressmooth.store import Store, default_url, safe_url

    url = default_url(home)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return f"{url}: does not exist yet; the first study creates it"
    with closing(Store(url)) as store:
        return f"{safe_url(url)}, {len(store.studies())} studies"


def _mlflow(home: Path) -> str:
    from ressmooth.tracking import server

    return server.check(home)


def _ray(home: Path) -> str:
    address = os.environ.get("RAY_ADDRESS")
    cluster = f"cluster at {address}" if address else "RAY_ADDRESS is not set: this machine only"
    try:
        return f"{version('ray')}, {cluster}"
    except PackageNotFoundError:
        missing = "not installed: pip install 'ressmooth[ray]'"
        if address:
            raise RessmoothError(missing) from None
        return missing


def _disk(home: Path) -> str:
    free_gb = shutil.disk_usage(nearest_place(home)).free / 1e9
    found = f"{home}: {free_gb:.1f} GB free"
    if free_gb <= MIN_FREE_GB:
        raise RessmoothError(found)
    return found


def _data(home: Path) -> str:
    data = home / "data"
    is_present = {
        "fashion_mnist": DEBIAN_FASHION_MNIST.is_dir() or (data / "FashionMNIST").is_dir(),
        "cifar10": (data / "cifar-10-batches-py").is_dir(),
        "cifar100": (data / "cifar-100-python").is_dir(),
        "svhn": (data / "train_32x32.mat").is_file(),
    }
    names = [*BUILT_IN, *(name for name, found in is_present.items() if found)]
    return f"present: {', '.join(names)}; others are downloaded on first use"


CHECKS = {
    "CPU": _cpu,
    "torch": _torch,
    "CUDA": _cuda,
    "database": _database,
    "MLflow": _mlflow,
    "Ray": _ray,
    "disk": _disk,
    "data": _data,
}


@main.command()
@with_home
def doctor(home: Path) -> None:
    """Check torch, CUDA, the database, MLflow, Ray, disk and data."""
    check_writable(home)
    is_ok = True
    for subject, check in CHECKS.items():
        try:
            click.echo(f"ok   {subject}: {check(home)}")
        except RessmoothError as error:
            click.echo(f"BAD  {subject}: {error}")
            is_ok = False
    sys.exit(0 if is_ok else 1)
