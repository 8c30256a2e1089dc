"""Archives: studies with their curves, verdicts and report in one compressed file.

manifest.json            version, and the SHA-256 of every other member
STUDY/study.json         the study's rows
STUDY/report/...         the report: index.html, report.md, comparison.json, figures/
STUDY/weights/RUN.safetensors      with `--weights`, the best weights of each run
"""

import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter, ValidationError

from ressmooth import __version__
from ressmooth.config import parse
from ressmooth.errors import ConfigError, SchemaError, StoreCorrupt
from ressmooth.paths import WEIGHTS, run_directory
from ressmooth.search.steps import aggregate
from ressmooth.spec import StudySpec, read_stored
from ressmooth.store import ArchivedStudy, Imported, Store
from ressmooth.store.migrations import HEAD

VERSION = 1  # of the format
MANIFEST = "manifest.json"
MAX_BYTES = 2**30  # of one member
ROWS = TypeAdapter(ArchivedStudy)
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    NotImplementedError,
    TypeError,
    ValueError,
)  # what zipfile and json raise


def write_archive(
    store: Store, names: Iterable[str], path: Path, home: Path, *, weights: bool = False
) -> None:
    """Write studies into a new file. The same rows give the same bytes."""
    hashes: dict[str, str] = {}
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            for member, content in _members(store, name, home, weights):
                hashes[f"{name}/{member}"] = hashlib.sha256(content).hexdigest()
                _add(file, f"{name}/{member}", content)
        manifest = {
            "format": "ressmooth archive",
            "version": VERSION,
            "schema": HEAD,
            "ressmooth": __version__,
            "sha256": hashes,
        }
        _add(file, MANIFEST, json.dumps(manifest, indent=1).encode())


def _add(file: zipfile.ZipFile, name: str, content: bytes) -> None:
    member = zipfile.ZipInfo(name)  # with the same date in every archive
    member.external_attr = 0o644 << 16
    file.writestr(member, content, zipfile.ZIP_DEFLATED, compresslevel=9)


def _members(store: Store, name: str, home: Path, weights: bool) -> Iterator[tuple[str, bytes]]:
    from ressmooth.report.page import Report, write  # loads matplotlib, which an import needs not

    archived = store.archived(name)
    assert archived is not None
    yield "study.json", ROWS.dump_json(archived)
    contents = Report(store, archived.study)
    if contents.arms:
        yield "verdicts.json", json.dumps(contents.verdicts, ensure_ascii=False).encode()
        with TemporaryDirectory() as scratch:
            write(contents, Path(scratch))
            for file in sorted(Path(scratch).rglob("*")):
                if file.is_file():
                    yield f"report/{file.relative_to(scratch)}", file.read_bytes()
    for run in (run for trial in archived.trials for run in trial.runs) if weights else ():
        path = run_directory(home, run.uid) / WEIGHTS
        if path.is_file():
            yield f"weights/{run.id}.safetensors", path.read_bytes()


def bundled_archives() -> list[Path]:
    """Return the archives that come with the package."""
    found = resources.files("ressmooth.studies") / "results"
    return sorted(Path(str(found)).glob("*.zip"))


def is_archive(path: Path) -> bool:
    """Tell whether a file is one that `write_archive` has written."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as file:
        return MANIFEST in file.namelist()


@dataclass(frozen=True)
class Archive:
    """A checked archive: every member has the hash that the manifest names."""

    path: Path
    members: dict[str, bytes]

    @property
    def studies(self) -> list[str]:
        return [name.partition("/")[0] for name in self.members if name.endswith("/study.json")]

    def rows(self, study: str) -> ArchivedStudy:
        """Return the rows of a study, or raise StoreCorrupt if they are not sound."""
        with _as_damage(self.path):
            archived = ROWS.validate_json(self.members[f"{study}/study.json"])
            _check(archived)
        return archived

    def report(self, study: str) -> str | None:
        """Return the page of a study's report, if it has one."""
        page = self.members.get(f"{study}/report/index.html")
        return None if page is None else page.decode()

    def verdicts(self, study: str) -> list[str]:
        """Return the verdicts as they were when the archive was written."""
        sentences: list[str] = json.loads(self.members.get(f"{study}/verdicts.json", b"[]"))
        return sentences


@contextmanager
def _as_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise _damaged(path, str(error)) from error
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, detail["loc"]))
        raise _damaged(path, f"{place}: {detail['msg']}") from error
    except DAMAGE as error:
        raise _damaged(path, str(error) or type(error).__name__) from error


def _damaged(path: Path, reason: str) -> StoreCorrupt:
    return StoreCorrupt(f"{path} is damaged or not an archive of ressmooth ({reason})")


def read_archive(path: Path) -> Archive:
    """Return an archive after checking all of it."""
    try:
        with _as_damage(path), zipfile.ZipFile(path) as file:
            manifest = json.loads(_read(file, MANIFEST))
            _check_version(path, manifest)
            members = {name: _read(file, name) for name in manifest["sha256"]}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    for name, content in members.items():
        if hashlib.sha256(content).hexdigest() != manifest["sha256"][name]:
            raise _damaged(path, f"{name} has another SHA-256")
    return Archive(path, members)


def _read(file: zipfile.ZipFile, name: str) -> bytes:
    if file.getinfo(name).file_size > MAX_BYTES:
        raise ValueError(f"{name} is larger than 1 GiB")
    return file.read(name)


def _check_version(path: Path, manifest: dict[str, Any]) -> None:
    if manifest["version"] > VERSION or manifest["schema"] > HEAD:
        raise SchemaError(
            f"{path} was written by a newer ressmooth ({manifest['ressmooth']}, this is "
            f"{__version__}); install that one to import it"
        )


def _check(archived: ArchivedStudy) -> None:
    """Raise an error if the rows are not those of a study, or name files elsewhere."""
    spec = read_stored(archived.study.spec)
    if spec.name != archived.study.name:
        raise ValueError(f"the study {archived.study.name!r} is called {spec.name!r} in its spec")
    UUID(archived.study.uid)  # names a directory
    for trial in archived.trials:
        if not trial.runs:
            raise ValueError(f"trial {trial.id} has no runs")
        for run in trial.runs:
            UUID(run.uid)
            parse(run.config, spec.plugins)


def import_archive(store: Store, archive: Archive, home: Path) -> Iterator[Imported]:
    """Add what is not here yet, study by study, and yield what was done."""
    checked = [archive.rows(name) for name in archive.studies]  # before anything is written
    for archived in checked:
        present = store.same_study(archived.study)
        with store.hold(present.id) if present else nullcontext():
            imported = store.import_study(archived)
        _finish_trials(store, imported.study_id, read_stored(archived.study.spec))
        _write_weights(archive, archived.study.name, imported, home)
        yield imported


def _finish_trials(store: Store, study_id: int, spec: StudySpec) -> None:
    """Give a value to trials all of whose runs have ended, as a launcher would."""
    for trial in store.each_trial(study_id):
        if not trial.state.is_terminal and all(run.state.is_terminal for run in trial.runs):
            store.finish_trial(trial.id, *aggregate(trial, spec.metric, spec.search.objective))


def _write_weights(archive: Archive, study: str, imported: Imported, home: Path) -> None:
    for run_id, uid in imported.added.items():
        content = archive.members.get(f"{study}/weights/{run_id}.safetensors")
        if content is not None:
            directory = run_directory(home, uid)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / WEIGHTS).write_bytes(content)
