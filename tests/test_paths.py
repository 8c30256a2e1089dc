from pathlib import Path

from ressmooth.paths import home


def test_home_is_set_by_the_environment_or_in_the_users_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("RESSMOOTH_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("RESSMOOTH_HOME")
    assert home() == Path.home() / ".ressmooth"
