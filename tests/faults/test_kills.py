"""kill -9 of launchers, services and workers at random: nothing is lost, nothing doubled.

The slow tier does a dozen kills, `pytest -m chaos` 1,000: of launchers and workers on both engines,
and of services, on both kinds of database. Nine of ten wait for new epochs, so they hit training.
"""

import os
import random
import subprocess
import time
from contextlib import suppress

import psutil
import pytest
from helpers.launch import CURVES, RESULTS, command, wait_for, workers_of
from helpers.serving import ServedHome, alike
from sqlalchemy import create_engine, text

from ressmooth.store import open_store

STUDY = """
name = "killed"
dataset = "digits"
fraction = 0.2
epochs = 40
seeds = 2
[resources]
retries = 100
[arms.sgd]
method = "mse"
weight_decay = {{ grid = [{decays}] }}
[arms.laplace]
b = {{ grid = [{widths}] }}
"""
EPOCHS = "SELECT count(*) FROM epoch"
# one statement sees one state: a second one would already see the next epoch of another worker
RECORDED = """
SELECT run.id, last_epoch, epoch, train_loss, val_acc
FROM run LEFT JOIN epoch ON run_id = run.id
"""
OVER = "SELECT count(*) FROM run HAVING count(*) > 0 AND count(*) = count(finished_at)"
TRAINING = "SELECT 1 FROM run WHERE state = 'running' AND last_epoch > 0"
# each selects what must never be there
BROKEN = {
    "an epoch was not announced once": """
        SELECT epoch.run_id, epoch.epoch FROM epoch LEFT JOIN outbox
        ON outbox.run_id = epoch.run_id AND outbox.epoch = epoch.epoch AND kind = 'epoch'
        GROUP BY epoch.run_id, epoch.epoch HAVING count(outbox.id) <> 1""",
    "a run ended without its last epoch or its weights": """
        SELECT id FROM run WHERE state = 'complete'
        AND (last_epoch < 38 OR weights_sha256 IS NULL OR finished_at IS NULL)""",
    "a run failed": "SELECT id, error FROM run WHERE state = 'failed'",
    "a seed is there twice": "SELECT trial_id FROM run GROUP BY trial_id, seed HAVING count(*) > 1",
    "a trial ended before its runs": """
        SELECT trial.id FROM trial JOIN run ON trial_id = trial.id
        WHERE trial.state = 'complete' AND run.state <> 'complete'""",
    "an attempt is lost": "SELECT id FROM run WHERE attempt < failures",
}
LAUNCHER = {"local": 0.3, "ray": 0.15}  # share of kills that hit it; a Ray takes long to start
ANY_CHILD = 0.1  # share of the others that hit any child: also Ray's own processes
EARLY = 0.1  # share of kills that do not wait for epochs


def study_text(cells):
    decays = ", ".join(f"{1 + n}e-4" for n in range(cells))
    widths = ", ".join(f"{0.1 + n / 1000:.3f}" for n in range(cells))
    return STUDY.format(decays=decays, widths=widths)


class Home:
    """A study in a home of its own, on a database of either kind."""

    def __init__(self, directory, url, cells, engine="local"):
        self.options = ["--workers", "2", "--quiet", "--engine", engine]
        self.kind = engine
        self.directory, self.file = directory, directory / "killed.toml"
        directory.mkdir(exist_ok=True)
        self.file.write_text(study_text(cells))
        self.environment = {
            **os.environ,
            "RESSMOOTH_DATABASE_URL": url,
            "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        }
        open_store(url).close()
        self.engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    def start(self):
        return subprocess.Popen(
            command(self.file, self.directory, *self.options),
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def new_epochs(self, number, launcher):
        """Wait until so many more epochs are recorded, or there will be no more."""
        more = self.epochs() + number
        wait_for(lambda: self.epochs() >= more or self.query(OVER) or has_ended(launcher), 600)

    def epochs(self):
        return self.query(EPOCHS)[0][0]

    def finish(self):
        launcher = self.start()
        _, said = launcher.communicate()
        assert launcher.returncode == 0, said

    def query(self, sql):
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(sql))]

    def results(self):
        return [alike(self.query(sql.partition("ORDER BY")[0])) for sql in (RESULTS, CURVES)]


class Services(ServedHome):
    """Three studies of different owners, which one service after another runs."""

    kind = "local"

    def submit_all(self, texts):
        for name, content in texts.items():
            file = self.directory / f"{name}.toml"
            file.write_text(content)
            self.study(file, "--detach", owner=f"{name}@box")

    def start(self):
        return self.serve()

    new_epochs, epochs = Home.new_epochs, Home.epochs

    def finish(self, names):
        service = self.start()
        for name in names:
            self.wait_until(name, "ended", service, 1800)
        assert self.stop(service) == 143


class Watch:
    """Checks that recorded epochs stay unchanged and that no run goes back."""

    def __init__(self, home):
        self.home, self.epochs, self.reached = home, {}, {}

    def check(self):
        recorded = self.home.query(RECORDED)
        rows = [row for row in recorded if row[2] is not None]  # runs without an epoch have one row
        now = {(run, epoch): values for run, _, epoch, *values in rows}
        assert len(now) == len(rows), "an epoch is there twice"
        lost = {key for key, values in self.epochs.items() if now.get(key) != values}
        assert not lost, f"recorded, and now gone or changed: {lost}"
        reached = {run: last_epoch for run, last_epoch, *_ in recorded}
        back = {run for run, epoch in self.reached.items() if reached[run] < epoch}
        assert not back, f"went back: {back}"
        assert reached == {
            run: max((e for r, e in now if r == run), default=0) for run in reached
        }, "a run's last epoch is not its last row"
        self.epochs, self.reached = now, reached
        for what, sql in BROKEN.items():
            assert not self.home.query(sql), what
        if self.home.engine.dialect.name == "sqlite":
            assert self.home.query("PRAGMA quick_check") == [("ok",)]


def said_by(launcher):
    return launcher.stderr.read() if launcher.stderr else launcher.log.read_text()


def has_ended(launcher):
    return launcher.poll() is not None


class Killer:
    """Kills launchers and their processes, and launches again."""

    def __init__(self, home, chance):
        self.home, self.chance = home, chance
        self.done = {"launcher": 0, "worker": 0, "other": 0}
        self.launch()

    def launch(self):
        self.epochs_before, self.ray_was_hit = self.home.epochs(), False
        self.launcher = self.home.start()

    def is_training(self):
        """Tell whether this launcher's workers train, and not only those before them."""
        return self.home.epochs() > self.epochs_before and bool(self.home.query(TRAINING))

    def kill_one(self):
        if self.chance.random() < LAUNCHER[self.home.kind]:
            self.launcher.kill()
            self.launcher.wait()
            self.done["launcher"] += 1
        else:
            with suppress(psutil.NoSuchProcess, IndexError):  # there may be none yet
                self._kill_child()

    def _kill_child(self):
        victims = workers = workers_of(self.launcher)
        if self.chance.random() < ANY_CHILD:
            victims = psutil.Process(self.launcher.pid).children(recursive=True)
        victim = self.chance.choice(victims)
        victim.kill()
        self.done["worker" if victim in workers else "other"] += 1
        self.ray_was_hit |= self.home.kind == "ray" and victim not in workers

    def launch_again(self):
        """Launch if the last launcher was killed, or its Ray has not started or has died."""
        if not has_ended(self.launcher):
            return
        if self.launcher.returncode != -9:
            said = said_by(self.launcher)
            assert self.ray_was_hit or "timed out during startup" in said, said
            assert self.launcher.returncode in (1, 4), said
        self.launch()


def kill_at_random(home, kills, chance):
    """Launch, kill, launch again. Return the kills of each kind."""
    watch, killer = Watch(home), Killer(home, chance)
    training = 0  # kills that hit a study whose runs had begun to train
    while (before := sum(killer.done.values())) < kills:
        killer.launch_again()
        if chance.random() > EARLY:
            home.new_epochs(chance.randrange(1, 12), killer.launcher)
        time.sleep(chance.uniform(0, 0.5))
        is_training = killer.is_training()
        if not has_ended(killer.launcher):
            killer.kill_one()
        training += is_training and sum(killer.done.values()) > before
        watch.check()
        print(f"kills: {killer.done}, {training} hit training", flush=True)  # shown by `pytest -s`
    killer.launcher.kill()
    killer.launcher.wait()
    assert training > kills / 2, "too few kills hit training"
    return watch, killer.done


@pytest.mark.parametrize(
    ("kills", "cells", "engine"),
    [
        pytest.param(12, 4, "local", id="short", marks=pytest.mark.slow),
        pytest.param(200, 25, "local", id="long", marks=pytest.mark.chaos),
        pytest.param(100, 25, "ray", id="ray", marks=pytest.mark.chaos),
    ],
)
def test_random_kills_change_nothing(store_url, tmp_path, kills, cells, engine):
    disturbed = Home(tmp_path / "disturbed", store_url, cells, engine)
    calm = Home(tmp_path / "calm", f"sqlite:///{tmp_path}/calm.db", cells)
    chance = random.Random(f"{engine} {kills} {disturbed.engine.dialect.name}")
    watch, done = kill_at_random(disturbed, kills, chance)
    left = sum(1 for run, epoch in watch.reached.items() if epoch < 40)
    assert left, "the study was over before the last kill"
    disturbed.finish()
    watch.check()
    calm.finish()
    assert disturbed.results() == calm.results()
    print(f"survived {done}; {left} runs were unfinished at the last kill")


@pytest.mark.parametrize(
    ("kills", "cells"),
    [
        pytest.param(10, 2, id="short", marks=pytest.mark.slow),
        pytest.param(200, 15, id="long", marks=pytest.mark.chaos),
    ],
)
def test_random_kills_of_a_service_change_nothing(store_url, tmp_path, kills, cells):
    texts = {  # they differ in what they train too
        name: study_text(cells).replace("killed", name).replace("40", str(40 - number))
        for number, name in enumerate(("first", "second", "third"))
    }
    disturbed = Services(tmp_path / "disturbed", store_url)
    disturbed.submit_all(texts)
    chance = random.Random(f"service {kills} {disturbed.engine.dialect.name}")
    watch, done = kill_at_random(disturbed, kills, chance)
    left = disturbed.query("SELECT name FROM study WHERE state != 'ended'")
    assert left, "the studies were over before the last kill"
    disturbed.finish(texts)
    watch.check()
    for name, content in texts.items():
        alone = Home(tmp_path / name, f"sqlite:///{tmp_path}/{name}.db", cells)
        alone.file.write_text(content)
        alone.finish()
        assert disturbed.results(name) == alone.results()
    ((attempts, runs),) = disturbed.query("SELECT sum(attempt), count(*) FROM run")
    assert attempts >= runs + kills / 2, "too few kills hit a run"
    print(f"survived {done}; {len(left)} studies unfinished then; {attempts} attempts, {runs} runs")
    disturbed.close()
