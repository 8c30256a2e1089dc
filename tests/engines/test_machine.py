"""A machine that a service uses is not given away a second time."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ressmooth.engines import machine
from ressmooth.errors import StorageError, StudyBusy

HOLD = """
import sys, time
from pathlib import Path
from ressmooth.engines.machine import claim
with claim(Path(sys.argv[1]), sys.argv[2]):
    print("claimed", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_machine(monkeypatch, tmp_path):
    monkeypatch.delenv(machine.ALLOW, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture
def service():
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, "/srv/team", "db"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "claimed\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_launch_beside_a_service_is_refused_with_what_to_do(service):
    with pytest.raises(StudyBusy, match="ressmooth study my.toml --home /srv/team"):
        machine.check_free("study", "my.toml")


@pytest.mark.parametrize("home, store", [("/other", "db"), ("/srv/team", "other")])
def test_a_second_service_is_refused(service, home, store):
    with pytest.raises(StudyBusy, match="service of /srv/team"), machine.claim(Path(home), store):
        pass


def test_the_next_service_of_a_store_takes_the_machine_over_from_a_frozen_one(service):
    service.send_signal(signal.SIGSTOP)
    with machine.claim(Path("/srv/team"), "db"):
        service.kill()
        service.wait()
        with pytest.raises(StudyBusy, match="service of /srv/team"):
            machine.check_free()
    machine.check_free()


def test_a_killed_service_gives_the_machine_back(service):
    service.kill()
    service.wait()
    machine.check_free("study", "my.toml")
    with machine.claim(Path("/other"), "db"):
        with pytest.raises(StudyBusy, match="service of /other"):
            machine.check_free()


def test_launches_do_not_exclude_each_other():
    machine.check_free()
    machine.check_free()


def test_it_can_be_allowed(service, monkeypatch):
    monkeypatch.setenv(machine.ALLOW, "1")
    machine.check_free()
    with machine.claim(Path("/other"), "db"):
        pass


def test_a_link_in_the_way_is_not_followed(tmp_path):
    target = tmp_path / "target"
    machine.lock_file().symlink_to(target)
    with pytest.raises(StorageError), machine.claim(Path("/other"), "db"):
        pass
    assert not target.exists()
