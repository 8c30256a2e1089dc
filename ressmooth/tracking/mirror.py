"""Show the Store in MLflow: a study is an experiment with a parent run, a run is a child run.

Delivering twice changes nothing: runs are found by their uid before they are created, and all
values and times are read from the Store. mlflow is imported only when it is needed.
"""

import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from ressmooth import formatting, paths
from ressmooth.errors import RessmoothError, TrackingError
from ressmooth.report.compare import compare_studies
from ressmooth.spec import read_stored
from ressmooth.store import EpochRow, Event, OutboxRow, RunRow, State, Store, StudyRow, TrialRow
from ressmooth.tracking import STUDY_TAG, artifacts, experiments, view
from ressmooth.tracking.answers import http_status, innermost, limited_answers, one_line
from ressmooth.tracking.artifacts import MetricPoint, milliseconds
from ressmooth.tracking.server import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

ENVIRONMENT = {  # defaults, which the user's own values override
    "MLFLOW_ALLOW_HTTP_REDIRECTS": "false",  # a server could send results and log-ins elsewhere
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # URI schemes without a server
STATUS = {
    State.WAITING: "SCHEDULED",
    State.RUNNING: "RUNNING",
    State.COMPLETE: "FINISHED",
    State.PRUNED: "KILLED",
    State.FAILED: "FAILED",
}
RUN_TAG = "ressmooth.run_uid"
CURVE_TAG = "ressmooth.curve"  # when the first epoch of the curve was recorded, in milliseconds
MAX_METRICS = 1000  # per request
MAX_RUNS = 1000  # per request
MAX_TAG = 5000  # characters
RETRYABLE = {401, 403, 404, 408, 429}  # client errors that the request itself does not cause


class Rejected(Exception):
    """MLflow rejected a request and would reject it again."""


class RecordedRun(NamedTuple):
    """A run with everything that the Store has about it."""

    study: StudyRow
    trial: TrialRow
    run: RunRow
    curve: list[EpochRow]

    @property
    def name(self) -> str:
        return formatting.run_name(self.trial.arm, self.trial.params, self.run.seed)

    @property
    def curve_tag(self) -> str:
        return str(milliseconds(self.curve[0].recorded_at)) if self.curve else ""


class Mirror:
    """Shows studies and their runs in one MLflow."""

    def __init__(self, uri: str, home: Path) -> None:
        self.uri, self.home = uri, home.absolute()
        # MLflow's ids by uid
        self.experiments: dict[str, str] = {}
        self.parents: dict[str, str] = {}
        self.runs: dict[str, tuple[str, str]] = {}  # with the value of CURVE_TAG
        self.curves: dict[str, set[int]] = {}  # epochs that were sent with the whole curve

    @cached_property
    def client(self) -> "MlflowClient":
        """Return MLflow's client. Creating an embedded database takes seconds."""
        for key, value in ENVIRONMENT.items():
            os.environ.setdefault(key, value)
        from mlflow import MlflowClient

        for noisy in ("mlflow", "alembic", "urllib3.connectionpool"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        with self._lock():
            if self.uri == f"sqlite:///{self.home / 'mlflow.db'}" and self.home.is_dir():
                paths.create_private(self.home / "mlflow.db")
            return MlflowClient(self.uri)

    def studies(self) -> dict[str, str]:
        """Return the ids of the experiments that show studies, by name."""
        with self._translate_errors():
            found = self.client.search_experiments()
            return {e.name: e.experiment_id for e in found if STUDY_TAG in e.tags}

    def charts(self, study: StudyRow) -> str | None:
        """Return the address of a study's charts, relative to MLflow's, or None without one."""
        with self._translate_errors():
            found = self.client.search_experiments(
                filter_string=f"tags.`{STUDY_TAG}` = '{study.uid}'"
            )
            return view.address(found[0].experiment_id, found[0].tags) if found else None

    def delete_study(self, study: StudyRow) -> None:
        with self._translate_errors():
            experiments.delete(self.client, study)

    def deliver(self, store: Store, rows: Sequence[OutboxRow]) -> None:
        """Show what outbox rows refer to. Raise TrackingError, or Rejected if no retry helps."""
        for group in group_by_subject(rows):
            event = group[0]
            study = store.study_with_id(event.study_id)
            if event.run_id is None:
                self._show_study(store, study)
                continue
            run = store.run(event.run_id)
            recorded = RecordedRun(study, store.trial(run.trial_id), run, store.curve(run.id))
            if event.kind == Event.EPOCH:
                self._show_epochs(recorded, {row.epoch for row in group})
            else:
                self._show_run(recorded)

    def _show_epochs(self, recorded: RecordedRun, epochs: set[int | None]) -> None:
        with self._translate_errors(may_reject=True):
            mlflow_run = self._run(recorded)
            epochs = epochs - self.curves.get(recorded.run.uid, set())
            self._log_epochs(mlflow_run, [row for row in recorded.curve if row.epoch in epochs])

    def _show_run(self, recorded: RecordedRun) -> None:
        """Show a run's environment and state, and its results and files once it has ended."""
        run = recorded.run
        ended = run.state.is_terminal
        with TemporaryDirectory() as directory:
            if ended:
                title = f"{recorded.study.name}: {recorded.name}"
                artifacts.write_run(Path(directory), run, title, recorded.curve)
            with self._translate_errors(may_reject=True):
                mlflow_run = self._run(recorded)
                results = artifacts.result_metrics(run) if ended else []
                self._log(mlflow_run, results, artifacts.state_tags(run))
                if not ended:
                    self.client.update_run(mlflow_run, STATUS[run.state])
                    return
                self.client.log_artifacts(mlflow_run, directory)
                weights = paths.run_directory(self.home, run.uid) / paths.WEIGHTS
                if run.weights_sha256 and weights.exists():
                    self.client.log_artifact(mlflow_run, str(weights))
                finished = milliseconds(run.finished_at)
                self.client.set_terminated(mlflow_run, STATUS[run.state], finished)

    def _show_study(self, store: Store, study: StudyRow) -> None:
        trials = store.trials(study.id)
        runs = [run for trial in trials for run in trial.runs]
        comparisons = compare_studies(store, [study])
        compared = {run for table in comparisons for line in table.lines for run in line.arm.runs}
        prepared = view.prepare(read_stored(study.spec), [store.curve(run) for run in compared])
        with TemporaryDirectory() as directory:
            race = store.race(study.id)
            artifacts.write_study(Path(directory), study, trials, comparisons, race)
            note = (Path(directory) / "comparison.md").read_text()
            tags = {"mlflow.note.content": note, "mlflow.runName": study.name}
            tags |= artifacts.selection_tags(comparisons) | artifacts.plugin_tags(study)
            tags |= artifacts.owner_tags(study)
            with self._translate_errors(may_reject=True):
                parent = self._parent(study)
                self._log(parent, artifacts.comparison_metrics(trials, comparisons), tags)
                self.client.log_artifacts(parent, directory)
                self._mark_compared(study, {run.uid for run in runs if run.id in compared})
                self.client.set_experiment_tag(self._experiment(study), view.TAG, prepared)
                report = paths.report_directory(self.home, study.uid)
                if report.is_dir():
                    self.client.log_artifacts(parent, str(report), "report")
                if runs and all(run.state.is_terminal for run in runs):
                    finished = max(milliseconds(run.finished_at) for run in runs)
                    self.client.set_terminated(parent, "FINISHED", finished)
                else:
                    self.client.update_run(parent, "RUNNING")

    def _mark_compared(self, study: StudyRow, uids: set[str]) -> None:
        """Tag the runs whose figures the comparison shows, and only these."""
        for run in self._runs_of(study):
            is_compared = run.data.tags.get(RUN_TAG) in uids
            if is_compared != (run.data.tags.get(view.COMPARED_TAG) == "yes"):
                self._log(run.info.run_id, [], {view.COMPARED_TAG: "yes" if is_compared else "no"})

    def _runs_of(self, study: StudyRow) -> Iterator[Any]:
        """Yield the MLflow runs of a study, page by page: thousands would be a long answer."""
        experiment, token = self._experiment(study), None
        while True:
            page = self.client.search_runs([experiment], max_results=MAX_RUNS, page_token=token)
            yield from list(page)
            token = page.token
            if not token:
                return

    def _run(self, recorded: RecordedRun) -> str:
        """Return the id of the MLflow run of `recorded`. Send the curve if it shows none."""
        uid = recorded.run.uid
        if uid not in self.runs:
            self._find_or_create_run(recorded)
        mlflow_run, curve_tag = self.runs[uid]
        if curve_tag not in ("", recorded.curve_tag):
            # The run was retrained after a failure. MLflow cannot delete points of a metric, so
            # a new MLflow run replaces the one with the old curve.
            self.client.delete_run(mlflow_run)
            del self.runs[uid]
            return self._run(recorded)
        if curve_tag != recorded.curve_tag:
            self._log_epochs(mlflow_run, recorded.curve, {CURVE_TAG: recorded.curve_tag})
            self.runs[uid] = mlflow_run, recorded.curve_tag
            self.curves[uid] = {epoch.epoch for epoch in recorded.curve}
        return mlflow_run

    def _find_or_create_run(self, recorded: RecordedRun) -> None:
        from mlflow.entities import Param

        study, trial, run, _ = recorded
        tags = {"mlflow.parentRunId": self._parent(study), **artifacts.identity_tags(trial, run)}
        found = self._find_or_create(study, RUN_TAG, run.uid, run.started_at, tags, recorded.name)
        settings = artifacts.shown_settings(run)
        missing = sorted(settings.keys() - found.data.params.keys())
        params = [Param(key, str(settings[key])) for key in missing]
        self.client.log_batch(found.info.run_id, params=params)
        self.runs[run.uid] = found.info.run_id, found.data.tags.get(CURVE_TAG, "")

    def _parent(self, study: StudyRow) -> str:
        """Return the id of the MLflow run that shows the study as a whole."""
        if study.uid not in self.parents:
            found = self._find_or_create(
                study, STUDY_TAG, study.uid, study.created_at, {}, study.name
            )
            self.parents[study.uid] = found.info.run_id
        return self.parents[study.uid]

    def _find_or_create(
        self, study: StudyRow, tag: str, uid: str, started: Any, tags: dict[str, str], name: str
    ) -> Any:
        """Return the MLflow run whose `tag` is `uid`."""
        with self._lock():
            experiment = self._experiment(study)
            found = self.client.search_runs([experiment], f"tags.`{tag}` = '{uid}'", max_results=1)
            if found:
                return found[0]
            tags = {tag: uid, "mlflow.source.name": "ressmooth", **tags}
            tags |= artifacts.owner_tags(study)
            return self.client.create_run(experiment, milliseconds(started), tags, name)

    def _experiment(self, study: StudyRow) -> str:
        """Return the id of the study's experiment."""
        if study.uid not in self.experiments:
            # a server decides itself where artifacts are; without one MLflow would use ./mlruns
            embedded = self.uri.partition(":")[0].partition("+")[0] in DATABASES
            location = (self.home / "artifacts" / study.uid).as_uri() if embedded else None
            found = experiments.restore_or_create(self.client, study, location)
            self.experiments[study.uid] = found
        return self.experiments[study.uid]

    def _log_epochs(
        self, mlflow_run: str, epochs: Sequence[EpochRow], tags: dict[str, str] | None = None
    ) -> None:
        """Send epochs, and tags with the last of them."""
        points = artifacts.epoch_metrics(epochs)
        for start in range(0, len(points), MAX_METRICS):
            is_last = start + MAX_METRICS >= len(points)
            batch = points[start : start + MAX_METRICS]
            self._log(mlflow_run, batch, tags if tags and is_last else {})

    def _log(self, mlflow_run: str, points: list[MetricPoint], tags: dict[str, str]) -> None:
        from mlflow.entities import Metric, RunTag

        self.client.log_batch(
            mlflow_run,
            metrics=[Metric(*point) for point in points],
            tags=[RunTag(key, value[:MAX_TAG]) for key, value in tags.items()],
        )

    @contextmanager
    def _translate_errors(self, *, may_reject: bool = False) -> Iterator[None]:
        """Raise any error of MLflow as a TrackingError, or as Rejected if `may_reject`."""
        try:
            _ = self.client  # created here, because that takes the lock, which is not reentrant
            with limited_answers():
                yield
        except RessmoothError:
            raise
        except Exception as error:
            for ids in (self.experiments, self.parents, self.runs, self.curves):
                ids.clear()  # somebody may have deleted what they refer to
            status = http_status(error)
            # `from None`, because the cause may contain a password
            is_permanent = status in range(400, 500) and status not in RETRYABLE
            if may_reject and is_permanent:
                raise Rejected(one_line(error, self.uri)) from None
            cause = error if status and status < 500 else innermost(error)
            message = f"MLflow at {redact(self.uri, self.uri)}: {one_line(cause, self.uri)}"
            raise TrackingError(message) from None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep other processes of this home from creating the same things at the same time."""
        if not self.home.is_dir():  # a home that was deleted is not created again
            yield
            return
        with open(self.home / "mlflow.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def group_by_subject(rows: Sequence[OutboxRow]) -> list[list[OutboxRow]]:
    """Group rows about the same thing: each run's epochs, then its state, and studies last."""

    def subject(row: OutboxRow) -> tuple[bool, int, int, str]:
        return row.run_id is None, row.study_id, row.run_id or 0, row.kind

    return [list(group) for _, group in groupby(sorted(rows, key=subject), subject)]
