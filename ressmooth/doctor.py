"""Is everything here that a study needs?"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ressmooth.errors import RessmoothError

ROOM = 1.0  # GB below which the disk is called full


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    fine: bool = True


def examine(home: Path) -> list[Finding]:
    checks = (_torch, _database, _mlflow, _ray, _disk, _data)
    return [finding for check in checks for finding in check(home)]


def _torch(home: Path) -> Iterator[Finding]:
    import torch

    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("CUDA", ", ".join(names))
    else:
        driver = Path("/proc/driver/nvidia").exists()
        yield Finding("CUDA", "a driver, but torch sees no GPU" if driver else "no GPU", not driver)


def _database(home: Path) -> Iterator[Finding]:
    from ressmooth.store import Store, default_url, safe_url

    url = default_url(home)
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        yield Finding("database", f"{url}: not there yet; the first study makes it")
        return

    def count() -> str:
        with closing(Store(url)) as store:
            return f"{safe_url(url)}, {len(store.studies())} studies"

    yield _tried("database", count)


def _mlflow(home: Path) -> Iterator[Finding]:
    from ressmooth import tracking

    yield _tried("MLflow", lambda: tracking.check(home))


def _ray(home: Path) -> Iterator[Finding]:
    address = os.environ.get("RAY_ADDRESS")
    try:
        where = f"cluster at {address}" if address else "no RAY_ADDRESS: one of its own on demand"
        yield Finding("Ray", f"{version('ray')}, {where}")
    except PackageNotFoundError:
        yield Finding("Ray", "not installed: pip install 'ressmooth[ray]'", fine=not address)


def _disk(home: Path) -> Iterator[Finding]:
    place = home.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 1e9
    fine = free > ROOM and os.access(place, os.W_OK)
    yield Finding("disk", f"{home}: {free:.1f} GB free", fine)


def _data(home: Path) -> Iterator[Finding]:
    from ressmooth.data import present

    names = present(home / "data")
    yield Finding("data", f"here: {', '.join(names)}; others are downloaded on first use")


def _tried(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, check())
    except RessmoothError as error:
        return Finding(what, str(error), fine=False)
