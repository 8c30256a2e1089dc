"""A service runs submitted studies. Each ends as if it were alone."""

import os
import signal
import subprocess
import sys

import pytest
from helpers.launch import command, invoke, wait_for, workers_of
from helpers.plugins import SOURCE, write
from helpers.serving import ServedHome, undisturbed_results

FOREVER = 100_000  # epochs
OWN = """
name = "own"
dataset = "stripes"
model = "mlp"
epochs = 3
batch_size = 8
[arms.plain]
method = "cross_entropy"
"""
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = ServedHome(tmp_path_factory.mktemp("served"))
    yield home
    home.close()


@pytest.fixture(scope="module")
def running(home):
    """The service that the tests of this file share."""
    return home.serving()


@pytest.fixture
def service(running, home):
    yield running
    for row in home.store.submissions():  # of a test that failed
        home.store.stop_study(row.id)


@pytest.fixture(scope="module")
def alone(undisturbed):
    return undisturbed_results(undisturbed[0])


@pytest.fixture
def ray_home(ray_engine, tmp_path):
    home = ServedHome(tmp_path / "ray", RAY_ADDRESS=ray_engine.environment["RAY_ADDRESS"])
    yield home
    home.close()


def test_three_studies_of_two_owners_end_as_if_each_were_alone(home, service, alone):
    owners = {"first": "mia@box", "second": "mia@box", "third": "noa@box"}
    for name, owner in owners.items():
        home.submit(name, owner=owner)
    for name in owners:
        home.wait_until(name, "ended", service)
        assert home.results(name) == alone
        assert home.store.study(name).owner == owners[name]
    assert home.query("SELECT max(failures) FROM run") == [(0,)]
    held = "SELECT 1 FROM study WHERE holder_token IS NOT NULL"
    home.wait(lambda: not home.query(held), service)


@slow
def test_three_studies_end_on_ray_as_if_each_were_alone(ray_home, alone):
    service = ray_home.serving("--engine", "ray")
    for name in ("first", "second", "third"):
        ray_home.submit(name, owner=f"{name}@box")
    for name in ("first", "second", "third"):
        ray_home.wait_until(name, "ended", service)
        assert ray_home.results(name) == alone
    ray_home.submit("endless", epochs=FOREVER)
    ray_home.wait_for_epochs("endless", 5, service)
    ray_home.command("stop", "endless")
    ray_home.wait_until("endless", "stopped", service)
    ray_home.command("resume", "endless")
    reached = ray_home.wait_for_epochs("endless", 1, service)
    ray_home.wait_for_epochs("endless", reached + 5, service)
    assert ray_home.stop(service) == 143
    assert ray_home.state("endless") == "queued"
    assert ray_home.query("SELECT count(*) FROM run WHERE state = 'running'") == [(0,)]


@slow
def test_stop_resume_and_priority_while_it_runs(home, service, alone):
    home.submit("endless", epochs=FOREVER)
    home.submit("stopped")
    home.wait_for_epochs("stopped", 10, service)
    assert "stops after its current epochs" in home.command("stop", "stopped")
    home.wait_until("stopped", "stopped", service)
    home.wait(lambda: home.store.study("stopped").held_by is None, service)
    reached = "SELECT run.id, run.state, last_epoch FROM run JOIN trial ON trial.id = trial_id"
    reached += " JOIN study ON study.id = study_id WHERE name = 'stopped'"
    before = home.query(reached)
    assert "running" not in {state for _, state, _ in before}
    home.wait_for_epochs("endless", home.wait_for_epochs("endless", 1, service) + 20, service)
    assert home.query(reached) == before  # while the other goes on
    assert home.command("resume", "stopped") == "stopped is queued\n"
    assert "high priority" in home.command("priority", "stopped", "high")
    home.wait_until("stopped", "ended", service)
    assert home.store.study("stopped").priority == "high"
    assert home.results("stopped") == alone
    home.command("stop", "endless")
    home.wait_until("endless", "stopped", service)


@slow
def test_leaving_the_view_leaves_the_study_running(home, service):
    home.submit("watched", epochs=FOREVER)
    home.wait_for_epochs("watched", 1, service)
    watch = [sys.executable, "-m", "ressmooth.cli", "watch", "watched"]
    watching = subprocess.Popen(
        [*watch, "--home", str(home.directory)], stderr=subprocess.PIPE, text=True
    )
    assert watching.stderr.readline() == "watched: running\n"
    watching.send_signal(signal.SIGINT)
    assert "watched goes on without this view" in watching.communicate(timeout=60)[1]
    assert watching.returncode == 130
    home.wait_for_epochs("watched", home.wait_for_epochs("watched", 1, service) + 20, service)
    assert home.state("watched") == "running"
    home.command("stop", "watched")
    home.wait_until("watched", "stopped", service)


@slow
def test_a_study_beside_a_service_is_submitted_and_shows_its_comparison(
    home, service, undisturbed, alone
):
    done = home.study(home.file("tiny"))
    assert done.stdout == undisturbed[1].stdout
    assert home.results("tiny") == alone
    refused = invoke(home.file("tiny"), home.directory, "--workers", "3", env=home.environment)
    assert refused.exit_code == 2 and "--workers 3: the service" in refused.output


@slow
def test_the_text_at_submission_counts(home, service, alone):
    home.submit("endless", epochs=FOREVER)  # both workers are busy
    home.wait_for_epochs("endless", 1, service)
    file = home.file("changed")
    home.study(file, "--detach")
    file.write_text("no study at all")
    home.wait_until("changed", "ended", service)
    assert home.results("changed") == alone
    home.command("stop", "endless")
    home.wait_until("endless", "stopped", service)


@slow
def test_a_submission_with_more_seeds_takes_effect_while_it_runs(home, service, alone):
    home.submit("grown")
    home.wait_for_epochs("grown", 10, service)
    home.submit("grown", "--set", "seeds=3")
    home.wait_until("grown", "ended", service)
    runs, curves = home.results("grown")
    assert len(runs) == 12
    assert [[row for row in rows if row[2] < 2] for rows in (runs, curves)] == alone


@slow
@pytest.mark.parametrize("fault", ["raises", "exits", "dies", "data changed"])
def test_a_broken_study_fails_alone_and_shows_the_problem(home, service, tmp_path, fault):
    """It could be tried when it was submitted, and breaks in the service."""
    broken = {
        "raises": "raise ValueError('no stripes')",
        "exits": "raise SystemExit(3)",
        "dies": "__import__('os').kill(__import__('os').getpid(), 9)",
        "data changed": "count += int((root / 'changed').exists())",
    }[fault]
    marker = home.directory / "data" / "changed"
    marker.parent.mkdir(exist_ok=True)
    marker.unlink(missing_ok=True)
    if fault != "data changed":
        broken = f"if (root / 'changed').exists(): {broken}"
    source = SOURCE.replace("    generator = ", f"    {broken}\n    generator = ", 1)
    name = f"broken-{fault.replace(' ', '-')}"
    file = tmp_path / "own.toml"
    file.write_text(OWN.replace('"own"', f'"{name}"'))
    home.submit("endless", epochs=FOREVER)
    home.study(file, "--plugin", str(write(tmp_path, source)), "--detach")
    if fault == "data changed":
        home.wait_until(name, "ended", service)
    else:
        home.command("stop", name)
    marker.touch()
    options = ["--set", "seeds=2"] if fault == "data changed" else []
    home.store.submit(home.spec(file, write(tmp_path, source), *options), "mia@box", None)
    home.wait_until(name, "failed", service)
    marker.unlink()
    expected = {
        "raises": "ValueError: no stripes",
        "exits": "SystemExit: 3",
        "dies": "ended with exit code -9",
        "data changed": "stripes: its content has changed",
    }[fault]
    assert expected in home.store.study(name).problem
    watch = [sys.executable, "-m", "ressmooth.cli", "watch", name, "--home", str(home.directory)]
    shown = subprocess.run(watch, capture_output=True, text=True)
    assert shown.returncode == 2 and expected in shown.stderr
    home.wait_for_epochs("endless", home.wait_for_epochs("endless", 1, service) + 10, service)
    home.command("stop", "endless")
    home.wait_until("endless", "stopped", service)


@slow
def test_a_study_that_breaks_in_a_worker_costs_no_other_study_a_retry(home, service, tmp_path):
    """The worker that reports it ends, and must not take a run of another study with it."""
    marker = home.directory / "data" / "changed"
    marker.parent.mkdir(exist_ok=True)
    changing = "    count += int((root / 'changed').exists())\n    generator = "
    plugin = write(tmp_path, SOURCE.replace("    generator = ", changing, 1))
    file = tmp_path / "own.toml"
    file.write_text(OWN.replace('"own"', '"changing"').replace("= 3", f"= {FOREVER}"))
    home.study(file, "--plugin", str(plugin), "--detach")
    home.wait_for_epochs("changing", 1, service)
    home.submit("beside", epochs=FOREVER)
    home.wait_for_epochs("beside", 1, service)
    marker.touch()
    for worker in workers_of(service):  # the run of each study has to be resumed
        worker.kill()
    home.wait_until("changing", "failed", service)
    marker.unlink()
    assert "its content has changed" in home.store.study("changing").problem
    runs = """
        SELECT run.last_epoch, failures FROM run JOIN trial ON trial.id = run.trial_id
        JOIN study ON study.id = trial.study_id WHERE name = 'beside' AND last_epoch > 0
    """
    home.wait(lambda: len(home.query(runs)) == 2, service)
    assert sum(failures for _, failures in home.query(runs)) == 1
    home.command("stop", "beside")
    home.wait_until("beside", "stopped", service)


@slow
def test_a_waiting_study_can_be_deleted_and_its_number_used_again(home, service, alone):
    for _ in range(3):
        home.submit("deleted", epochs=FOREVER)
        home.store.stop_study(home.store.study("deleted").id)
        home.command("delete", "deleted", "--yes")
        home.submit("after", epochs=2)
        home.wait_until("after", "ended", service)
        assert {row[3] for row in home.results("after")[1]} == {1, 2}
        home.command("delete", "after", "--yes")


@slow
def test_a_killed_worker_is_replaced(home, service, alone):
    home.submit("wounded")
    home.wait_for_epochs("wounded", 5, service)
    workers_of(service)[0].kill()
    home.wait_until("wounded", "ended", service)
    assert home.results("wounded") == alone
    assert "worker killed by signal 9" in service.log.read_text()


@slow
def test_a_detached_study_waits_for_a_service_that_starts_later(request, tmp_path, alone):
    home = ServedHome(tmp_path / "home")
    request.addfinalizer(home.close)
    done = home.submit("early")
    assert "early waits, because no service is running; start one: ressmooth serve" in done.output
    assert home.state("early") == "queued"
    service = home.serving()
    home.wait_until("early", "ended", service)
    assert home.results("early") == alone


@slow
def test_a_service_runs_what_a_killed_launcher_left(request, tmp_path):
    home = ServedHome(tmp_path / "home")
    request.addfinalizer(home.close)
    launcher = subprocess.Popen(
        command(home.file("left", FOREVER), home.directory, "--quiet"),
        env={**os.environ, **home.environment},
    )
    wait_for(lambda: home.query("SELECT 1 FROM epoch"))
    launcher.kill()
    launcher.wait()
    assert home.state("left") == "running"
    assert "left is queued" in home.command("resume", "left")
    reached = home.query("SELECT count(*) FROM epoch")[0][0]
    home.wait_for_epochs("left", reached + 5, home.serving())
