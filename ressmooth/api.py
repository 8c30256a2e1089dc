"""Studies from Python: run one, open a recorded one, and read its results.

    study = ressmooth.run("my.toml", workers=2)
    study.runs().groupby("arm").max_acc.mean()

A study runs in a process of its own, so scripts need no `__main__` guard. That process ends with
the caller, and an interrupt stops it as Ctrl-C stops the command.
"""

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

import tomli_w

from ressmooth import paths
from ressmooth.cli import find_study, open_home
from ressmooth.errors import (
    ConfigError,
    RessmoothError,
    SchemaError,
    StorageError,
    StoreUnreachable,
    StudyBusy,
)
from ressmooth.formatting import count
from ressmooth.spec import files
from ressmooth.spec.toml import parse, parse_value

if TYPE_CHECKING:
    import pandas

    from ressmooth.report.best import BestRun
    from ressmooth.store import Store, StudyRow

# `python -m ressmooth.study`, but it dies with the process whose id is the first argument.
CHILD = """
import sys
from ressmooth.engines.worker import die_with
die_with(int(sys.argv.pop(1)))
from ressmooth.study import main
main(prog_name="python -m ressmooth.study")
"""
ERRORS = {  # by exit code; the message tells which of several causes it was
    2: ConfigError,
    3: StudyBusy,
    4: StoreUnreachable,
    5: SchemaError,
    6: StorageError,
}
MAX_LINES = 1000  # of output that are kept for the message of an error
OUTPUT_TIMEOUT = 5.0  # seconds for the last output, once the process has ended


class Study:
    """A recorded study. Every call reads the database, so a running study can be watched.

    Besides the columns that their methods name, data frames have a column `param.NAME` for each
    setting that is searched or in a grid. Accuracy, ECE and macro F1 are in %. Times are in UTC.
    """

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.home = name, home
        with self._open():
            pass  # an unknown name is an error now

    def __repr__(self) -> str:
        with self._open() as (store, row):
            runs = [run for trial in store.trials(row.id) for run in trial.runs]
        done = sum(run.state.is_terminal for run in runs)
        arms = count(len(row.spec["arms"]), "arm")
        return f"Study {self.name!r}: {done} of {count(len(runs), 'run')}, {arms}"

    @property
    def description(self) -> str:
        with self._open() as (_, row):
            return str(row.spec["description"])

    def runs(self) -> "pandas.DataFrame":
        """Return a row per run: study, arm, trial, run, seed, state, dataset, model, fraction,
        max_acc, mean_acc and test_acc, the same of nll, ece and macro_f1 with best_ instead of
        max_, epochs, last_epoch, forked_from, forked_at, seconds, started_at, finished_at, error,
        failures, host, device, threads, git_commit, weights_sha256, data_sha256 and uid.
        """
        return self._frame("runs")

    def epochs(self) -> "pandas.DataFrame":
        """Return a row per epoch: study, arm, trial, run, seed, state, epoch, train_loss,
        train_acc, val_loss, val_acc, lr, scale, diffusivity, seconds, val_nll, val_ece,
        val_macro_f1, gpu_memory_mib (the largest), gpu_utilization_percent and gpu_power_watts
        (means; all missing on a CPU) and recorded_at.
        """
        return self._frame("epochs")

    def trials(self) -> "pandas.DataFrame":
        """Return a row per trial: study, arm, trial, state, confirms, selected, dataset, model,
        fraction, value, runs, created_at, finished_at, and the results of `runs` as means over
        its complete runs.
        """
        return self._frame("trials")

    def comparison(self) -> "pandas.DataFrame":
        """Return a row per arm, condition and statistic, as `ressmooth compare --format csv`.

        It is empty while no trial is complete.
        """
        return self._frame("comparison")

    def best(self, arm: str, condition: Mapping[str, Any] | None = None) -> "BestRun":
        """Return the best run of an arm's selected configuration.

        It is the one of the best seed by the study's metric. `condition` is needed where a study
        has several, as in {"fraction": 0.25}.
        """
        from ressmooth.report.best import best_runs

        with self._open() as (store, row):
            found = best_runs(store, row, self.home)
        wanted = {} if condition is None else condition
        arms = [run for run in found if run.arm == arm]
        matching = [run for run in arms if wanted.items() <= run.condition.items()]
        if not arms:
            known = ", ".join(dict.fromkeys(run.arm for run in found)) or "none yet"
            raise ConfigError(f"arm {arm!r} of {self.name} has no complete trial; known: {known}")
        if len(matching) != 1:
            known = "; ".join(str(run.condition) for run in arms)
            raise ConfigError(
                f"condition = {condition}: {count(len(matching), 'condition')} of arm {arm!r} "
                f"match, one should; known: {known}"
            )
        return matching[0]

    def _frame(self, table: str) -> "pandas.DataFrame":
        from ressmooth.report.frames import TABLES

        with self._open() as (store, row):
            return TABLES[table](store, row).frame()

    @contextmanager
    def _open(self) -> "Iterator[tuple[Store, StudyRow]]":
        with closing(open_home(self.home)) as store:
            yield store, find_study(store, self.name)


def open(name: str, home: str | Path | None = None) -> Study:
    """Return a recorded study of a home: by default RESSMOOTH_HOME or ~/.ressmooth."""
    return Study(name, _home(home))


def list_studies(home: str | Path | None = None) -> list[str]:
    """Return the names of the recorded studies, oldest first."""
    with closing(open_home(_home(home))) as store:
        return [row.name for row in store.studies()]


def run(
    study: str | Path | Mapping[str, Any],
    *,
    home: str | Path | None = None,
    workers: int | None = None,
    engine: str = "local",
    overrides: Mapping[str, Any] | Sequence[str] = (),
    plugins: str | Path | Sequence[str | Path] = (),
    show: bool = False,
) -> Study:
    """Run a study until it has ended, or resume it. Return it.

    `study` is a file, the name of a bundled study, or the content of a file as a dict, whose paths
    are relative to the working directory. `overrides` are those of --set, as {"epochs": 10} or
    ["epochs=10"]. `show` prints the progress and the comparison.

    An interrupt stops the study after its current epochs; a second one stops it at once. Running
    it again resumes. Raise the error of the command: ConfigError, StudyBusy ...
    """
    with TemporaryDirectory() as scratch:
        if isinstance(study, Mapping):
            study = _write(study, Path(scratch))
        settings = _settings(overrides)
        options = [str(study), "--home", str(_home(home)), "--engine", engine]
        options += ["--workers", str(workers)] if workers is not None else []
        options += [] if show else ["--quiet"]
        options += [part for each in settings for part in ("--set", each)]
        files = [plugins] if isinstance(plugins, str | Path) else plugins
        options += [part for each in files for part in ("--plugin", str(each))]
        name = _name(str(study), settings)
        code, lines = _launch(options, show)
        if code:
            raise _error(code, [line.replace(f"{scratch}/", "") for line in lines])
    return open(name, home)


def _home(home: str | Path | None) -> Path:
    return paths.home(Path(home).expanduser() if home else None)


def _write(study: Mapping[str, Any], directory: Path) -> Path:
    """Write a study file, merged with what it extends. Its paths become absolute."""
    path = directory / "study.toml"
    here = Path.cwd() / path.name
    tree, _ = files.extend(deepcopy(dict(study)), {("extends",): path.name}, here)
    files.resolve_paths(tree, here.parent)
    try:
        path.write_text(tomli_w.dumps(tree))
    except TypeError as error:  # None, or an object of numpy
        raise ConfigError(f"a study as a dict: {error}") from None
    return path


def _settings(overrides: Mapping[str, Any] | Sequence[str]) -> list[str]:
    if isinstance(overrides, Mapping):
        return [f"{key}={_inline(value)}" for key, value in overrides.items()]
    return list(overrides)


def _inline(value: Any) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(k)} = {_inline(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    try:
        return json.dumps(value)
    except TypeError as error:  # an object of numpy
        raise ConfigError(f"overrides: {error}") from None


def _name(study: str, overrides: Sequence[str]) -> str:
    """Return the name under which a study is recorded if it is valid."""
    pairs = [setting.partition("=") for setting in overrides]
    given = [parse_value(text) for key, _, text in pairs if key.strip() == "name"]
    if given:
        return str(given[-1])
    if not os.path.isfile(study):
        return study  # the name of a bundled or a recorded study
    tree, _ = parse(files.read(Path(study)), Path(study), files.KEYS)
    return str(tree.get("name"))


def _launch(options: list[str], show: bool) -> tuple[int, list[str]]:
    """Run `python -m ressmooth.study`. Return its exit code and its last lines of output."""
    lines: deque[str] = deque(maxlen=MAX_LINES)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(os.getpid()), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C in a terminal reaches only us; `_wait` passes it on
    )
    reader = Thread(target=_read, args=(child.stdout, lines, show), daemon=True)
    reader.start()
    _wait(child)
    reader.join(OUTPUT_TIMEOUT)
    return child.returncode, [line.rstrip() for line in lines]


def _read(output: IO[str], lines: deque[str], show: bool) -> None:
    with output:
        for line in output:
            lines.append(line)
            if show:
                print(line, end="", flush=True)


def _wait(child: "subprocess.Popen[str]") -> None:
    """Wait for the process. An interrupt is passed on to it, and raised when it has ended."""
    try:
        child.wait()
    except BaseException:
        child.send_signal(signal.SIGINT)
        _wait(child)
        raise


def _error(code: int, lines: list[str]) -> RessmoothError:
    """Return the error that a process has printed."""
    if code < 0:
        return RessmoothError(f"The study was killed by signal {-code}. Run it again to resume.")
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    error = ERRORS.get(code, RessmoothError)("\n".join(told or lines[-20:]))
    error.exit_code = code
    return error
