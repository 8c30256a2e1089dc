"""Creating and upgrading the schema."""

import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from helpers.published import published_figures
from helpers.store_rows import ENVIRONMENT, epoch, record, spec
from sqlalchemy import inspect, text

from ressmooth.errors import SchemaError, StorageError
from ressmooth.store import Donor, Store, database, migrate, migrations, open_store, upgrade
from ressmooth.store.tables import Base

PUBLISHED = {row.problem for row in published_figures()}
ASSETS = Path(__file__).parent / "assets"

ADD_A_NOTE = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0006", "0005"
def upgrade():
    with op.batch_alter_table("trial") as trial:
        trial.add_column(sa.Column("note", sa.Text))
        trial.alter_column("arm", nullable=True)  # SQLite has to rebuild the table for this
    op.execute("UPDATE trial SET note = 'old'")
"""
ROWS_OF_0001 = (
    """INSERT INTO study (id, uid, name, spec, file_text, created_at, elapsed)
       VALUES (1, 'u', 'demo', '{"grid": {"b": [0.3, 0.5]}}', '', '2026-01-01 00:00:00', 0)""",
    """INSERT INTO trial (id, study_id, arm, branch, number_in_branch, params, state,
                          sampler_state, created_at)
       VALUES (1, 1, 'sgd', 'sgd b=0.5', 0, '{}', 'running', '{}', '2026-01-01 00:00:00')""",
    """INSERT INTO run (id, uid, trial_id, seed, state, attempt, failures, config, last_epoch)
       VALUES (1, 'r', 1, 0, 'waiting', 0, 0, '{"dataset": "digits", "model": "small",
               "fraction": 0.5, "b": 0.5, "lr": 0.2}', 0)""",
)
FAIL_HALFWAY = ADD_A_NOTE + "    raise RuntimeError('halfway')\n"
LEAVE_ORPHANS = ADD_A_NOTE + "    op.execute('DELETE FROM run')\n"


@pytest.fixture
def next_release(tmp_path, monkeypatch):
    """Return a function that adds migration 0006 to this release."""

    def release(migration):
        directory = tmp_path / "migrations"
        shutil.copytree(Path(migrations.__file__).parent, directory)
        (directory / "versions" / "0006_next.py").write_text(migration)
        monkeypatch.setattr(migrate, "MIGRATIONS", directory)
        for module in (migrate, database):
            monkeypatch.setattr(module, "HEAD", "0006")

    return release


def stamp(store, revision):
    with store.database.engine.begin() as connection:
        connection.execute(text("UPDATE ressmooth_version SET version_num = :r"), {"r": revision})


def columns(store, table):
    with store.database.engine.connect() as connection:
        return {column["name"] for column in inspect(connection).get_columns(table)}


def test_tables_and_migrations_agree(store):
    options = {"version_table": migrations.VERSION_TABLE, "compare_type": True}
    with store.database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


def test_head_is_the_last_of_a_linear_history():
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [migrations.HEAD]
    ids = [script.revision for script in scripts.walk_revisions()]
    assert ids == sorted(ids, reverse=True)


def test_migrations_are_installed_with_the_package():
    """Setuptools installs only directories with an __init__.py."""
    assert import_module("ressmooth.store.migrations.versions").__file__ is not None


def test_upgrading_creates_the_tables_once(store_url):
    assert upgrade(store_url) == (None, "0005")
    store = Store(store_url)
    attempt = record(store)
    before = store.curve(attempt.run_id)
    assert upgrade(store_url) == ("0005", "0005")
    assert store.curve(attempt.run_id) == before
    tables = {"study", "trial", "run", "epoch", "baseline", "outbox", "ressmooth_version"}
    tables |= {"service", "notification", "race"}
    with store.database.engine.connect() as connection:
        assert set(inspect(connection).get_table_names()) == tables
    store.close()


def test_a_store_without_tables_is_not_opened(store_url):
    if store_url.startswith("sqlite"):
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection:
            connection.execute("CREATE TABLE other (id)")
    for attempt in (Store, lambda url: open_store(url, create=False)):
        with pytest.raises(SchemaError, match="no tables yet.*ressmooth db upgrade"):
            attempt(store_url)
    open_store(store_url).close()


def test_an_older_schema_is_refused_with_the_command_to_upgrade(store, next_release):
    next_release(ADD_A_NOTE)
    for attempt in (Store, open_store):
        with pytest.raises(SchemaError, match="older schema 0005.*0006.*ressmooth db upgrade"):
            attempt(store.url)
    assert "note" not in columns(store, "trial")


def test_a_newer_schema_is_refused(store):
    stamp(store, "0006")
    for attempt in (Store, open_store, upgrade):
        with pytest.raises(SchemaError, match="schema 0006, which is newer.*0005"):
            attempt(store.url)


def test_an_upgrade_keeps_every_row(store, next_release):
    attempt = record(store)
    run, curve = store.run(attempt.run_id), store.curve(attempt.run_id)
    next_release(ADD_A_NOTE)
    assert upgrade(store.url) == ("0005", "0006")
    upgraded = Store(store.url)
    assert "note" in columns(upgraded, "trial")
    assert (upgraded.run(run.id), upgraded.curve(run.id)) == (run, curve)
    upgraded.record_epoch(attempt, epoch(4), None)
    upgraded.close()


def backups(file):
    return sorted(file.parent.glob(f"{file.name}.0005-*"))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "home" / "results.db"


def test_an_older_file_is_backed_up_first(file, next_release, monkeypatch):
    store = open_store(f"sqlite:///{file}")
    attempt = record(store)
    curve = store.curve(attempt.run_id)
    store.close()
    assert backups(file) == []
    next_release(ADD_A_NOTE)
    for _ in range(2):
        upgrade(f"sqlite:///{file}")
    [backup] = backups(file)
    assert backup.name.endswith(".backup")
    monkeypatch.undo()
    store = Store(f"sqlite:///{backup}")
    assert store.curve(attempt.run_id) == curve
    store.close()


def test_if_the_backup_fails_nothing_is_upgraded(file, next_release, monkeypatch):
    store = open_store(f"sqlite:///{file}")
    next_release(ADD_A_NOTE)
    monkeypatch.setattr(migrate.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(StorageError, match="Cannot back up .*full"):
        upgrade(store.url)
    assert "note" not in columns(store, "trial")
    assert [path.name for path in file.parent.iterdir()] == ["results.db"]
    store.close()


def test_a_failed_upgrade_changes_nothing(store, next_release, monkeypatch):
    attempt = record(store)
    next_release(FAIL_HALFWAY)
    with pytest.raises(RuntimeError, match="halfway"):
        upgrade(store.url)
    assert "note" not in columns(store, "trial")
    monkeypatch.undo()
    reopened = Store(store.url)
    reopened.record_epoch(attempt, epoch(4), None)
    reopened.close()


def test_an_upgrade_that_would_orphan_rows_is_rolled_back(store, next_release):
    attempt = record(store)
    next_release(LEAVE_ORPHANS)
    with pytest.raises(Exception, match="rows refer to missing rows|violates foreign key"):
        upgrade(store.url)
    assert len(store.curve(attempt.run_id)) == 3
    assert store.run(attempt.run_id).last_epoch == 3


def test_one_of_many_upgraders_upgrades(store, next_release):
    record(store)
    next_release(ADD_A_NOTE)
    # A deadlock becomes an error.
    limit = "&options=-c%20lock_timeout%3D20s" if store.url.startswith("postgresql") else ""
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(upgrade, [store.url + limit] * 4))
    assert sorted(results) == [("0005", "0006")] + [("0006", "0006")] * 3
    if store.url.startswith("sqlite"):
        assert len(backups(Path(store.url.removeprefix("sqlite:///")))) == 1


def test_tables_of_another_program_are_not_changed(store_url):
    made = open_store(store_url)
    with made.database.engine.begin() as connection:
        connection.execute(text("DROP TABLE ressmooth_version"))
    made.close()
    with pytest.raises(SchemaError, match="tables of another program .*epoch.*database of its own"):
        upgrade(store_url)


def test_a_database_of_schema_0001_is_upgraded_and_used(tmp_path):
    """assets/store_0001.db was written by the release with schema 0001. Never change it."""
    file = tmp_path / "results.db"
    shutil.copy(ASSETS / "store_0001.db", file)
    upgrade(f"sqlite:///{file}")
    store = Store(f"sqlite:///{file}")
    study = store.study("demo")
    assert store.open_study(spec()) == study.id
    done, failed = store.trials(study.id)
    assert (done.state, done.value, done.params) == ("complete", 90.5, {"b": 0.3, "ö": "字"})
    assert [run.state for run in done.runs] == ["complete", "complete"]
    assert [run.max_acc for run in done.runs] == [90.0, 91.0]
    assert [row.val_acc for row in store.curve(done.runs[1].id)] == [70.0, None, 91.0]
    assert store.checkpoints(done.runs[1].id) == [(3, "ab" * 32), (1, "ab" * 32)]
    assert [run.state for run in failed.runs] == ["failed", "waiting"]
    problem = {"dataset": "digits", "fraction": 0.5, "model": "small"}
    assert [(trial.condition, trial.confirms) for trial in (done, failed)] == [(problem, None)] * 2
    assert len(store.published_figures(PUBLISHED)) == 124
    assert failed.runs[0].error == "diverged at epoch 2"
    assert store.count_pending(study.id) == 8 + 1  # the study has changed since

    assert store.reset_failed(study.id) == 1
    for run in store.trial(failed.id).runs:
        attempt = store.claim(run.id, ENVIRONMENT)
        store.record_epoch(attempt, epoch(1), None)
        store.finish_run(attempt, "complete", max_acc=88.0)
    assert {run.state for run in store.trial(failed.id).runs} == {"complete"}
    store.close()


def test_a_database_of_schema_0002_is_used(tmp_path):
    """assets/store_0002.db was written by the release with schema 0002. Never change it."""
    file = tmp_path / "results.db"
    shutil.copy(ASSETS / "store_0002.db", file)
    upgrade(f"sqlite:///{file}")
    store = Store(f"sqlite:///{file}")
    study = store.study("demo")
    assert store.open_study(spec(confirm=2)) == study.id
    (winner,) = store.winners(study.id)
    assert (winner.trial.params, winner.trial.value, winner.tried) == (
        {"weight_decay": 1e-3},
        82.5,
        2,
    )
    assert winner.trial.condition == {"dataset": "digits", "fraction": 0.5, "model": "small"}
    fresh = winner.confirmation
    assert [(run.seed, run.state, run.max_acc) for run in fresh.runs] == [
        (10_000, "complete", 81.0),
        (10_001, "waiting", None),
    ]
    assert len(store.published_figures(PUBLISHED)) == 124

    attempt = store.claim(fresh.runs[1].id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1), None)
    metrics = {"nll": {"max": 0.5, "mean": 0.6, "test": 0.7}}
    store.finish_run(attempt, "complete", max_acc=80.0, mean_acc=79.0, metrics=metrics)
    before, after = store.trial(fresh.id).runs
    assert [run.result("nll", "mean") for run in (before, after)] == [None, 0.6]
    assert [run.result("accuracy", "max") for run in (before, after)] == [81.0, 80.0]
    assert store.curve(fresh.runs[0].id)[0].val_nll is None
    store.finish_trial(fresh.id, "complete", 80.5)
    assert store.winners(study.id)[0].confirmation.value == 80.5
    store.close()


def test_a_database_of_schema_0003_is_used(tmp_path):
    """assets/store_0003.db was written by the release with schema 0003. Never change it."""
    file = tmp_path / "results.db"
    shutil.copy(ASSETS / "store_0003.db", file)
    assert upgrade(f"sqlite:///{file}") == ("0003", "0005")
    store = Store(f"sqlite:///{file}")
    study = store.study("demo")
    assert study.spec["resources"]["gpus_per_run"] == 0.0
    assert store.open_study(spec()) == study.id  # the default has changed
    done, waiting = store.trials(study.id)[0].runs
    assert (done.state, done.metrics, done.data_sha256) == ("complete", {"nll": {"max": 0.5}}, "cd")
    before = store.curve(done.id)
    assert [(row.val_nll, row.gpu_memory_mib) for row in before] == [(0.5, None)] * 2

    attempt = store.claim(waiting.id, ENVIRONMENT)
    store.record_epoch(attempt, epoch(1, gpu_memory_mib=3072.0, gpu_power_watts=99.5), None)
    (row,) = store.curve(waiting.id)
    assert (row.gpu_memory_mib, row.gpu_utilization_percent, row.gpu_power_watts) == (
        3072.0,
        None,
        99.5,
    )
    store.finish_run(attempt, "complete", max_acc=80.0)
    store.close()


def test_a_database_of_schema_0004_is_used(tmp_path):
    """assets/store_0004.db was written by the release with schema 0004. Never change it."""
    file = tmp_path / "results.db"
    shutil.copy(ASSETS / "store_0004.db", file)
    assert upgrade(f"sqlite:///{file}") == ("0004", "0005")
    store = Store(f"sqlite:///{file}")
    study = store.study("demo")
    assert store.open_study(spec()) == study.id
    done, waiting = store.trials(study.id)[0].runs
    assert (done.state, done.max_acc, done.gpus, done.seconds) == ("complete", 81.0, "0", 4.5)
    assert [row.gpu_memory_mib for row in store.curve(done.id)] == [3072.0] * 3
    for run in (done, waiting):  # they share nothing: their checkpoints are gone
        assert (run.prefix, run.plain_epochs, run.forked_from, run.forked_at) == (None,) * 4

    attempt = store.claim(waiting.id, ENVIRONMENT)
    store.record_fork(attempt, Donor(done.id, done.uid, 2, "ab"))
    store.finish_run(attempt, "complete", max_acc=80.0)
    assert (store.run(waiting.id).forked_from, store.run(waiting.id).forked_at) == (done.id, 2)
    store.delete_study(study.id)
    store.close()


def test_migration_0002_fills_in_conditions_from_recorded_runs(store_url, tmp_path, monkeypatch):
    directory = tmp_path / "first"
    shutil.copytree(Path(migrations.__file__).parent, directory)
    for later in ("0002_comparison", "0003_open", "0004_service", "0005_prefixes"):
        (directory / "versions" / f"{later}.py").unlink()
    monkeypatch.setattr(migrate, "MIGRATIONS", directory)
    monkeypatch.setattr(migrate, "HEAD", "0001")
    upgrade(store_url)
    monkeypatch.undo()
    old = database.Database(store_url)
    with old.engine.begin() as connection:
        for statement in ROWS_OF_0001:
            connection.execute(text(statement.replace(":", r"\:")))
    old.close()
    assert upgrade(store_url) == ("0001", "0005")
    upgraded = Store(store_url)
    (trial,) = upgraded.trials(1)
    problem = {"dataset": "digits", "model": "small", "fraction": 0.5}
    assert trial.condition == {**problem, "b": 0.5}
    assert len(upgraded.published_figures(PUBLISHED)) == 124
    upgraded.close()
