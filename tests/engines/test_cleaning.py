"""What `ressmooth clean` and the service's retention remove, and what they never touch."""

import os
import time
from contextlib import closing

import pytest
from click.testing import CliRunner
from helpers import records
from helpers.launch import answer_on_terminal
from helpers.specs import study as make_spec

from ressmooth.cli import main
from ressmooth.engines import cleaning
from ressmooth.errors import ConfigError
from ressmooth.store import Holder, StudyState, default_url, open_store
from ressmooth.training.decoded import own_key

OTHER_UID, SHA = "f" * 32, "a" * 64
KEPT = b"x" * 1000


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("RESSMOOTH_DATABASE_URL", "RESSMOOTH_HOME", "RESSMOOTH_KEEP_DAYS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(tmp_path):
    """A home with an ended study, each of whose runs has weights and a forgotten checkpoint."""
    home = tmp_path / "home"
    home.mkdir()
    record(home, "old", StudyState.ENDED)
    return home


@pytest.fixture
def store(home):
    with closing(open_store(default_url(home))) as store:
        yield store


def record(home, name, state, **settings):
    """Record a study of one complete and one failed run, and leave files of both."""
    with closing(open_store(default_url(home))) as store:
        arms = {"sgd": {"method": "mse"}}
        spec = make_spec(arms, name=name, seeds=2, **settings)
        accuracies = {0: 90.0, 1: None}
        study = records.simulate(store, spec, lambda config: accuracies[config["seed"]])
        set_state(store, study.id, state)
        for run in records.runs_of(store, study.id):
            write(home / "runs" / run.uid / "epoch-000002.pt")
            if run.state == "complete":
                write(home / "runs" / run.uid / "best.safetensors")
        write(home / "reports" / study.uid / "index.html")
        return study.id


def set_state(store, study_id, state):
    with store.database.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE study SET state = '{state}' WHERE id = {study_id}")


def write(path, content=KEPT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def run(home, *options):
    return CliRunner().invoke(main, ["clean", *options, "--home", str(home)])


def files(home):
    """Return the files of a home, without databases."""
    found = (path for path in home.rglob("*") if path.is_symlink() or path.is_file())
    return {str(path.relative_to(home)) for path in found if not path.name.startswith("results.db")}


def clean(home):
    """Return the files that clean removes."""
    before = files(home)
    done = run(home, "--yes")
    assert done.exit_code == 0, done.output
    return before - files(home)


def test_checkpoints_of_ended_runs_go_and_weights_stay(home, store):
    runs = records.runs_of(store, store.study("old").id)
    assert clean(home) == {f"runs/{run.uid}/epoch-000002.pt" for run in runs}
    assert [run.state for run in runs if (home / "runs" / run.uid / "best.safetensors").exists()]
    again = run(home, "--yes")
    assert again.exit_code == 0 and again.output == f"nothing to free in {home}\n"


@pytest.mark.parametrize(
    "name", ["epoch-000001.corrupt", "epoch-000001.pt.0a1b2c3d.tmp", "fork-000001.pt"]
)
def test_what_checkpoints_leave_goes_too(home, store, name):
    uid = records.runs_of(store, store.study("old").id)[0].uid
    write(home / "runs" / uid / name)
    assert f"runs/{uid}/{name}" in clean(home)


@pytest.mark.parametrize("state", ["queued", "running", "stopping", "stopped"])
def test_nothing_of_a_study_that_may_go_on_is_touched(home, store, state):
    set_state(store, store.study("old").id, state)
    assert clean(home) == set()


def test_an_unfinished_run_of_a_failed_study_keeps_its_checkpoints(home, store):
    study = store.study("old")
    set_state(store, study.id, "failed")
    assert store.reset_failed(study.id) == 1  # its run waits now
    waiting, complete = sorted(records.runs_of(store, study.id), key=lambda run: run.state)[::-1]
    assert clean(home) == {f"runs/{complete.uid}/epoch-000002.pt"}
    assert waiting.state == "waiting"


def test_a_study_that_somebody_holds_is_not_touched(home, store):
    store.acquire(store.study("old").id, Holder.here())
    assert clean(home) == set()


def test_directories_of_no_recorded_run_go(home):
    for name in ("epoch-000001.pt", "best.safetensors"):
        write(home / "runs" / OTHER_UID / name)
    (home / "runs" / ("e" * 32)).mkdir()
    assert {f"runs/{OTHER_UID}/epoch-000001.pt", f"runs/{OTHER_UID}/best.safetensors"} < clean(home)
    assert not (home / "runs" / OTHER_UID).exists() and not (home / "runs" / ("e" * 32)).exists()


def test_what_ressmooth_did_not_write_stays(home, tmp_path):
    foreign = [
        write(home / "runs" / OTHER_UID / "notes.txt"),
        write(home / "runs" / "mine" / "epoch-000001.pt"),
        write(home / "runs" / "file.pt"),
        write(home / "data" / "mine.pt"),
        write(home / "data" / f"mine-{SHA}.pt"),
        write(home / "data" / "FashionMNIST" / "raw" / "x.gz"),
        write(home / "reports" / "mine" / "index.html"),
        write(home / "reports" / OTHER_UID / "notes.txt"),
        write(home / "results.db.mine.backup"),
        write(home / "epoch-000001.pt"),
    ]
    write(home / "runs" / OTHER_UID / "epoch-000001.pt")
    clean(home)
    assert all(path.exists() for path in foreign)
    assert not (home / "runs" / OTHER_UID / "epoch-000001.pt").exists()


def test_links_are_not_followed(home, tmp_path, store):
    outside = [
        write(tmp_path / "outside" / "epoch-000001.pt"),
        write(tmp_path / "outside" / f"cifar10-{SHA}.pt"),
    ]
    run = records.runs_of(store, store.study("old").id)[0]
    (home / "runs" / OTHER_UID).symlink_to(tmp_path / "outside")
    (home / "runs" / run.uid / "epoch-000009.pt").symlink_to(outside[0])
    (home / "data").symlink_to(tmp_path / "outside")
    removed = clean(home)
    assert all(path.exists() for path in outside)
    assert f"runs/{run.uid}/epoch-000002.pt" in removed
    assert (home / "runs" / OTHER_UID).is_symlink() and (home / "data").is_symlink()
    assert (home / "runs" / run.uid / "epoch-000009.pt").is_symlink()


def test_a_linked_directory_of_runs_is_not_touched(home, tmp_path):
    (home / "runs").rename(tmp_path / "runs")
    (home / "runs").symlink_to(tmp_path / "runs")
    before = files(tmp_path / "runs")
    clean(home)
    assert files(tmp_path / "runs") == before


def test_the_files_of_another_database_stay(home, monkeypatch, tmp_path):
    """RESSMOOTH_DATABASE_URL is set now, and was not when these runs were trained."""
    monkeypatch.setenv("RESSMOOTH_DATABASE_URL", f"sqlite:///{tmp_path}/another.db")
    open_store(default_url(home)).close()
    done = run(home, "--yes")
    assert done.exit_code == 0 and "nothing to free" in done.output
    assert f"{home}/results.db is another database" in done.stderr


def test_runs_of_an_unknown_database_stay(home, store):
    store.delete_study(store.study("old").id)
    done = run(home, "--yes")
    assert "none of the 2 directories in" in done.stderr and "nothing to free" in done.output
    assert len(list((home / "runs").iterdir())) == 2


def test_decoded_data_that_no_study_uses_goes(home, tmp_path):
    record(home, "cifar", StudyState.ENDED, dataset="cifar10")
    images = write(tmp_path / "images" / "a" / "x.png").parent.parent
    own, old = own_key(f"images:{images}", 0), "images-" + "0" * 16
    for key in ("cifar10", "svhn", own, old):
        write(home / "data" / f"{key}-{SHA}.pt")
    write(home / "data" / ".svhn.lock", b"")
    with closing(open_store(default_url(home))) as store:
        arms = {"sgd": {"method": "mse"}}
        store.submit(make_spec(arms, name="own", dataset=f"images:{images}"), "ann@box", None)
    removed = clean(home)
    assert {path for path in removed if path.startswith("data")} == {
        f"data/svhn-{SHA}.pt",
        f"data/{old}-{SHA}.pt",
    }


def test_decoded_images_stay_while_their_folder_cannot_be_read(home, tmp_path):
    key = "images-" + "0" * 16
    decoded = write(home / "data" / f"{key}-{SHA}.pt")
    images = write(tmp_path / "share" / "a" / "x.png").parent.parent
    with closing(open_store(default_url(home))) as store:
        arms = {"sgd": {"method": "mse"}}
        store.submit(make_spec(arms, name="own", dataset=f"images:{images}"), "ann@box", None)
    images.rename(tmp_path / "unmounted")
    clean(home)
    assert decoded.exists()


def test_reports_of_deleted_studies_go(home, store):
    write(home / "reports" / OTHER_UID / "index.html")
    write(home / "reports" / OTHER_UID / "figures" / "01-curves.svg")
    removed = clean(home)
    assert {path for path in removed if path.startswith("reports")} == {
        f"reports/{OTHER_UID}/index.html",
        f"reports/{OTHER_UID}/figures/01-curves.svg",
    }
    assert not (home / "reports" / OTHER_UID).exists()
    assert (home / "reports" / store.study("old").uid / "index.html").exists()


def test_the_newest_backup_stays(home):
    names = [f"results.db.000{n}-2026010{n}-000000.backup" for n in (1, 2, 3)]
    for name in names:
        write(home / name)
    run(home, "--yes")
    assert [name for name in names if (home / name).exists()] == names[2:]


def test_clean_shows_what_it_frees_and_asks(home):
    done = run(home)
    assert done.exit_code == 2
    assert f"This frees 0.0 MB in {home}:" in done.output
    assert "  2 checkpoints of ended runs: 0.0 MB" in done.output
    assert f"to free it without a question: ressmooth clean --yes --home {home}" in done.stderr
    assert len(list(home.glob("runs/*/epoch-*"))) == 2


@pytest.mark.parametrize("answer, is_freed", [(b"n\n", False), (b"y\n", True)])
def test_on_a_terminal_clean_asks(home, answer, is_freed):
    done = answer_on_terminal(answer, "clean", "--home", str(home))
    assert "Free it? [y/N]" in done.stdout
    assert ("nothing was removed" in done.stdout) != is_freed
    assert (list(home.glob("runs/*/epoch-*")) == []) == is_freed


def test_what_has_come_into_use_since_it_was_shown_stays(home, store):
    found = cleaning.find(store, home)
    assert len(found.leftovers) == 2
    set_state(store, store.study("old").id, "queued")
    assert cleaning.free(store, home, found.leftovers) == (0, [])
    assert len(list(home.glob("runs/*/epoch-*"))) == 2


def test_retention_removes_what_is_old_enough(home, store):
    old, new = home.glob("runs/*/epoch-*")
    three_days_ago = time.time() - 3 * 86400
    os.utime(old, (three_days_ago, three_days_ago))
    lines = []
    cleaning.clean_old(store.url, home, 4, lines.append)
    assert old.exists() and lines == []
    cleaning.clean_old(store.url, home, 2, lines.append)
    assert not old.exists() and new.exists()
    assert lines == ["removed 1 file older than 2 days: 0.0 MB"]


@pytest.mark.parametrize("text", ["", None])
def test_without_keep_days_nothing_is_removed(text, monkeypatch):
    if text is not None:
        monkeypatch.setenv("RESSMOOTH_KEEP_DAYS", text)
    assert cleaning.keep_days() is None


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "month", "9" * 9])
def test_wrong_keep_days_are_refused(text, monkeypatch, tmp_path):
    monkeypatch.setenv("RESSMOOTH_KEEP_DAYS", text)
    with pytest.raises(ConfigError, match=f"RESSMOOTH_KEEP_DAYS = {text}: "):
        cleaning.keep_days()
    done = CliRunner().invoke(main, ["serve", "--home", str(tmp_path / "new")])
    assert done.exit_code == 2 and not (tmp_path / "new").exists()


def test_clean_creates_no_home(tmp_path):
    done = run(tmp_path / "none")
    assert done.exit_code == 4 and not (tmp_path / "none").exists()
