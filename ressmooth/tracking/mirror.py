"""The Store as MLflow shows it: a study is an experiment, a run is a run below its study's.

Each is looked for by its uid before it is made, and what is shown is read from the Store with the
times recorded there, so that delivering again changes nothing. mlflow is loaded here only, and
only when there is something to deliver.
"""

import fcntl
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ressmooth import paths
from ressmooth.errors import RessmoothError, TrackingError
from ressmooth.report import compare
from ressmooth.report.compare import arms_of
from ressmooth.store.rows import TERMINAL, EpochRow, OutboxRow, RunRow, StudyRow, TrialRow
from ressmooth.tracking import artifacts

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from ressmooth.store import Store

ENVIRONMENT = {  # unless the user has set them
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
LOUD = ("mlflow", "alembic", "urllib3.connectionpool")  # loggers that print on the terminal
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # MLflow would put artifacts in ./mlruns
STATUS = {
    "waiting": "SCHEDULED",
    "running": "RUNNING",
    "complete": "FINISHED",
    "pruned": "KILLED",
    "failed": "FAILED",
}
STUDY, RUN = "ressmooth.study_uid", "ressmooth.run_uid"  # tags by which they are found
CURVE = "ressmooth.curve"  # tag: when the curve that is shown began
BATCH = 1000  # points that MLflow takes at once
LONGEST_TAG = 5000  # characters
TRY_AGAIN = {401, 403, 404, 408, 429}  # client errors that do not lie in what was sent


class Refused(Exception):
    """MLflow answered, and would answer so every time."""


class Mirror:
    def __init__(self, uri: str, home: Path) -> None:
        self.uri, self.home = uri, home.absolute()
        self.experiments: dict[str, str] = {}  # MLflow's ids by uid
        self.parents: dict[str, str] = {}
        self.runs: dict[str, tuple[str, str]] = {}  # with the CURVE tag
        self.curves: dict[str, set[int]] = {}  # epochs that were shown when the curve was

    @cached_property
    def client(self) -> "MlflowClient":
        """Makes an embedded database where there is none, which takes seconds."""
        for key, value in ENVIRONMENT.items():
            os.environ.setdefault(key, value)
        from mlflow import MlflowClient

        for logger in LOUD:
            logging.getLogger(logger).setLevel(logging.ERROR)
        with self._lock():
            return MlflowClient(self.uri)

    def studies(self) -> dict[str, str]:
        """The ids of the experiments that show studies, by name; raises TrackingError only."""
        with self._asking():
            found = self.client.search_experiments()
            return {e.name: e.experiment_id for e in found if STUDY in e.tags}

    def show_report(self, study: StudyRow, directory: Path) -> None:
        """Raises TrackingError only."""
        with self._asking():
            self.client.log_artifacts(self._parent(study), str(directory), "report")

    def deliver(self, store: "Store", rows: Sequence[OutboxRow]) -> None:
        """Show what the rows speak of; raises TrackingError or Refused."""
        for group in subjects(rows):
            row = group[0]
            study = next(study for study in store.studies() if study.id == row.study_id)
            if row.run_id is None:
                self._show_study(store, study)
                continue
            run = store.run(row.run_id)
            trial, curve = store.trial(run.trial_id), store.curve(run.id)
            if row.kind == "epoch":
                with self._talking():
                    shown = self._run(study, trial, run, curve)
                    pending = {row.epoch for row in group} - self.curves.get(run.uid, set())
                    self._log_epochs(shown, [epoch for epoch in curve if epoch.epoch in pending])
            else:
                self._show_run(study, trial, run, curve)

    def _show_run(
        self, study: StudyRow, trial: TrialRow, run: RunRow, curve: list[EpochRow]
    ) -> None:
        """Where and with what it is trained; at its end its results and files too."""
        with TemporaryDirectory() as directory:
            ended = run.state in TERMINAL
            if ended:
                title = f"{study.name}: {artifacts.name(trial, run)}"
                artifacts.write_run(Path(directory), run, title, curve)
            with self._talking():
                shown = self._run(study, trial, run, curve)
                self._log(shown, artifacts.of_results(run) if ended else [], artifacts.facts(run))
                if not ended:
                    self.client.update_run(shown, STATUS[run.state])
                    return
                self.client.log_artifacts(shown, directory)
                weights = paths.run_directory(self.home, run.uid) / paths.WEIGHTS
                if run.weights_sha256 and weights.exists():
                    self.client.log_artifact(shown, str(weights))
                finished = artifacts.milliseconds(run.finished_at)
                self.client.set_terminated(shown, STATUS[run.state], finished)

    def _show_study(self, store: "Store", study: StudyRow) -> None:
        trials = store.trials(study.id)
        arms = arms_of(study, store.winners(study.id))
        comparisons = compare.compare_arms(store, arms)
        with TemporaryDirectory() as directory:
            artifacts.write_study(Path(directory), study, trials, comparisons)
            note = {"mlflow.note.content": (Path(directory) / "comparison.md").read_text()}
            with self._talking():
                parent = self._parent(study)
                self._log(
                    parent, artifacts.of_arms(trials, arms), {**note, **artifacts.selected(arms)}
                )
                self.client.log_artifacts(parent, directory)
                runs = [run for trial in trials for run in trial.runs]
                if runs and all(run.state in TERMINAL for run in runs):
                    finished = max(artifacts.milliseconds(run.finished_at) for run in runs)
                    self.client.set_terminated(parent, "FINISHED", finished)
                else:
                    self.client.update_run(parent, "RUNNING")

    def _run(self, study: StudyRow, trial: TrialRow, run: RunRow, curve: list[EpochRow]) -> str:
        """The id of the MLflow run that shows `run`, with its curve if it had none yet."""
        if run.uid not in self.runs:
            self._find_or_make_run(study, trial, run)
        shown, curve_shown = self.runs[run.uid]
        began = str(artifacts.milliseconds(curve[0].recorded_at)) if curve else ""
        if curve_shown not in ("", began):
            # Trained anew after a failure. MLflow keeps every point it was ever given, so the
            # curve that is no more goes to MLflow's bin and a new run takes its place.
            self.client.delete_run(shown)
            del self.runs[run.uid]
            return self._run(study, trial, run, curve)
        if curve_shown != began:
            self._log_epochs(shown, curve)
            self._log(shown, [], {CURVE: began})
            self.runs[run.uid] = shown, began
            self.curves[run.uid] = {epoch.epoch for epoch in curve}
        return shown

    def _find_or_make_run(self, study: StudyRow, trial: TrialRow, run: RunRow) -> None:
        from mlflow.entities import Param

        tags = {"mlflow.parentRunId": self._parent(study), **artifacts.identity(trial, run)}
        found = self._find_or_make(
            study, RUN, run.uid, run.started_at, tags, artifacts.name(trial, run)
        )
        missing = sorted(run.config.keys() - found.data.params.keys())
        params = [Param(key, str(run.config[key])) for key in missing]
        self.client.log_batch(found.info.run_id, params=params)
        self.runs[run.uid] = found.info.run_id, found.data.tags.get(CURVE, "")

    def _parent(self, study: StudyRow) -> str:
        if study.uid not in self.parents:
            found = self._find_or_make(study, STUDY, study.uid, study.created_at, {}, study.name)
            self.parents[study.uid] = found.info.run_id
        return self.parents[study.uid]

    def _find_or_make(
        self, study: StudyRow, tag: str, uid: str, started: Any, tags: dict[str, str], name: str
    ) -> Any:
        with self._lock():
            experiment = self._experiment(study)
            found = self.client.search_runs([experiment], f"tags.`{tag}` = '{uid}'", max_results=1)
            if found:
                return found[0]
            tags = {tag: uid, "mlflow.source.name": "ressmooth", **tags}
            return self.client.create_run(experiment, artifacts.milliseconds(started), tags, name)

    def _experiment(self, study: StudyRow) -> str:
        """Named as the study, unless another store's study of that name was first."""
        if study.uid not in self.experiments:
            names = (study.name, f"{study.name}-{study.uid[:8]}")
            ids = (self._experiment_named(name, study) for name in names)
            self.experiments[study.uid] = next(id for id in ids if id is not None)
        return self.experiments[study.uid]

    def _experiment_named(self, name: str, study: StudyRow) -> str | None:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            embedded = self.uri.partition(":")[0].partition("+")[0] in DATABASES
            where = (self.home / "artifacts" / study.uid).as_uri() if embedded else None
            tags = {STUDY: study.uid, "mlflow.note.content": study.spec["description"]}
            return str(self.client.create_experiment(name, where, tags))
        if found.tags.get(STUDY) != study.uid:
            return None
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _log_epochs(self, shown: str, epochs: Sequence[EpochRow]) -> None:
        all_points = artifacts.of_epochs(epochs)
        for start in range(0, len(all_points), BATCH):
            self._log(shown, all_points[start : start + BATCH], {})

    def _log(self, shown: str, given: list[artifacts.Point], tags: dict[str, str]) -> None:
        from mlflow.entities import Metric, RunTag

        self.client.log_batch(
            shown,
            metrics=[Metric(*point) for point in given],
            tags=[RunTag(key, value[:LONGEST_TAG]) for key, value in tags.items()],
        )

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Talking for somebody who waits: raises TrackingError only."""
        try:
            with self._talking():
                yield
        except Refused as error:
            raise TrackingError(f"MLflow at {redact(self.uri, self.uri)}: {error}") from None

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            _ = self.client  # made here, since making it takes the lock too
            yield
        except RessmoothError:
            raise
        except Exception as error:
            for known in (self.experiments, self.parents, self.runs, self.curves):
                known.clear()  # someone may have deleted what they point to
            raise judged(error, self.uri) from None  # its cause may show a password

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Launchers of one home and `ressmooth sync` must not both make what neither found."""
        self.home.mkdir(parents=True, exist_ok=True)
        with open(self.home / "mlflow.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def subjects(rows: Sequence[OutboxRow]) -> list[list[OutboxRow]]:
    """Rows about the same thing together: a run's epochs, then its state; studies last."""
    groups: dict[tuple[bool, int, int, str], list[OutboxRow]] = {}
    for row in rows:
        key = (row.run_id is None, row.study_id, row.run_id or 0, row.kind)
        groups.setdefault(key, []).append(row)
    return [groups[key] for key in sorted(groups)]


def judged(error: Exception, uri: str) -> Exception:
    """Refused if MLflow would answer the same again, otherwise a TrackingError."""
    status = _http_status(error)
    if status is not None and 400 <= status < 500 and status not in TRY_AGAIN:
        return Refused(_line(error, uri))
    cause: BaseException = error
    while (status or 500) >= 500 and cause.__context__ is not None:
        cause = cause.__context__  # the innermost is the shortest: connection refused
    return TrackingError(f"MLflow at {redact(uri, uri)}: {_line(cause, uri)}")


def _http_status(error: Exception) -> int | None:
    from mlflow.exceptions import MlflowException

    response = getattr(error, "response", None)  # of an upload
    if response is not None:
        return int(response.status_code)
    if not isinstance(error, MlflowException):
        return None
    given = re.search(r"failed with error code (\d{3})", str(error))  # MLflow makes 413 a 500
    return int(given[1]) if given else int(error.get_http_status_code())  # type: ignore[no-untyped-call]


def _line(error: BaseException, uri: str) -> str:
    text = redact(str(error) or type(error).__name__, uri)
    return " ".join(text.split())[:300]


def redact(text: str, uri: str) -> str:
    """The text without the login that a tracking URI may hold."""
    login = uri.partition("://")[2].rpartition("@")[0]
    password = login.partition(":")[2]
    for secret in (login, unquote(login), password, unquote(password)):
        if secret:
            text = text.replace(secret, "***")
    return text
