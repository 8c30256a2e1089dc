"""Database URLs, and SQLite files that are damaged, missing or full."""

import hashlib
import os
import shutil
import sqlite3
from contextlib import closing

import pytest
from helpers.store_rows import epoch, record

from ressmooth.errors import ConfigError, StorageError, StoreCorrupt, StoreUnreachable
from ressmooth.store import Store, default_url, open_store, safe_url, upgrade

PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452") + bytes(4096)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "results.db"


def is_sound(file):
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]


# URLs


def test_the_default_url_is_in_the_home_unless_the_environment_sets_one(tmp_path, monkeypatch):
    monkeypatch.delenv("RESSMOOTH_DATABASE_URL", raising=False)
    assert default_url(tmp_path) == f"sqlite:///{tmp_path}/results.db"
    monkeypatch.setenv("RESSMOOTH_DATABASE_URL", "postgresql://db/results")
    assert default_url(tmp_path) == "postgresql://db/results"


@pytest.mark.parametrize(
    "url, shown",
    [
        ("sqlite:////home/me:you@there/results.db", "sqlite:////home/me:you@there/results.db"),
        ("postgresql://u:sekret@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("postgresql+psycopg://u:se:k@ret@h/db", "postgresql+psycopg://u:***@h/db"),
        (
            "postgresql://h/db?user=u&password=sekret&x=1",
            "postgresql://h/db?user=u&password=***&x=1",
        ),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
    ],
)
def test_a_password_is_never_shown(url, shown):
    assert safe_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "results.db",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///results.db?mode=memory",
        "mysql://u:sekret@h/db",
        "oracle+nothing://u:sekret@h/db",
        "postgresql://u:sekret@h:port/db",
        "postgresql://u:x@sekret@h/db",
    ],
)
def test_an_unsupported_url_is_an_error_without_its_password(url):
    with pytest.raises(ConfigError) as raised:
        open_store(url)
    assert "sekret" not in str(raised.value)


def test_a_path_may_have_special_characters(tmp_path):
    directory = tmp_path / "größe 100% #1 & so"
    store = open_store(f"sqlite:///{directory}/results.db")
    record(store)
    store.close()
    assert (directory / "results.db").exists()


# files


@pytest.mark.parametrize(
    "content",
    [b"garbage", b"\0" * 5000, PNG, b"SQLite format 3\0" + os.urandom(4080)],
    ids=["text", "zeros", "png", "header"],
)
@pytest.mark.parametrize("create", [False, True])
def test_a_file_that_is_not_a_database_is_not_changed(file, content, create):
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="results.db is damaged.*not changed"):
        open_store(f"sqlite:///{file}", create=create)
    with pytest.raises(StoreCorrupt):
        upgrade(f"sqlite:///{file}")
    assert file.read_bytes() == content
    assert os.listdir(file.parent) == ["results.db"]


@pytest.mark.parametrize("create", [False, True])
def test_a_truncated_database_is_not_changed(file, create):
    store = open_store(f"sqlite:///{file}")
    record(store)
    store.close()
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2 // 4096 * 4096])
    before = hashlib.sha256(file.read_bytes()).digest()
    with pytest.raises(StoreCorrupt, match="malformed"):
        open_store(f"sqlite:///{file}", create=create)
    assert hashlib.sha256(file.read_bytes()).digest() == before


def test_a_damaged_page_is_found_when_it_is_read(file):
    store = open_store(f"sqlite:///{file}")
    attempt = record(store)
    with store.database.engine.connect() as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'epoch'"
        page = connection.exec_driver_sql(query).scalar()
    store.close()
    with open(file, "r+b") as raw:
        raw.seek((page - 1) * 4096)
        raw.write(b"\xff" * 4096)
    store = open_store(f"sqlite:///{file}")
    with pytest.raises(StoreCorrupt, match="results.db is damaged"):
        store.curve(attempt.run_id)
    store.close()


@pytest.mark.parametrize("create", [False, True])
def test_a_directory_is_not_a_database(file, create):
    file.mkdir()
    with pytest.raises(StoreCorrupt, match="it is a directory"):
        open_store(f"sqlite:///{file}", create=create)
    with pytest.raises(StoreCorrupt, match="it is a directory"):
        upgrade(f"sqlite:///{file}")
    assert list(file.iterdir()) == []


def test_an_empty_file_is_damaged_unless_it_may_be_created(file):
    file.touch()
    for attempt in (Store, lambda url: open_store(url, create=False)):
        with pytest.raises(StoreCorrupt, match="it is empty"):
            attempt(f"sqlite:///{file}")
        assert file.stat().st_size == 0
    open_store(f"sqlite:///{file}").close()
    assert file.stat().st_size > 0


def test_opening_without_create_creates_nothing(file):
    for attempt in (Store, lambda url: open_store(url, create=False)):
        with pytest.raises(StoreUnreachable, match="There is no database .*results.db"):
            attempt(f"sqlite:///{file}")
    assert os.listdir(file.parent) == []


@pytest.mark.parametrize("version", [(3, 40, 1), (3, 51, 3)], ids=["rollback journal", "WAL"])
@pytest.mark.parametrize("is_connected", [True, False])
def test_a_file_that_is_gone_is_not_replaced_and_nobody_says_that_results_are_kept(
    file, monkeypatch, version, is_connected
):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    store = open_store(f"sqlite:///{file}")
    attempt = record(store)
    if not is_connected:
        store.database.engine.dispose()
    (file.parent / "runs").mkdir()
    away = file.parent / "away"
    away.mkdir()
    for part in file.parent.glob("results.db*"):  # WAL has two more files
        part.rename(away / part.name)
    for use in (lambda: store.record_epoch(attempt, epoch(4), None), store.studies):
        with pytest.raises(StorageError) as raised:
            use()
        message = str(raised.value)
        assert f"{file} is gone" in message and "lost unless" in message
        assert f"Checkpoints in {file.parent / 'runs'} remain" in message
        assert "kept" not in message
    assert sorted(os.listdir(file.parent)) == ["away", "runs"]
    for part in away.iterdir():
        part.rename(file.parent / part.name)
    store.record_epoch(attempt, epoch(4), None)
    assert len(store.curve(attempt.run_id)) == 4
    store.close()


def test_a_file_that_another_one_replaced_is_gone(file):
    store = open_store(f"sqlite:///{file}")
    attempt = record(store)
    file.rename(file.with_name("elsewhere.db"))
    open_store(f"sqlite:///{file}").close()
    with pytest.raises(StorageError, match="results.db is gone"):
        store.record_epoch(attempt, epoch(4), None)
    store.close()


def test_a_home_that_is_gone_keeps_no_checkpoints(file):
    home = file.parent / "home"
    store = open_store(f"sqlite:///{home}/results.db")
    record(store)
    shutil.rmtree(home)
    with pytest.raises(StorageError, match="is gone") as raised:
        store.studies()
    assert "remain" not in str(raised.value)
    store.close()
    assert not home.exists()


def test_a_home_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Cannot create.*a file is in the way"):
        open_store(f"sqlite:///{tmp_path}/file/home/results.db")


def test_a_full_disk_loses_no_recorded_epoch(file):
    store = open_store(f"sqlite:///{file}")
    attempt = record(store, epochs=10)
    with store.database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 1}")
    recorded = 10
    with pytest.raises(StorageError, match="results.db.*full"):
        for number in range(11, 1000):
            store.record_epoch(attempt, epoch(number), "ab" * 32)
            recorded = number
    store.close()
    assert is_sound(file)
    store = Store(f"sqlite:///{file}")
    assert [row.epoch for row in store.curve(attempt.run_id)] == list(range(1, recorded + 1))
    assert store.run(attempt.run_id).last_epoch == recorded
    assert store.count_pending(None) == recorded + 1
    store.record_epoch(attempt, epoch(recorded + 1), None)
    store.close()


@pytest.mark.parametrize(
    "version, journal, synchronous",
    [((3, 40, 1), "delete", 2), ((3, 51, 2), "delete", 2), ((3, 51, 3), "wal", 1)],
)
def test_wal_is_used_only_where_it_is_safe(file, monkeypatch, version, journal, synchronous):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    store = open_store(f"sqlite:///{file}")
    record(store)
    with store.database.engine.connect() as connection:
        for pragma, value in [
            ("journal_mode", journal),
            ("synchronous", synchronous),
            ("foreign_keys", 1),
        ]:
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value
    store.close()
