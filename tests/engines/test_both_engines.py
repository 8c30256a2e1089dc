"""One contract for both engines: whole studies by worker processes and by a real Ray."""

import shutil

import pytest
from helpers.launch import CURVES, EPOCHS, PLACINGS, RESULTS, TINY, query

from ressmooth.training.checkpoint import sha256

NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
CONFIRM = ("--set", "confirm=2", "--set", "seeds=1")


def test_a_study_trains_every_cell_with_every_seed(whole):
    home, done = whole
    results = query(home, RESULTS)
    assert len(results) == 8
    assert {row[3] for row in results} == {"complete"}
    assert query(home, "SELECT count(*) FROM epoch") == [(8 * EPOCHS,)]
    assert query(home, "SELECT DISTINCT state FROM trial") == [("complete",)]
    assert "sgd" in done.stdout and "laplace" in done.stdout
    assert f"next: ressmooth report tiny --out report --home {home}\n" in done.stderr
    assert f"      ressmooth ui --home {home}\n" in done.stderr
    assert query(home, "SELECT count(*) FROM outbox WHERE sent_at IS NULL") == [(0,)]


def test_both_engines_leave_the_same_rows_curves_weights_and_table(whole, undisturbed):
    assert query(whole[0], RESULTS) == query(undisturbed[0], RESULTS)
    assert query(whole[0], CURVES) == query(undisturbed[0], CURVES)
    assert whole[1].stdout == undisturbed[1].stdout


def test_weights_on_disk_are_the_ones_in_the_store(whole):
    home, _ = whole
    for uid, recorded in query(home, "SELECT uid, weights_sha256 FROM run"):
        assert sha256((home / "runs" / uid / "best.safetensors").read_bytes()) == recorded
    assert list(home.glob("runs/*/epoch-*")) == []


def test_launching_again_trains_nothing_and_prints_the_same(whole, engine):
    home, done = whole
    before = query(home, RESULTS)
    relaunched = engine.launch(home / "tiny.toml", home)
    assert relaunched.returncode == 0
    assert relaunched.stdout == done.stdout
    assert query(home, RESULTS) == before
    assert query(home, "SELECT max(attempt) FROM run") == [(1,)]


@pytest.mark.slow
def test_more_seeds_and_arms_later_train_only_what_is_missing(engine, whole, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(whole[0], home)
    study = home / "tiny.toml"
    study.write_text(TINY.format(epochs=EPOCHS) + '\n[arms.ce]\nmethod = "cross_entropy"\n')
    done = engine.launch(study, home, "--set", "seeds=3")
    assert done.returncode == 0, done.stderr
    assert query(home, "SELECT count(*), max(attempt) FROM run") == [(15, 1)]
    assert query(home, "SELECT DISTINCT state FROM trial") == [("complete",)]
    assert set(query(whole[0], RESULTS)) <= set(query(home, RESULTS))


@pytest.fixture(scope="module")
def confirmed(tmp_path_factory, local_engine):
    """A study with fresh seeds on this machine."""
    home = tmp_path_factory.mktemp("confirmed")
    (home / "tiny.toml").write_text(TINY.format(epochs=3))
    done = local_engine.launch(home / "tiny.toml", home, *CONFIRM)
    assert done.returncode == 0, done.stderr
    return home, done


@pytest.mark.slow
def test_selected_configurations_are_confirmed_alike(engine, study, tmp_path, confirmed):
    home, done = confirmed
    if engine.name == "ray":
        study.write_text(TINY.format(epochs=3))
        home, done = tmp_path, engine.launch(study, tmp_path, *CONFIRM)
        assert done.returncode == 0, done.stderr
    fresh = """
        SELECT t.arm, t.params, c.params, run.seed, run.state FROM trial t
        JOIN trial c ON c.id = t.confirms JOIN run ON run.trial_id = t.id ORDER BY t.arm, run.seed
    """
    rows = query(home, fresh)
    assert [(arm, seed, state) for arm, _, _, seed, state in rows] == [
        (arm, seed, "complete") for arm in ("laplace", "sgd") for seed in (10_000, 10_001)
    ]
    assert all(chosen == params for _, params, chosen, _, _ in rows)
    assert query(home, RESULTS) == query(confirmed[0], RESULTS)
    assert "The seeds shown are fresh" in done.stdout
    ((text,),) = query(home, "SELECT file_text FROM study")
    assert "confirm = 2" in text and "seeds = 1" in text  # the study as it ran


@pytest.mark.slow
def test_a_race_is_the_same_on_both_engines(engine, local_engine, study, tmp_path):
    study.write_text(TINY.format(epochs=3).replace("[0.3, 0.5]", "[0.3, 5.0, 20.0]"))
    race = ("--set", "seeds={ race = true, at_most = 5 }")
    rows = []
    for each in (local_engine, engine):
        home = tmp_path / f"{each.name}-{len(rows)}"
        done = each.launch(study, home, *race)
        assert done.returncode == 0, done.stderr
        rows.append([query(home, sql) for sql in (RESULTS, CURVES, PLACINGS)])
    assert rows[0] == rows[1]
    results, _, placings = rows[0]
    assert 10 < len(results) < 25 and len(placings) == 5


@pytest.mark.slow
def test_runs_that_raise_or_diverge_fail_and_the_study_continues(engine, study, tmp_path):
    study.write_text(
        TINY.format(epochs=EPOCHS)
        + '\n[arms.diverging]\nmethod = "mse"\noutput = "identity"\nlr = 1e5\n'
        + '\n[arms.raising]\nmethod = "mse"\ndataset = "cifar10"\n'
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cifar10-damaged.pt").touch()  # only the worker notices
    done = engine.launch(study, tmp_path, **NO_NETWORK)
    assert done.returncode == 0, done.stderr
    states = dict(query(tmp_path, "SELECT arm, state FROM trial"))
    assert states == {
        "sgd": "complete",
        "laplace": "complete",
        "diverging": "failed",
        "raising": "failed",
    }
    errors = "SELECT DISTINCT error FROM run JOIN trial ON trial.id = trial_id WHERE arm = '{}'"
    assert query(tmp_path, errors.format("diverging")) == [("diverged at epoch 1",)]
    ((raised,),) = query(tmp_path, errors.format("raising"))
    assert "CIFAR10 is not in" in raised and "cifar-10-python.tar.gz" in raised
    assert "diverging" not in done.stdout and "raising" not in done.stdout


@pytest.mark.slow
def test_a_study_whose_data_cannot_be_downloaded_is_not_recorded(engine, study, tmp_path):
    text = study.read_text()
    study.write_text(text + '\n[arms.cifar]\ndataset = "cifar10"\n')
    home = tmp_path / "home"
    done = engine.launch(study, home, **NO_NETWORK)
    assert done.returncode == 2
    assert "error: CIFAR10 is not in" in done.stderr and "Traceback" not in done.stderr
    assert not home.exists()
    study.write_text(text)
    assert engine.launch(study, home, "--set", "epochs=1", **NO_NETWORK).returncode == 0
    other = study.with_name("other.toml")
    other.write_text(text.replace('"tiny"', '"other"') + '\n[arms.cifar]\ndataset = "cifar10"\n')
    assert engine.launch(other, home, **NO_NETWORK).returncode == 2
    assert query(home, "SELECT name FROM study") == [("tiny",)]


@pytest.mark.slow
def test_a_study_in_which_everything_fails_has_its_own_exit_code(engine, study, tmp_path):
    overrides = ["--set", "output=identity", "--set", "lr=1e5", "--set", "epochs=2"]
    done = engine.launch(study, tmp_path, *overrides)
    assert done.returncode == 7
    assert "no trial completed" in done.stderr
    assert "Traceback" not in done.stderr
