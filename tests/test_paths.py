import os
import subprocess
import sys
from pathlib import Path

import pytest

from ressmooth.paths import (
    command,
    create_private,
    home,
    make_home,
    only_submits,
    report_out,
    serve_command,
    user,
)

NAMELESS = """
import os, pwd, socket
from ressmooth.paths import user
for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "RESSMOOTH_USER"):
    os.environ.pop(name, None)
os.setuid(54321)
assert user() == f"54321@{socket.gethostname()}", user()
"""


def test_home_is_set_by_the_environment_or_in_the_users_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("RESSMOOTH_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("RESSMOOTH_HOME")
    assert home() == Path.home() / ".ressmooth"


def test_a_suggested_command_names_the_home_unless_it_is_the_default(monkeypatch, tmp_path):
    monkeypatch.setenv("RESSMOOTH_HOME", str(tmp_path))
    assert command(tmp_path, "show", "mine") == "ressmooth show mine"
    other = tmp_path / "two words"
    assert command(other, "show", "mine") == f"ressmooth show mine --home '{other}'"


def test_the_environment_names_the_user(monkeypatch):
    monkeypatch.setenv("RESSMOOTH_USER", "mia@box")
    assert user() == "mia@box"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without a name")
def test_a_user_without_a_name_has_a_number():
    subprocess.run([sys.executable, "-c", NAMELESS], check=True)


def test_a_container_says_how_its_commands_are_typed_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("RESSMOOTH_HOME", str(tmp_path))
    assert not only_submits() and serve_command(tmp_path) == "ressmooth serve"
    monkeypatch.setenv("RESSMOOTH_COMMAND", "docker compose run --rm study ressmooth")
    monkeypatch.setenv("RESSMOOTH_SERVE", "docker compose up -d")
    assert command(tmp_path, "watch", "my study") == (
        "docker compose run --rm study ressmooth watch 'my study'"
    )
    assert only_submits() and serve_command(tmp_path) == "docker compose up -d"


def test_reports_go_where_a_container_can_write(monkeypatch):
    monkeypatch.delenv("RESSMOOTH_REPORTS", raising=False)
    assert report_out("demo") == "report"
    monkeypatch.setenv("RESSMOOTH_REPORTS", "/reports")
    assert report_out("demo") == "/reports/demo"


def test_a_home_is_its_owners_only_unless_somebody_has_shared_it(tmp_path):
    new, shared = tmp_path / "a" / "new", tmp_path / "shared"
    make_home(new)
    assert new.stat().st_mode & 0o777 == 0o700
    shared.mkdir()
    shared.chmod(0o770)
    make_home(shared)
    assert shared.stat().st_mode & 0o777 == 0o770


def test_a_private_file_is_not_replaced(tmp_path):
    file = tmp_path / "file"
    create_private(file)
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text("kept")
    create_private(file)
    assert file.read_text() == "kept"
    create_private(tmp_path / "missing" / "file")  # whoever opens it says why
