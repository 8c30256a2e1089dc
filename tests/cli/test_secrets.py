"""A file that is no study is named in errors, and never shown."""

import subprocess
import sys

import pytest

FILES = {
    "shadow": b"root:$6$hunter2$abc:19000:0:99999:7:::\ndaemon:*:19000\n",
    "credentials.toml": b'[api]\nkey = "hunter2"\nhunters = [{ token = "hunter2" }]\n',
    "settings.toml": b'name = "x"\npassword = "hunter2"\n[search]\nsecret = "hunter2"\n',
    "secret.yaml": b"apiVersion: v1\ndata:\n  password: hunter2\n",
    "password": b"hunter2",
    "key.der": b"\x30\x82\xff\xfehunter2",
    "base.toml": b'name = "x"\nextends = "shadow"\n',
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_study_is_not_shown(name, tmp_path):
    for other, content in FILES.items():
        (tmp_path / other).write_bytes(content)
    home = tmp_path / "home"
    command = [sys.executable, "-m", "ressmooth.study", tmp_path / name, "--home", home]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    assert done.returncode == 2 and done.stdout == "" and not home.exists()
    named = "shadow" if name == "base.toml" else name
    assert done.stderr.startswith(f"error: {tmp_path / named}:"), done.stderr
    assert "hunter2" not in done.stderr and "Traceback" not in done.stderr
