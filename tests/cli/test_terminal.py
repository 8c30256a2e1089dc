"""What the commands print, in terminals of several kinds."""

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest
from helpers import records, specs

from ressmooth.store import default_url, open_store


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    store = open_store(default_url(home))
    arms = {"sgd": {"method": "mse"}, "laplace": {"b": 0.5}}
    spec = specs.study(arms, name="shown", seeds=3)
    records.simulate(
        store, spec, lambda c: 90.0 - (c["method"] == "mse") + c["seed"] * c["b"] % 0.7
    )
    store.close()
    return home


def command(*words, home):
    return [sys.executable, "-m", "ressmooth.cli", *words, "--home", str(home)]


def in_terminal(columns, *words, home, **variables):
    """Return what a command prints on a terminal with that many columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    environment = {**inherited, "TERM": "xterm", **variables}
    process = subprocess.Popen(
        command(*words, home=home), stdout=theirs, stdin=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    output = b""
    try:
        while part := os.read(ours, 65536):
            output += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0, output
    return output.decode()


def longest(text):
    return max(map(len, text.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()))


@pytest.mark.parametrize("words", [("list",), ("show", "shown"), ("compare", "shown")])
def test_tables_are_as_wide_as_the_terminal(home, words):
    assert longest(in_terminal(80, *words, home=home)) <= 80
    assert longest(in_terminal(200, *words, home=home, COLUMNS="70")) <= 70


def test_the_best_arm_is_bold_where_the_terminal_has_styles(home):
    assert "\x1b[1mlaplace" in in_terminal(80, "compare", "shown", home=home)
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b" not in in_terminal(80, "compare", "shown", home=home, **variables)


ASCII = [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "latin-1"},
]


@pytest.mark.parametrize("variables", ASCII, ids=str)
@pytest.mark.parametrize("words", [("list",), ("show", "shown"), ("compare", "shown")])
def test_tables_are_ascii_where_standard_output_is_not_unicode(home, words, variables):
    environment = {**os.environ, **variables}
    done = subprocess.run(command(*words, home=home), capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("ascii")
    assert "shown" in text and "\x1b" not in text
    if words[0] == "compare":
        ours = next(line for line in text.splitlines() if line.startswith("laplace"))
        sgd = next(line for line in text.splitlines() if line.startswith("sgd"))
        assert "+/-" in ours and len(ours) == len(sgd)
