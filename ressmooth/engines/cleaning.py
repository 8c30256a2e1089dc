"""Find and remove files of a home that nothing needs any more. Results are never among them.

Only files whose names ressmooth gives are removed. Symbolic links are neither followed nor removed,
and nothing of a study that is queued, running, stopping or stopped is touched. What is deleted in
MLflow is left to MLflow's own command.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ressmooth import paths
from ressmooth.config import DatasetName, RunConfig, is_own
from ressmooth.errors import ConfigError, RessmoothError, StudyBusy, TrackingError
from ressmooth.formatting import count
from ressmooth.spec import read_stored
from ressmooth.store import RunFiles, Store, StudyState
from ressmooth.tracking import garbage
from ressmooth.tracking.garbage import Garbage
from ressmooth.training.decoded import own_key

if TYPE_CHECKING:
    from ressmooth.search.planner import Planner

DAY = 86400.0  # seconds
ENDED = (StudyState.ENDED, StudyState.FAILED)
TEMPORARY = r"\.[0-9a-f]{8}\.tmp"  # of a writer that was killed
CHECKPOINT = re.compile(
    rf"(epoch|fork)-\d{{6,}}\.(pt|corrupt)({TEMPORARY})?|best\.safetensors{TEMPORARY}"
)
WEIGHTS = re.compile(r"best\.safetensors")
UID = re.compile(r"[0-9a-f]{32}")
DATASETS = "|".join([*get_args(DatasetName), "(images|npz)-[0-9a-f]{16}"])
DECODED = re.compile(rf"({DATASETS})-[0-9a-f]{{64}}\.pt")
REPORT = re.compile(r"index\.html|report\.md|comparison\.(csv|json)|\d\d-[\w-]+\.(svg|png)")
BACKUP = re.compile(r"results\.db\.\d{4}-\d{8}-\d{6}\.backup")

# What leftovers are, in the order in which they are shown
CHECKPOINTS = "checkpoints of ended runs"
RUNS = "files of runs that are not recorded"
DATA = "decoded data sets that no study uses"
REPORTS = "files of deleted studies' reports"
BACKUPS = "backups of the database before the newest"
KINDS = (CHECKPOINTS, RUNS, DATA, REPORTS, BACKUPS)


@dataclass(frozen=True)
class Leftover:
    """A file, or an empty directory, that can go."""

    kind: str
    path: Path
    size: int  # bytes
    modified: float  # seconds since 1970
    study_id: int | None = None  # whose lease it takes to remove it


@dataclass
class Found:
    leftovers: list[Leftover] = field(default_factory=list)
    garbage: Garbage = field(default_factory=Garbage)  # of MLflow
    notes: list[str] = field(default_factory=list)  # why something is left out

    @property
    def size(self) -> int:
        """Return the bytes that all of it takes."""
        return sum(each.size for each in self.leftovers) + self.garbage.size

    def summary(self) -> Iterator[str]:
        """Yield a line for each kind of leftover."""
        for kind in KINDS:
            some = [each for each in self.leftovers if each.kind == kind]
            if some:
                yield f"{len(some)} {kind}: {sum(each.size for each in some) / 1e6:.1f} MB"
        if self.garbage.number:
            yield str(self.garbage)


def find(store: Store, home: Path, days: int = 0) -> Found:
    """Return what can go, and is older than so many days."""
    runs = _directories(home / "runs")  # before the Store is read: a run is recorded first
    reports = _directories(home / "reports")
    decoded = list(_files(home / "data", DECODED))
    found = Found()
    recorded = {run.uid: run for run in store.run_files()}
    for directory in runs:
        if run := recorded.get(directory.name):
            found.leftovers += _checkpoints(directory, run)
    found.leftovers += _unrecorded(store, home, runs, reports, recorded, found.notes)
    used = _used_datasets(store)
    for path in decoded:
        key, _, _ = path.name.rpartition("-")
        if used is not None and used.isdisjoint((key, key.partition("-")[0])):
            found.leftovers += _leftovers(DATA, [path])
    backups = sorted(
        _files(home, BACKUP), key=lambda path: path.name.split(".")[2].partition("-")[2]
    )
    found.leftovers += _leftovers(BACKUPS, backups[:-1])
    until = time.time() - days * DAY
    found.leftovers = [each for each in found.leftovers if each.modified <= until or not days]
    try:
        found.garbage = garbage.find(home, days)
    except TrackingError as error:
        found.notes.append(str(error))
    if advice := garbage.advice(home):
        found.notes.append(advice)
    return found


def remove_forks(store: Store, planner: "Planner", home: Path) -> None:
    """Remove the checkpoints that the runs of a study left for each other. It has ended."""
    if planner.has_forks:
        for trial in store.each_trial(planner.study_id):
            for run in trial.runs:
                paths.remove_forks(paths.run_directory(home, run.uid))


def _is_own(store: Store, home: Path) -> bool:
    """Tell whether the Store is the SQLite file of the home."""
    own, used = home / "results.db", store.database.path
    return used is not None and own.exists() and own.samefile(used)


def free(store: Store, home: Path, leftovers: Sequence[Leftover]) -> tuple[int, list[Path]]:
    """Remove leftovers that still are some. Return the freed bytes, and what cannot be removed."""
    freed, kept = 0, []
    with ExitStack() as stack:
        held: set[int | None] = {None}
        for study_id in {each.study_id for each in leftovers} - held:
            assert study_id is not None
            with suppress(StudyBusy):  # somebody resumes it
                stack.enter_context(store.hold(study_id))
                held.add(study_id)
        chosen = {each.path for each in leftovers}
        for each in find(store, home).leftovers:
            if each.path in chosen and each.study_id in held:
                if _remove(each.path):
                    freed += each.size
                else:
                    kept.append(each.path)
    return freed, kept


def _remove(path: Path) -> bool:
    try:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def _checkpoints(directory: Path, run: RunFiles) -> Iterator[Leftover]:
    if run.state.is_terminal and run.study_state in ENDED:
        yield from _leftovers(CHECKPOINTS, _files(directory, CHECKPOINT), run.study_id)


def _unrecorded(
    store: Store,
    home: Path,
    runs: Sequence[Path],
    reports: Sequence[Path],
    recorded: dict[str, RunFiles],
    notes: list[str],
) -> Iterator[Leftover]:
    """Yield the files of runs and studies that the Store does not know.

    They are kept if they may belong to another database.
    """
    own = home / "results.db"
    if own.exists() and not _is_own(store, home):
        notes.append(f"{own} is another database; files of its runs and studies are kept")
        return
    unknown = [path for path in runs if path.name not in recorded]
    if unknown and len(unknown) == len(runs):
        notes.append(
            f"none of the {len(runs)} directories in {home / 'runs'} belongs to a recorded run; "
            "is this the right database? They are kept"
        )
    else:
        for directory in unknown:
            yield from _tree(RUNS, directory, re.compile(f"{CHECKPOINT.pattern}|{WEIGHTS.pattern}"))
    studies = {study.uid for study in store.studies()}
    for directory in reports:
        if studies and directory.name not in studies:
            yield from _tree(REPORTS, directory, REPORT)


def _tree(kind: str, directory: Path, names: re.Pattern[str]) -> Iterator[Leftover]:
    """Yield our files of a directory, then the directory if there are no others in it."""
    is_ours = True
    for entry in _entries(directory):
        if entry.is_dir(follow_symlinks=False) and entry.name == "figures":
            yield from _tree(kind, Path(entry.path), names)
        elif entry.is_file(follow_symlinks=False) and names.fullmatch(entry.name):
            yield from _leftovers(kind, [Path(entry.path)])
        else:
            is_ours = False
    if is_ours:
        yield from _leftovers(kind, [directory])


def _leftovers(
    kind: str, paths: Sequence[Path] | Iterator[Path], study_id: int | None = None
) -> Iterator[Leftover]:
    for path in paths:
        with suppress(FileNotFoundError):
            status = path.lstat()
            size = 0 if path.is_dir() else status.st_size
            yield Leftover(kind, path, size, status.st_mtime, study_id)


def _used_datasets(store: Store) -> set[str] | None:
    """Return the keys of decoded data sets that studies use, or None if that is unknown.

    Of own data that cannot be read now, all of its kind are in use.
    """
    used = store.datasets()
    default = RunConfig.model_fields["dataset"].default
    try:
        for study in store.studies():
            for branch in read_stored(study.spec).branches:
                values = branch.values
                used.add((values.get("dataset", default), values.get("image_size", 0)))
    except RessmoothError:  # it was written by another version, or needs a missing plug-in
        return None
    keys: set[str] = set()
    for name, image_size in used:
        try:
            keys.add(own_key(name, image_size) if is_own(name) else name)
        except OSError:
            keys.add(name.partition(":")[0])
    return keys


def _directories(parent: Path) -> list[Path]:
    """Return the directories that are named by a uid."""
    found = (entry for entry in _entries(parent) if entry.is_dir(follow_symlinks=False))
    return [Path(entry.path) for entry in found if UID.fullmatch(entry.name)]


def _files(directory: Path, names: re.Pattern[str]) -> Iterator[Path]:
    for entry in _entries(directory):
        if entry.is_file(follow_symlinks=False) and names.fullmatch(entry.name):
            yield Path(entry.path)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    """Return what is in a directory, nothing if that is a link or missing."""
    if directory.is_symlink():
        return []
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def keep_days() -> int | None:
    """Return RESSMOOTH_KEEP_DAYS, or None if nothing is removed without being asked for."""
    text = os.environ.get("RESSMOOTH_KEEP_DAYS", "").strip()
    if not text:
        return None
    if not (text.isdecimal() and 0 < int(text) <= 36500):
        raise ConfigError(f"RESSMOOTH_KEEP_DAYS = {text}: a number of days from 1 to 36500")
    return int(text)


def clean_old(url: str, home: Path, days: int, report: Callable[[str], None]) -> None:
    """Remove leftovers that are older than so many days."""
    with closing(Store(url)) as store:
        found = find(store, home, days)
        if found.leftovers:
            freed, kept = free(store, home, found.leftovers)
            files = count(len(found.leftovers) - len(kept), "file")
            report(f"removed {files} older than {count(days, 'day')}: {freed / 1e6:.1f} MB")
        if found.garbage.number:
            garbage.remove(home, days)
            report(f"removed {found.garbage}")


class Retention(threading.Thread):
    """Removes old leftovers once a day. It has its own Store and never raises."""

    def __init__(self, url: str, home: Path, days: int, report: Callable[[str], None]) -> None:
        super().__init__(name="retention", daemon=True)
        self.url, self.home, self.days, self.report = url, home, days, report

    def run(self) -> None:
        while True:
            try:
                clean_old(self.url, self.home, self.days, self.report)
            except Exception as error:
                self.report(f"cannot remove old files: {error}")
            time.sleep(DAY)
