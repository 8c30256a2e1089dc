"""Share one pool of workers among studies. A foreground launch is the case of one study.

Every study has a planner that knows its next run. The scheduler decides whose turn it is:

- A worker's place is charged to its study and to the study's owner in seconds, divided by their
  weights. A free place goes to the owner, then to the owner's study, that is charged the least.
- A place in use counts as QUANTUM seconds in advance, so places spread at once.
- At the end of an epoch, a run is set down for a waiting study that would still be behind after
  one QUANTUM more. The margin keeps places from changing hands all the time.
- A study that joins is charged as much as the least charged one, so nobody saves up time.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count

from ressmooth.engines import Decision
from ressmooth.errors import ConfigError, DataError
from ressmooth.search.planner import Planner
from ressmooth.store import Priority, RunRow

QUANTUM = 60.0  # seconds; setting a run down and taking it up again costs about one

BAD_STUDY = (ConfigError, DataError)  # errors that another launch would meet again

Clock = Callable[[], float]


@dataclass
class Account:
    """What a study or an owner has used of the workers."""

    weight: float = 1.0
    charged: float = 0.0  # seconds of workers, divided by the weight
    in_use: int = 0  # places

    def cost(self, places: int, quantum: float) -> float:
        """Return the charge if these places were charged for a quantum too."""
        return self.charged + places * quantum / self.weight

    def charge(self, seconds: float) -> None:
        self.charged += seconds / self.weight


@dataclass(eq=False)
class ActiveStudy:
    """A study whose runs are executed."""

    planner: Planner
    owner: str = ""
    priority: Priority = Priority.NORMAL
    elapsed: float = 0.0  # seconds in which it had runs, over all launches
    is_leaving: bool = False  # its runs are set down at their next epoch ends
    account: Account = field(default_factory=Account)
    number: int = 0  # in the order of joining
    last_epoch_at: float = 0.0  # monotonic seconds
    submitted_at: datetime | None = None
    problem: str | None = None  # why nothing of it can be trained

    @property
    def id(self) -> int:
        return self.planner.study_id

    @property
    def name(self) -> str:
        return self.planner.spec.name

    @property
    def wants_a_place(self) -> bool:
        return not self.is_leaving and self.planner.peek() is not None

    @property
    def is_idle(self) -> bool:
        """Tell whether none of its runs executes or will."""
        return self.account.in_use == 0 and not self.wants_a_place

    def spend(self, seconds: float) -> None:
        """Count elapsed time. A spent budget adds no more trials."""
        self.elapsed += seconds
        hours = self.planner.spec.search.hours
        if hours is not None and self.elapsed > hours * 3600:
            self.planner.out_of_time = True


@dataclass
class Place:
    """A worker's place while a run has it."""

    study: ActiveStudy
    charged_until: float  # monotonic seconds


class Scheduler:
    """Gives runs of several studies to an engine, and their results to the studies' planners."""

    survives_bad_studies = False  # the service does

    def __init__(self, quantum: float = QUANTUM, clock: Clock = time.monotonic) -> None:
        self.quantum, self.clock = quantum, clock
        self.studies: dict[int, ActiveStudy] = {}
        self.owners: dict[str, Account] = {}
        self.places: dict[int, Place] = {}  # by run id
        self.numbers = count()

    def add(self, study: ActiveStudy) -> None:
        """Let a study take part from now on."""
        study.number = next(self.numbers)
        study.last_epoch_at = self.clock()
        siblings = [other.account for other in self._of_owner(study.owner)]
        study.account = Account(study.priority.weight, _least(siblings))
        if study.owner not in self.owners:
            self.owners[study.owner] = Account(charged=_least(self.owners.values()))
        self.studies[study.id] = study
        self._weigh(study.owner)

    def remove(self, study: ActiveStudy) -> None:
        """Forget a study none of whose runs executes."""
        assert study.account.in_use == 0
        del self.studies[study.id]
        if not self._of_owner(study.owner):
            del self.owners[study.owner]
        else:
            self._weigh(study.owner)

    def set_priority(self, study: ActiveStudy, priority: Priority) -> None:
        study.priority, study.account.weight = priority, priority.weight
        self._weigh(study.owner)

    def next(self) -> RunRow | None:
        """Return the run that gets a free place, or None if no study has one to start."""
        study = self._least_charged(self.studies.values())
        if study is None:
            return None
        run = study.planner.next()
        assert run is not None  # it wanted a place
        self.places[run.id] = Place(study, self.clock())
        for account in self._accounts(study):
            account.in_use += 1
        return run

    def decide(self, run: RunRow, epoch: int, best: float | None) -> Decision:
        """Return what a run does after an epoch."""
        study = self._charge(run)
        study.last_epoch_at = self.clock()
        if study.planner.should_prune(run, epoch, best):
            return Decision.PRUNE
        if epoch < run.config["epochs"] and (study.is_leaving or self._should_yield(study)):
            return Decision.STOP
        return Decision.CONTINUE

    def ended(self, run: RunRow) -> None:
        """Take the next step of a run's study after the run has reached a terminal state."""
        self._free(run).planner.run_ended(run)

    def released(self, run: RunRow) -> None:
        """Queue a run again that was set down after an epoch."""
        self._free(run).planner.requeue(run.id)

    def worker_died(self, run: RunRow, reason: str) -> str:
        """Queue the run of a dead worker again, or fail it. Return what happened, for the view."""
        return self._free(run).planner.worker_died(run.id, reason)

    def failed(self, run: RunRow, error: Exception) -> None:
        """Give up the study of a run, if the error is the study's. Otherwise raise it."""
        study = self._free(run)
        if not (self.survives_bad_studies and isinstance(error, BAD_STUDY)):
            raise error
        study.problem, study.is_leaving = str(error), True

    def prune(self, run: RunRow) -> None:
        self.study_of(run).planner.prune(run)

    def study_of(self, run: RunRow) -> ActiveStudy:
        """Return the study of a run that executes."""
        return self.places[run.id].study

    @property
    def has_work(self) -> bool:
        return any(study.wants_a_place for study in self.studies.values())

    def spend(self, seconds: float) -> None:
        """Count elapsed time for the studies that have runs."""
        for study in self.studies.values():
            if study.account.in_use:
                study.spend(seconds)

    def _free(self, run: RunRow) -> ActiveStudy:
        study = self._charge(run)
        del self.places[run.id]
        for account in self._accounts(study):
            account.in_use -= 1
        return study

    def _charge(self, run: RunRow) -> ActiveStudy:
        """Charge a study for its place until now. Return the study."""
        place = self.places[run.id]
        now = self.clock()
        for account in self._accounts(place.study):
            account.charge(now - place.charged_until)
        place.charged_until = now
        return place.study

    def _should_yield(self, study: ActiveStudy) -> bool:
        """Tell whether any other study should have a place of this one.

        Looking only at the least charged one is not enough: while it waits in vain for a place of
        another owner, this owner's other studies would wait too.
        """
        others = [other for other in self.studies.values() if other is not study]
        return any(self._is_behind(other, study) and other.wants_a_place for other in others)

    def _is_behind(self, rival: ActiveStudy, study: ActiveStudy) -> bool:
        """Tell whether a rival would still be behind a study after one quantum more."""
        if rival.owner == study.owner:
            ours, theirs = study.account, rival.account
        else:
            ours, theirs = self.owners[study.owner], self.owners[rival.owner]
        theirs_later = theirs.cost(theirs.in_use + 2, self.quantum)
        return theirs_later <= ours.cost(ours.in_use, self.quantum)

    def _least_charged(self, studies: Iterable[ActiveStudy]) -> ActiveStudy | None:
        """Return the study that gets the next place, of those that want one."""

        def order(study: ActiveStudy) -> tuple[float, float, int]:
            account, owner = self._accounts(study)
            owner_cost = owner.cost(owner.in_use + 1, self.quantum)
            return owner_cost, account.cost(account.in_use + 1, self.quantum), study.number

        return next((study for study in sorted(studies, key=order) if study.wants_a_place), None)

    def _accounts(self, study: ActiveStudy) -> tuple[Account, Account]:
        return study.account, self.owners[study.owner]

    def _of_owner(self, owner: str) -> list[ActiveStudy]:
        return [study for study in self.studies.values() if study.owner == owner]

    def _weigh(self, owner: str) -> None:
        """Give an owner the weight of their most important study."""
        weights = [study.account.weight for study in self._of_owner(owner)]
        self.owners[owner].weight = max(weights)


def _least(accounts: Iterable[Account]) -> float:
    return min((account.charged for account in accounts), default=0.0)
