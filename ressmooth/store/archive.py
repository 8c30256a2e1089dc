"""Copy studies between databases: read one as plain rows, and merge such rows into another.

A run is known by its configuration and its seed. Nothing that is recorded here ever changes: runs
are added where there is none, and two complete runs that differ end up in two studies.
"""

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from ressmooth.config import MACHINE
from ressmooth.errors import ConfigError
from ressmooth.prefix import DEFAULTS
from ressmooth.spec import differences, read_stored, with_name
from ressmooth.store.database import Part, reading, writing
from ressmooth.store.outbox import announce
from ressmooth.store.placing import Placing
from ressmooth.store.queries import race_of, trials_where
from ressmooth.store.rows import EpochRow, Event, RunRow, State, StudyRow, StudyState, TrialRow
from ressmooth.store.runs import curves_of_study, reopen
from ressmooth.store.studies import find_study
from ressmooth.store.tables import Epoch, Outbox, Race, Run, Study, Trial, db_now

APART = "imported"  # added to the name of a study that does not agree with the one here


@dataclass(frozen=True)
class ArchivedStudy:
    """A study with all its rows. Their ids are those of the database they come from."""

    study: StudyRow
    trials: list[TrialRow]
    race: list[Placing]
    curves: dict[int, list[EpochRow]]  # by run id


@dataclass(frozen=True)
class Imported:
    """What an import did."""

    study_id: int
    name: str  # of the study here
    added: dict[int, str]  # runs: their id in the archive -> their uid here
    kept: int  # runs that were here already
    differing: list[str]  # runs with another result here, one line each


class Archives(Part):
    """Studies as plain rows."""

    @reading
    def archived(self, connection: Connection, name: str) -> ArchivedStudy | None:
        study = find_study(connection, Study.name == name)
        if study is None:
            return None
        trials = trials_where(connection, Trial.study_id == study.id)
        curves = curves_of_study(connection, study.id)
        return ArchivedStudy(study, trials, race_of(connection, study.id), curves)

    @reading
    def same_study(self, connection: Connection, study: StudyRow) -> StudyRow | None:
        """Find a study by its uid, because it may have been renamed, or else by its name."""
        return _same_study(connection, study)

    @writing
    def import_study(self, connection: Connection, archived: ArchivedStudy) -> Imported:
        """Add the rows of a study that are not here yet."""
        stored = _same_study(connection, archived.study)
        differing = _differing_runs(connection, stored, archived) if stored else []
        if differing:
            archived = _set_apart(connection, archived)
            stored = _same_study(connection, archived.study)
        if stored is None:
            study_id, name = _insert_study(connection, archived.study), archived.study.name
        else:
            study_id, name = stored.id, stored.name
            _grow(connection, stored, archived.study)
        merge = _Merge(connection, study_id, archived)
        merge.trials()
        merge.runs()
        merge.forks()
        if stored is None:
            merge.race()
        if merge.added:
            announce(connection, study_id)
        return Imported(study_id, name, merge.added, merge.kept, differing)


def _same_study(connection: Connection, study: StudyRow) -> StudyRow | None:
    return find_study(connection, Study.uid == study.uid) or find_study(
        connection, Study.name == study.name
    )


def _insert_study(connection: Connection, study: StudyRow) -> int:
    left_out = {"id", "held_by", "held_at"}
    values = {f.name: getattr(study, f.name) for f in fields(study) if f.name not in left_out}
    if study.state.is_active:
        values["state"] = StudyState.STOPPED
    return connection.scalars(insert(Study).values(values).returning(Study.id)).one()


def _grow(connection: Connection, stored: StudyRow, study: StudyRow) -> None:
    """Take over arms and seeds that the archive has more of. Refuse another study."""
    ours = {**stored.spec, "name": study.name}
    lines = differences(ours, read_stored(study.spec))
    if lines and differences(study.spec, read_stored(ours)):
        raise ConfigError(
            f"study {stored.name!r} is recorded here with other settings than in the archive:",
            *lines,
            "To have both, rename the one here, and import again.",
        )
    if not lines and stored.spec != {**study.spec, "name": stored.name}:
        values: dict[str, Any] = {"spec": {**study.spec, "name": stored.name}}
        values["file_text"] = with_name(study.file_text, stored.name)
        values["runs_planned"] = study.runs_planned
        connection.execute(update(Study).where(Study.id == stored.id).values(values))


def _configuration(trial: TrialRow) -> str:
    """Return what makes two trials the same: all settings but the seed and the machine."""
    settings = {**DEFAULTS, **trial.runs[0].config}  # earlier versions had fewer settings
    config = {key: value for key, value in settings.items() if key not in {"seed", *MACHINE}}
    return json.dumps([trial.arm, trial.confirms is not None, config], sort_keys=True)


def _differing_runs(connection: Connection, stored: StudyRow, archived: ArchivedStudy) -> list[str]:
    """Return the runs that are complete here and in the archive, with other weights."""
    here = {
        (_configuration(trial), run.seed): run
        for trial in trials_where(connection, Trial.study_id == stored.id)
        for run in trial.runs
        if run.state == State.COMPLETE
    }
    lines = []
    for trial, run in _runs(archived.trials):
        ours = here.get((_configuration(trial), run.seed))
        if ours and run.state == State.COMPLETE and ours.weights_sha256 != run.weights_sha256:
            settings = ", ".join(f"{key}={value}" for key, value in trial.params.items())
            name = f"{trial.arm} ({settings})" if settings else trial.arm
            here_is, there_is = (f"{each.max_acc:.2f} %" for each in (ours, run))
            lines.append(
                f"{name}, seed {run.seed}: {here_is} on {ours.host}, "
                f"{there_is} in the archive on {run.host}"
            )
    return lines


def _runs(trials: Iterable[TrialRow]) -> Iterator[tuple[TrialRow, RunRow]]:
    return ((trial, run) for trial in trials for run in trial.runs)


def _set_apart(connection: Connection, archived: ArchivedStudy) -> ArchivedStudy:
    """Return the study with another name and other uids, the same ones at each import."""
    study = archived.study
    salt = [run.weights_sha256 for _, run in _runs(archived.trials)]

    def derived(uid: str) -> str:
        return uuid.uuid5(uuid.UUID(uid), repr(salt)).hex

    names = set(connection.scalars(select(Study.name)))
    free = (f"{study.name[:50]}-{APART}{n}" for n in ("", *(f"-{n}" for n in range(2, 10**6))))
    name = next(name for name in free if name not in names)
    apart = replace(
        study,
        uid=derived(study.uid),
        name=name,
        spec={**study.spec, "name": name},
        file_text=with_name(study.file_text, name),
    )
    trials = [
        replace(trial, runs=[replace(run, uid=derived(run.uid)) for run in trial.runs])
        for trial in archived.trials
    ]
    return replace(archived, study=apart, trials=trials)


class _Merge:
    """Adds the trials and runs of an archive to a study."""

    def __init__(self, connection: Connection, study_id: int, archived: ArchivedStudy) -> None:
        self.connection, self.study_id, self.archived = connection, study_id, archived
        found = trials_where(connection, Trial.study_id == study_id)
        self.here = {_configuration(trial): trial for trial in found}
        self.ids: dict[int, int] = {}  # of trials: in the archive -> here
        self.run_ids: dict[int, int] = {}  # in the archive -> here
        self.added: dict[int, str] = {}
        self.kept = 0

    def trials(self) -> None:
        for trial in self.archived.trials:
            same = self.here.get(_configuration(trial))
            self.ids[trial.id] = same.id if same else self._insert_trial(trial)

    def runs(self) -> None:
        """Add the runs that are not here, in their order: a new database gives them their ids."""
        here = {(trial.id, run.seed): run for trial, run in _runs(self.here.values())}
        known = {trial.id for trial in self.here.values()}
        for run in sorted((run for _, run in _runs(self.archived.trials)), key=lambda run: run.id):
            trial_id = self.ids[run.trial_id]
            added = self._add(run, here.get((trial_id, run.seed)), trial_id)
            if added and trial_id in known:
                reopen(self.connection, [trial_id])

    def forks(self) -> None:
        """Record whose prefix the added runs continue."""
        for _, run in _runs(self.archived.trials):
            if run.id in self.added and run.state.is_terminal and run.forked_from is not None:
                added = update(Run).where(Run.id == self.run_ids[run.id])
                donor = self.run_ids[run.forked_from]
                self.connection.execute(added.values(forked_from=donor))

    def race(self) -> None:
        """Record the race of a study that is new here. That of another is decided anew."""
        for placing in self.archived.race:
            rival = placing.rival_id and self.ids[placing.rival_id]
            values = {**asdict(placing), "trial_id": self.ids[placing.trial_id], "rival_id": rival}
            self.connection.execute(insert(Race).values(values))

    def _insert_trial(self, trial: TrialRow) -> int:
        values = {f.name: getattr(trial, f.name) for f in fields(trial)}
        del values["id"], values["runs"]
        values |= {
            "study_id": self.study_id,
            "condition": json.dumps(trial.condition, sort_keys=True),
            "confirms": trial.confirms and self.ids[trial.confirms],
            "number_in_branch": self._number(trial),
        }
        return self.connection.scalars(insert(Trial).values(values).returning(Trial.id)).one()

    def _number(self, trial: TrialRow) -> int:
        """Return the trial's number in its branch, or the next one if another trial has it."""
        branch = (Trial.study_id == self.study_id) & (Trial.branch == trial.branch)
        numbers = set(self.connection.scalars(select(Trial.number_in_branch).where(branch)))
        taken = trial.number_in_branch in numbers
        return max(numbers) + 1 if taken else trial.number_in_branch

    def _add(self, run: RunRow, ours: RunRow | None, trial_id: int) -> bool:
        """Add a run, unless it was begun here. Return whether it was added."""
        was_begun = ours is not None and (ours.state != State.WAITING or ours.last_epoch > 0)
        if ours and (was_begun or not run.state.is_terminal):
            self.run_ids[run.id] = ours.id
            self.kept += 1
            return False
        if ours:
            self.connection.execute(delete(Outbox).where(Outbox.run_id == ours.id))
            self.connection.execute(delete(Run).where(Run.id == ours.id))
        self._insert_run(run, trial_id)
        return True

    def _insert_run(self, run: RunRow, trial_id: int) -> None:
        curve = self.archived.curves.get(run.id, [])
        if not run.state.is_terminal:  # its checkpoint is elsewhere, so it begins anew
            curve = []
            run = replace(
                run,
                state=State.WAITING,
                last_epoch=0,
                started_at=None,
                forked_from=None,
                forked_at=None,
            )
        values = {f.name: getattr(run, f.name) for f in fields(run) if f.name != "id"}
        values |= {"trial_id": trial_id, "forked_from": None}
        run_id = self.connection.scalars(insert(Run).values(values).returning(Run.id)).one()
        if curve:
            no_checkpoint = {"run_id": run_id, "checkpoint_sha256": None}
            rows = [{**asdict(epoch), **no_checkpoint} for epoch in curve]
            self.connection.execute(insert(Epoch), rows)
        self._announce(run_id, [epoch.epoch for epoch in curve])
        self.run_ids[run.id], self.added[run.id] = run_id, run.uid

    def _announce(self, run_id: int, epochs: list[int]) -> None:
        """Tell MLflow about a run and its curve."""
        event = {"study_id": self.study_id, "run_id": run_id}
        rows = [{**event, "kind": Event.EPOCH, "epoch": epoch} for epoch in epochs]
        rows.append({**event, "kind": Event.RUN, "epoch": None})
        self.connection.execute(insert(Outbox).values(created_at=db_now()), rows)
