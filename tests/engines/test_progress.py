"""What a study and a single run show while they train."""

import os
import signal
from dataclasses import replace

import pytest
from helpers import records, specs
from helpers.launch import wait_for

from ressmooth.engines.progress import EpochBar, View
from ressmooth.engines.signals import acknowledge_signals, on_signal
from ressmooth.search.planner import Planner
from ressmooth.store import open_store


@pytest.fixture
def planner(tmp_path):
    """A study of two runs of three epochs."""
    spec = specs.study({"sgd": {"method": "mse"}}, seeds=2)
    store = open_store(f"sqlite:///{tmp_path}/results.db")
    yield Planner(store, store.open_study(spec), spec)
    store.close()


@pytest.fixture
def terminal(monkeypatch):
    """Make rich believe in a terminal of this kind."""

    def be(kind):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", kind)

    return be


@pytest.mark.parametrize("kind, is_live", [("xterm-256color", True), ("dumb", False)])
def test_a_dumb_terminal_gets_plain_lines(planner, terminal, kind, is_live):
    terminal(kind)
    assert View(planner, 1, quiet=False).is_live == is_live
    assert EpochBar(3).progress.disable != is_live


def shown(view):
    view.console.width = 80
    with view.console.capture() as capture:
        view.console.print(view.render())
    return capture.get()


def test_time_left_is_by_the_epochs_of_this_launch_and_the_busy_workers(planner):
    view = View(planner, 2, quiet=False)
    first, second = planner.next(), planner.next()
    view.began -= 1000  # however long the start took
    view.started(0, first)
    assert " elapsed" in shown(view)
    view.epoch(0, replace(records.epoch(1), seconds=10.0), 90.0)
    assert " 50 s left" in shown(view)  # five of six epochs
    view.started(1, second)
    assert " 25 s left" in shown(view)
    view.epoch(1, replace(records.epoch(1), seconds=40.0), 90.0)
    assert " 50 s left" in shown(view)  # four epochs of 25 s by two workers


@pytest.mark.parametrize("kind", ["dumb", "xterm-256color"])
def test_signals_are_acknowledged_also_while_nobody_handles_them(planner, terminal, capfd, kind):
    """As when the main thread is in C++ code, or holds the lock of the live view."""
    terminal(kind)
    said = []

    def shows(text):
        said.append(capfd.readouterr().err)
        return text in "".join(said)

    before = os.listdir("/proc/self/fd")
    with View(planner, 1, quiet=False) as view, acknowledge_signals(view):
        with on_signal(lambda number, frame: None):
            os.kill(os.getpid(), signal.SIGINT)
            wait_for(lambda: shows("stopping after this epoch"))
            os.kill(os.getpid(), signal.SIGTERM)
            wait_for(lambda: shows("stopping now"))
    wait_for(lambda: os.listdir("/proc/self/fd") == before)


def test_no_color_is_respected(planner, terminal, monkeypatch):
    terminal("xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert View(planner, 1, quiet=False).console.no_color


def test_the_best_value_has_the_unit_of_the_metric_and_none_before_an_evaluation(tmp_path, capsys):
    spec = specs.study({"sgd": {"method": "mse"}}, metric="nll")
    store = open_store(f"sqlite:///{tmp_path}/results.db")
    planner = Planner(store, store.open_study(spec), spec)
    view = View(planner, 1, quiet=False)
    view.started(0, planner.next())
    for best, line in ((None, "epoch 1/3\n"), (0.35, "epoch 1/3, best 0.3500\n")):
        view.workers[0].printed_at = 0.0
        view.epoch(0, records.epoch(1), best)
        assert capsys.readouterr().err.endswith(line)
    assert "0.3500" in shown(view) and "%" not in shown(view)
    store.close()
