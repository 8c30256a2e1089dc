"""Shares of the workers, on a simulated clock. Runs train nothing."""

import heapq
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace

import pytest

from ressmooth.engines import Decision
from ressmooth.engines.scheduler import QUANTUM, ActiveStudy, Scheduler
from ressmooth.errors import DataChanged, StoreUnreachable
from ressmooth.store import Priority

IDS = count(1)


@dataclass
class Run:
    study_id: int
    epochs: int
    id: int = field(default_factory=lambda: next(IDS))
    done: int = 0

    @property
    def config(self):
        return {"epochs": self.epochs}


class Queue:
    """The part of a planner that a scheduler uses, without a Store."""

    def __init__(self, name, runs, epochs, hours=None):
        self.study_id = next(IDS)
        self.spec = SimpleNamespace(name=name, search=SimpleNamespace(hours=hours))
        self.waiting = deque(Run(self.study_id, epochs) for _ in range(runs))
        self.set_down = {}
        self.out_of_time = False

    def peek(self):
        return self.waiting[0] if self.waiting and not self.out_of_time else None

    def next(self):
        return self.waiting.popleft()

    def requeue(self, run_id):
        self.waiting.appendleft(self.set_down.pop(run_id))

    def run_ended(self, run):
        pass

    def should_prune(self, run, epoch, best):
        return False


class Simulation:
    """Workers that train epochs of a given length."""

    def __init__(self, workers, epoch_seconds=5.0):
        self.now, self.workers, self.epoch_seconds = 0.0, workers, epoch_seconds
        self.scheduler = Scheduler(clock=lambda: self.now)
        self.ends = []  # (time, number, run, study), of the epochs that are being trained
        self.numbers = count()
        self.used = Counter()  # seconds of workers by study
        self.switches = 0

    def add(self, name, owner="ann", priority="normal", runs=1000, epochs=20, hours=None):
        queue = Queue(name, runs, epochs, hours)
        study = ActiveStudy(queue, owner, Priority(priority))
        self.scheduler.add(study)
        return study

    def run(self, until):
        self._start()
        while self.ends and self.ends[0][0] <= until:
            self.now, _, run, study = heapq.heappop(self.ends)
            self.used[study.name] += self.epoch_seconds
            run.done += 1
            decision = self.scheduler.decide(run, run.done, None)
            if run.done == run.epochs:
                self.scheduler.ended(run)
            elif decision == Decision.STOP:
                self.switches += 1
                study.planner.set_down[run.id] = run
                self.scheduler.released(run)
            else:
                self._train(run, study)
            self._start()
        self.now = until

    def _start(self):
        while len(self.ends) < self.workers and (run := self.scheduler.next()) is not None:
            self._train(run, self.scheduler.study_of(run))

    def _train(self, run, study):
        heapq.heappush(self.ends, (self.now + self.epoch_seconds, next(self.numbers), run, study))

    def in_use(self, study):
        return study.account.in_use

    def share(self, study):
        return self.used[study.name] / sum(self.used.values())


RUN = 100.0  # seconds, 20 epochs of 5


def test_a_study_alone_has_all_places_and_is_never_set_down():
    simulation = Simulation(workers=4)
    study = simulation.add("a", runs=9)
    simulation.run(3 * RUN)
    assert simulation.used["a"] == 9 * RUN
    assert simulation.switches == 0
    assert study.is_idle


def test_owners_share_before_their_studies_do():
    """Two owners on two workers, one of them with two studies."""
    simulation = Simulation(workers=2)
    first, second = simulation.add("a1"), simulation.add("a2")
    other = simulation.add("b1", owner="bob")
    for lap in range(1, 30):
        simulation.run(lap * RUN)
        total = sum(simulation.used.values())
        assert abs(simulation.used["b1"] - total / 2) <= RUN
        assert abs(simulation.used["a1"] - total / 4) <= RUN
        assert abs(simulation.used["a2"] - total / 4) <= RUN
    assert simulation.in_use(other) == 1
    assert simulation.in_use(first) + simulation.in_use(second) == 1


def test_ten_studies_of_one_owner_do_not_starve_the_only_one_of_another():
    simulation = Simulation(workers=2)
    for number in range(10):
        simulation.add(f"a{number}")
    simulation.run(2.5 * RUN)
    other = simulation.add("b", owner="bob")
    simulation.run(2.5 * RUN + simulation.epoch_seconds)
    assert simulation.in_use(other) == 1
    before = dict(simulation.used)
    simulation.run(32.5 * RUN)
    total = sum(simulation.used.values()) - sum(before.values())
    assert abs(simulation.used["b"] - total / 2) <= RUN


@pytest.mark.parametrize("joins_at", [0.0, 7.0, 2.5 * RUN, 3.3 * RUN])
@pytest.mark.parametrize("priority", ["low", "normal", "high"])
def test_studies_of_an_owner_take_turns_whenever_another_owner_joins(joins_at, priority):
    """Also while the other owner is a little behind, but not enough to get one more place."""
    simulation = Simulation(workers=2)
    for name in ("a1", "a2"):
        simulation.add(name, epochs=100_000)
    simulation.run(joins_at)
    simulation.add("b", "bob", priority, epochs=100_000)
    simulation.run(joins_at + 60 * RUN)
    assert abs(simulation.used["a1"] - simulation.used["a2"]) <= 2 * QUANTUM


@pytest.mark.parametrize("seed", range(8))
def test_any_studies_of_any_owners_get_their_shares(seed):
    chance = random.Random(seed)
    simulation, studies = Simulation(chance.randint(1, 5)), []
    for number in range(chance.randint(2, 8)):
        owner, priority = chance.choice("abc"), chance.choice([*Priority])
        studies.append(simulation.add(f"s{number}", owner, priority, runs=9, epochs=100_000))
        simulation.run(simulation.now + chance.uniform(0, 3 * RUN))
    simulation.run(simulation.now + 20 * RUN)
    before, seconds = Counter(simulation.used), 100 * RUN
    simulation.run(simulation.now + seconds)
    weights = {study.owner: simulation.scheduler.owners[study.owner].weight for study in studies}
    for study in studies:
        siblings = sum(other.account.weight for other in studies if other.owner == study.owner)
        share = weights[study.owner] / sum(weights.values()) * study.account.weight / siblings
        used = simulation.used[study.name] - before[study.name]
        assert abs(used - share * simulation.workers * seconds) <= 3 * RUN


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("owners", [("ann", "ann"), ("ann", "bob")])
def test_shares_follow_the_weights_and_nobody_starves(workers, owners):
    simulation = Simulation(workers)
    low = simulation.add("low", owners[0], "normal")
    high = simulation.add("high", owners[1], "high")
    simulation.run(200 * RUN)
    assert simulation.share(high) == pytest.approx(16 / 20, abs=0.03)
    assert simulation.share(low) == pytest.approx(4 / 20, abs=0.03)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("running", ["low", "normal"])
def test_a_high_priority_study_gets_its_places_within_one_epoch(workers, running):
    simulation = Simulation(workers)
    simulation.add("running", "ann", running)
    simulation.run(3.3 * RUN)
    high = simulation.add("high", "bob", "high")
    simulation.run(3.3 * RUN + 5.0)
    places = round(workers * 16 / (16 + Priority(running).weight))
    assert simulation.in_use(high) >= max(1, places)


def test_places_do_not_change_hands_all_the_time():
    simulation = Simulation(workers=2, epoch_seconds=0.5)
    for number in range(3):
        simulation.add(f"s{number}", epochs=100_000)
    simulation.run(3600)
    assert 0 < simulation.switches <= 2 * 3600 / QUANTUM
    assert all(abs(used - 2400) <= 3 * QUANTUM for used in simulation.used.values())


def test_a_study_that_joins_late_has_not_saved_up_time():
    simulation = Simulation(workers=2)
    simulation.add("early", "ann")
    simulation.run(50 * RUN)
    before = simulation.used["early"]
    simulation.add("late", "bob")
    simulation.run(70 * RUN)
    assert abs(simulation.used["early"] - before - 20 * RUN) <= RUN
    assert abs(simulation.used["late"] - 20 * RUN) <= RUN


def test_a_stopped_study_sets_its_runs_down_and_its_places_go_to_others():
    simulation = Simulation(workers=2)
    stopped, other = simulation.add("stopped", "ann"), simulation.add("other", "bob")
    simulation.run(12.0)
    stopped.is_leaving = True
    simulation.run(17.0)
    assert (simulation.in_use(stopped), simulation.in_use(other)) == (0, 2)
    assert stopped.is_idle
    simulation.scheduler.remove(stopped)
    assert "ann" not in simulation.scheduler.owners


def test_a_run_is_not_set_down_after_its_last_epoch():
    simulation = Simulation(workers=1)
    study = simulation.add("a", runs=1, epochs=3)
    simulation.run(7.0)
    study.is_leaving = True
    run = simulation.ends[0][2]
    assert simulation.scheduler.decide(run, 3, None) == Decision.CONTINUE


def test_a_changed_priority_counts_from_now_on():
    simulation = Simulation(workers=2)
    first, second = simulation.add("a", "ann"), simulation.add("b", "bob")
    simulation.run(20 * RUN)
    simulation.scheduler.set_priority(first, Priority.HIGH)
    before = dict(simulation.used)
    simulation.run(220 * RUN)
    gained = {name: simulation.used[name] - before[name] for name in before}
    assert gained["a"] / sum(gained.values()) == pytest.approx(16 / 20, abs=0.03)
    assert second.account.weight == 4


def test_a_spent_time_budget_ends_a_study():
    simulation = Simulation(workers=1)
    study = simulation.add("a", hours=0.1)
    simulation.run(10.0)
    simulation.scheduler.spend(300.0)
    assert study.wants_a_place
    simulation.scheduler.spend(100.0)
    assert study.planner.out_of_time and not study.wants_a_place


def test_an_error_of_a_study_is_raised_or_fails_that_study_alone():
    simulation = Simulation(workers=2)
    study, other = simulation.add("a", "ann"), simulation.add("b", "bob")
    scheduler = simulation.scheduler
    runs = [scheduler.next(), scheduler.next()]
    with pytest.raises(DataChanged):
        scheduler.failed(runs[0], DataChanged("other files"))
    scheduler.survives_bad_studies = True
    with pytest.raises(StoreUnreachable):
        scheduler.failed(runs[1], StoreUnreachable("gone"))
    run = scheduler.next()
    bad = scheduler.study_of(run)
    scheduler.failed(run, DataChanged("other files"))
    assert (bad.problem, bad.is_leaving) == ("other files", True)
    assert not (study if bad is other else other).is_leaving
