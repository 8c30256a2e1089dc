"""`ressmooth serve` in processes of its own, and the studies that are submitted to it."""

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

from click.testing import CliRunner
from helpers.launch import CURVES, EPOCHS, RESULTS, TINY, invoke, wait_for
from sqlalchemy import NullPool, create_engine, text

from ressmooth.cli import main
from ressmooth.spec import find_plugins, load
from ressmooth.store import open_store

NO_MLFLOW = "http://127.0.0.1:9"  # nothing listens there
TABLES = ("study", "trial", "run", "epoch", "outbox", "notification", "service")


def alike(rows):
    """Sort rows whose JSON is text in SQLite and a dict in PostgreSQL."""
    return sorted((arm, str(params).replace("'", '"'), *rest) for arm, params, *rest in rows)


def undisturbed_results(home):
    """Return what `ServedHome.results` returns for the study of a home with one study."""
    with closing(sqlite3.connect(home / "results.db")) as connection:
        return [alike(connection.execute(sql).fetchall()) for sql in (RESULTS, CURVES)]


class ServedHome:
    """A home whose studies services run, on a database of either kind."""

    def __init__(self, directory, url=None, **environment):
        directory.mkdir(exist_ok=True)
        self.directory, self.url = directory, url or f"sqlite:///{directory}/results.db"
        self.store = open_store(self.url)
        address = self.url.replace("postgresql://", "postgresql+psycopg://")
        # a connection for each query, because a test may stop the server
        self.engine = create_engine(address, poolclass=NullPool)
        own = {"RESSMOOTH_DATABASE_URL": self.url, "MLFLOW_TRACKING_URI": NO_MLFLOW}
        self.environment = own | environment
        self.services = []

    def serve(self, *options):
        """Start a service, and return its process with a `log`."""
        options = [*options, "--home", str(self.directory)]
        options += [] if "--workers" in options else ["--workers", "2"]
        file = self.directory / f"serve{len(self.services)}.log"
        with open(file, "w") as log:
            service = subprocess.Popen(
                [sys.executable, "-m", "ressmooth.cli", "serve", *options],
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
            )
        service.log = file
        self.services.append(service)
        return service

    def serving(self, *options):
        """Start a service, and return it once it serves."""
        service = self.serve(*options)
        self.wait(lambda: self.is_serving(service), service)
        return service

    def is_serving(self, service):
        row = self.store.service()
        return row is not None and row.holder.pid == service.pid

    def wait(self, condition, service, seconds=300):
        """Wait for a condition while a service lives."""

        def holds():
            assert service.poll() is None, service.log.read_text()
            return condition()

        return wait_for(holds, seconds)

    def stop(self, service, number=signal.SIGTERM):
        """Send a signal to a service. Return its exit code."""
        service.send_signal(number)
        return service.wait(120)

    def file(self, name, epochs=EPOCHS, content=TINY):
        file = self.directory / f"{name}.toml"
        file.write_text(content.format(epochs=epochs).replace('"tiny"', f'"{name}"'))
        return file

    def submit(self, name, *options, epochs=EPOCHS, owner="mia@box"):
        """Submit a study as a user does."""
        return self.study(self.file(name, epochs), "--detach", *options, owner=owner)

    def study(self, file, *options, owner="mia@box"):
        environment = {**self.environment, "RESSMOOTH_USER": owner}
        done = invoke(file, self.directory, *options, env=environment)
        assert done.exit_code == 0, done.output
        return done

    def spec(self, file, plugin, *overrides):
        """Read a study without trying it."""
        return load(str(file), [o for o in overrides if o != "--set"], find_plugins([plugin]))

    def command(self, *words):
        """Run a `ressmooth` command. Return what it prints."""
        arguments = [*words, "--home", str(self.directory)]
        done = CliRunner().invoke(main, arguments, env=self.environment)
        assert done.exit_code == 0, done.output
        return done.output

    def state(self, name):
        return self.store.study(name).state

    def wait_until(self, name, state, service, seconds=300):
        self.wait(lambda: self.state(name) == state, service, seconds)

    def wait_for_epochs(self, name, count, service):
        """Wait until a study has so many epochs. Return how many it has."""
        sql = f"""
            SELECT count(*) FROM epoch JOIN run ON run.id = epoch.run_id
            JOIN trial ON trial.id = run.trial_id JOIN study ON study.id = trial.study_id
            WHERE name = '{name}' HAVING count(*) >= {count}
        """
        return self.wait(lambda: self.query(sql), service)[0][0]

    def query(self, sql):
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(sql))]

    def results(self, name):
        """Return a study's runs and curves, to compare with another's."""
        of_study = f"JOIN study ON study.id = trial.study_id WHERE study.name = '{name}'"
        queries = [sql.partition("ORDER BY")[0] + of_study for sql in (RESULTS, CURVES)]
        return [alike(self.query(sql)) for sql in queries]

    def digest(self):
        """Return a hash of all rows."""
        rows = [sorted(map(repr, self.query(f"SELECT * FROM {table}"))) for table in TABLES]
        return hashlib.sha256(repr(rows).encode()).hexdigest()

    def close(self):
        for service in self.services:
            if service.poll() is None:
                service.send_signal(signal.SIGCONT)
                service.kill()
                service.wait()
        self.engine.dispose()
        self.store.close()
