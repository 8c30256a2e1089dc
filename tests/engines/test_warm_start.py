"""A study with enqueued points and a warm start that is killed and resumed."""

import pytest
from helpers.launch import CURVES, RESULTS, epochs_recorded, invoke, query

OLD = """
name = "old"
dataset = "digits"
fraction = 0.2
epochs = 4
[search]
sampler = "random"
trials = 11
[arms.smooth]
b = { low = 0.05, high = 2.0, log = true }
lr = { low = 1e-3, high = 0.5, log = true }
"""
NEW = """
extends = "old.toml"
name = "new"
enqueue = [{ b = 0.5, lr = 0.1 }, { lr = 0.2 }]
[search]
sampler = "tpe"
trials = 8
warm_start = "old"
"""
TRIALS = """
    SELECT number_in_branch, params, trial.state, value FROM trial
    JOIN study ON study.id = study_id WHERE study.name = 'new' ORDER BY 1
"""
SAYS = "tpe begins with 11 of the 11 completed trials of old."


def write(home):
    (home / "old.toml").write_text(OLD)
    (home / "new.toml").write_text(NEW)
    return home / "old.toml", home / "new.toml"


@pytest.mark.slow
def test_a_killed_study_with_points_and_a_warm_start_ends_with_the_same_rows(
    local_engine, tmp_path
):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for home in (whole, killed):
        home.mkdir()
        old, new = write(home)
        assert local_engine.launch(old, home, "--workers", "1").returncode == 0
        assert SAYS in invoke(new, home, "--dry-run").stdout
    done = local_engine.launch(whole / "new.toml", whole, "--workers", "1")
    assert done.returncode == 0 and SAYS in done.stderr
    launcher = local_engine.start(new, killed, "--workers", "1", "--quiet")
    epochs_recorded(killed, 11 * 4 + 6)  # its second trial
    launcher.kill()
    launcher.wait()
    more = local_engine.launch(old, killed, "--workers", "1", "--set", "search.trials=13")
    assert more.returncode == 0
    resumed = local_engine.launch(new, killed, "--workers", "1")
    assert resumed.returncode == 0 and SAYS in resumed.stderr
    rows = query(killed, TRIALS)
    assert len(rows) == 8 and rows == query(whole, TRIALS)
    of_new = "FROM study JOIN trial ON study.id = study_id AND study.name = 'new' JOIN run "
    for statement in (RESULTS, CURVES):
        assert set(query(whole, statement)) <= set(query(killed, statement))
    weights = f"SELECT weights_sha256 {of_new} ON trial.id = trial_id ORDER BY trial.id"
    assert query(killed, weights) == query(whole, weights)


def test_an_unknown_study_is_refused_before_anything_is_created(tmp_path):
    _, new = write(tmp_path)
    for option in ("--dry-run", "--quiet"):
        done = invoke(new, tmp_path / "home", option)
        assert done.exit_code == 2
        assert done.stderr == (
            "error: search.warm_start = 'old': no such study here; known: none yet\n"
        )
    assert not (tmp_path / "home").exists()
