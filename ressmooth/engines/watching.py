"""Show a study that runs anywhere, from what the Store records of it."""

import time
from collections.abc import Iterator
from pathlib import Path

import click

from ressmooth.engines.launcher import show_comparison
from ressmooth.engines.progress import View, WorkerStatus, outcome
from ressmooth.errors import ConfigError
from ressmooth.formatting import printable, run_name
from ressmooth.paths import command
from ressmooth.report.measure import MEASURES
from ressmooth.search.progress import Progress, count_runs, selected
from ressmooth.spec import read_stored
from ressmooth.store import RunRow, State, Store, StudyRow, StudyState, TrialRow

PERIOD = 1.0  # seconds between two looks
FAILED, LEFT = 2, 130  # exit codes


class Watched:
    """A study as it is recorded, for a View."""

    def __init__(self, store: Store, study: StudyRow) -> None:
        self.store, self.study_id = store, study.id
        self.spec = read_stored(study.spec)
        self.measure = MEASURES[self.spec.metric]
        self.refresh()

    def refresh(self) -> None:
        self.trials: dict[int, TrialRow] = {t.id: t for t in self.store.trials(self.study_id)}

    def progress(self) -> Progress:
        return count_runs(list(self.trials.values()), self.spec)

    def best(self) -> list[TrialRow]:
        return selected(self.trials.values(), self.spec.metric)

    @property
    def runs(self) -> list[RunRow]:
        return [run for trial in self.trials.values() for run in trial.runs]

    @property
    def statuses(self) -> list[WorkerStatus]:
        """Return the runs that execute, or that there is none."""
        running = [run for run in self.runs if run.state == State.RUNNING]
        return [
            WorkerStatus(self.name(run), run, self, run.last_epoch, run.config["epochs"])
            for run in running
        ] or [WorkerStatus("waits for a free worker")]

    def name(self, run: RunRow) -> str:
        trial = self.trials[run.trial_id]
        return run_name(trial.arm, trial.params, run.seed)

    def lines(self, shown: set[int]) -> Iterator[str]:
        """Yield a line for each run that has ended and is not `shown`. Add it to these."""
        ended = [run for run in self.runs if run.finished_at is not None and run.id not in shown]
        for run in sorted(ended, key=lambda run: (run.finished_at, run.id)):
            shown.add(run.id)
            where = f" on {run.host}" if run.host else ""
            yield (
                f"{run.finished_at:%Y-%m-%d %H:%M:%S} {self.name(run)}{where}: "
                f"{outcome(run, self.measure)}"
            )


def watch(store: Store, study: StudyRow, home: Path, *, quiet: bool = False) -> int:
    """Show a study until it ends or Ctrl-C leaves it. Return the exit code."""
    watched = Watched(store, study)
    shown = {run.id for run in watched.runs if run.state.is_terminal}
    try:
        with View(watched, 0, quiet=quiet) as view:
            view.print(f"{study.name}: {study.state}")
            epochs, busy_seconds = _epochs(watched), 0.0
            while study.state.is_active:
                time.sleep(PERIOD)
                watched.refresh()
                view.workers = watched.statuses
                busy_seconds += PERIOD * sum(status.is_busy for status in view.workers)
                view.trained, view.train_seconds = _epochs(watched) - epochs, busy_seconds
                for line in watched.lines(shown):
                    if not view.is_live:
                        view.print(line)
                study = _look_again(store, study)
    except KeyboardInterrupt:
        again = command(home, "watch", study.name)
        click.echo(f"{study.name} goes on without this view. See it again: {again}", err=True)
        return LEFT
    return _conclude(store, study, home, quiet=quiet)


def follow(store: Store, study: StudyRow, *, follows: bool) -> None:
    """Print a line per run that has ended, while the study is active. Say why it failed."""
    watched = Watched(store, study)
    shown: set[int] = set()
    while True:
        for line in watched.lines(shown):
            click.echo(printable(line))
        if not follows or not study.state.is_active:
            break
        time.sleep(PERIOD)
        study = _look_again(store, study)
        watched.refresh()
    if study.state == StudyState.FAILED:
        _print_problem(study)


def _print_problem(study: StudyRow) -> None:
    for line in (study.problem or "").split("\n"):
        click.echo(f"error: {printable(line)}", err=True)


def _epochs(watched: Watched) -> int:
    return sum(run.last_epoch for run in watched.runs)


def _look_again(store: Store, study: StudyRow) -> StudyRow:
    found = next((row for row in store.studies() if row.id == study.id), None)
    if found is None:
        raise ConfigError(f"{study.name} was deleted")
    return found


def _conclude(store: Store, study: StudyRow, home: Path, *, quiet: bool) -> int:
    if study.state == StudyState.FAILED:
        _print_problem(study)
        return FAILED
    if study.state == StudyState.STOPPED:
        resume = command(home, "resume", study.name)
        click.echo(f"{study.name} was stopped; nothing is lost. Resume with: {resume}", err=True)
        return 0
    return show_comparison(store, study.name, home, quiet=quiet)
