"""Races of seeds that are killed: the same runs, curves, weights and decisions as undisturbed."""

import os
import random
import subprocess

import pytest
from helpers.launch import CURVES, PLACINGS, RESULTS, command, launch, wait_for, workers_of
from helpers.serving import alike
from sqlalchemy import create_engine, text

from ressmooth.store import open_store

STUDY = """
name = "race"
dataset = "digits"
fraction = 0.2
epochs = 6
seeds = { race = true, at_least = 2, at_most = 6 }
resources = { retries = 100 }
[arms.sgd]
method = "mse"
weight_decay = { grid = [1e-2, 1e-3, 1e-4] }
[arms.laplace]
b = { grid = [0.3, 5.0, 20.0] }
"""
NO_MLFLOW = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}


class Home:
    """A race in a home of its own, on a database of either kind."""

    def __init__(self, directory, url):
        directory.mkdir()
        self.directory, self.file = directory, directory / "race.toml"
        self.file.write_text(STUDY)
        self.environment = {**os.environ, **NO_MLFLOW, "RESSMOOTH_DATABASE_URL": url}
        open_store(url).close()
        self.engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    def finish(self, workers):
        done = launch(
            self.file, self.directory, "--workers", str(workers), "--quiet", env=self.environment
        )
        assert done.returncode == 0, done.stderr

    def query(self, sql):
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(sql))]

    def rows(self):
        parts = [self.query(sql.partition("ORDER BY")[0]) for sql in (RESULTS, CURVES, PLACINGS)]
        return [alike(rows) for rows in parts]

    def kill_after(self, epochs, is_launcher):
        """Launch, and kill the launcher or its workers once so many epochs more are recorded."""
        count = "SELECT count(*) FROM epoch"
        ((before,),) = self.query(count)
        options = ("--workers", "2", "--quiet")
        arguments = command(self.file, self.directory, *options)
        launcher = subprocess.Popen(
            arguments, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(
            lambda: launcher.poll() is not None or self.query(count)[0][0] >= before + epochs, 300
        )
        if not is_launcher:
            for worker in workers_of(launcher):
                worker.kill()
        launcher.kill()
        launcher.wait()


@pytest.mark.slow
def test_a_killed_race_ends_as_an_undisturbed_one(store_url, tmp_path):
    calm = Home(tmp_path / "calm", f"sqlite:///{tmp_path}/calm.db")
    calm.finish(workers=1)
    results, curves, placings = calm.rows()
    assert len(placings) == 6 and any("dropped" in row for row in placings)
    assert 12 < len(results) < 36

    killed = Home(tmp_path / "killed", store_url)
    chance = random.Random(0)
    for n in range(4):  # also in the rounds
        killed.kill_after(chance.randrange(10, 40), is_launcher=n % 2 == 0)
    killed.finish(workers=2)
    assert killed.rows() == [results, curves, placings]

    before = killed.rows()
    killed.finish(workers=2)  # trains nothing
    assert killed.rows() == before
