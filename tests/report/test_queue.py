"""The queue and the workers in a terminal of 80 columns."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ressmooth.report.queue import queue_text, workers_text
from ressmooth.store import (
    Holder,
    Priority,
    Queue,
    QueuedStudy,
    RunningRun,
    ServiceRow,
    StudyState,
)

HOME = Path("/data/home")
MOMENT = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
SERVICE = ServiceRow(
    holder=Holder("gpu1", 4711, 0.0, "token"),
    held_at=MOMENT,
    silent=1.0,
    is_alive=True,
    build="0.1.0",
    engine="local",
    description="2 workers on 1 GPU",
    nodes=[{"node": "gpu1", "workers": 2, "gpus": ["0"]}],
)
STUDY = QueuedStudy(
    id=1,
    name="fashion",
    state=StudyState.RUNNING,
    priority=Priority.HIGH,
    owner="ann@desk",
    problem=None,
    since=MOMENT,
    runs_done=12,
    runs_known=160,
    epochs_left=480,
    epochs_per_minute=4.8,
    is_interrupted=False,
    is_served=True,
)
RUN = RunningRun(1, "fashion", "laplace", {"b": 0.3}, 1, 3, 48, "gpu1", "0", "cuda", MOMENT)


@pytest.fixture(autouse=True)
def columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("RESSMOOTH_HOME", raising=False)


def text_of(*studies, service=SERVICE, running=(), hidden=0):
    text = queue_text(Queue(service, list(studies), list(running), hidden), HOME)
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_a_running_study_has_its_speed_and_where_it_runs():
    lines = text_of(STUDY, running=[RUN]).splitlines()
    assert [line.rstrip() for line in lines] == [
        "Service gpu1/4711 since 2026-05-01 12:30 UTC: local engine, 2 workers on 1 GPU.",
        "",
        "                                    epochs",
        "study      state  priority    runs    /min   time left",
        "──────────────────────────────────────────────────────",
        "fashion  running      high  12/160     4.8  1 h 40 min",
        "  ann@desk, submitted 2026-05-01 12:30 UTC",
        "  gpu1 GPU 0: laplace b=0.3 seed 1, epoch 3/48",
    ]


def test_only_some_of_many_runs_are_named():
    text = text_of(STUDY, running=[replace(RUN, seed=seed) for seed in range(9)])
    assert text.endswith("seed 3, epoch 3/48\n  and 5 more") and "seed 4" not in text


def test_a_cpu_is_named_as_the_device():
    assert "box cpu: laplace" in text_of(
        STUDY, running=[replace(RUN, host="box", gpus=None, device="cpu")]
    )


def test_without_a_service_the_first_line_says_how_to_start_one():
    waiting = replace(STUDY, state=StudyState.QUEUED, is_served=False, epochs_per_minute=None)
    first, *rest = text_of(waiting, service=None).splitlines()
    assert first == "No service is running; start one: ressmooth serve --home /data/home"
    assert "  ann@desk, submitted 2026-05-01 12:30 UTC; waits for a service" in rest
    first, *rest = text_of(waiting).splitlines()
    assert "  ann@desk, submitted 2026-05-01 12:30 UTC; is being prepared" in rest


def test_a_study_without_a_place_waits_for_a_worker():
    other = replace(STUDY, id=2, name="other", epochs_per_minute=None)
    assert text_of(STUDY, other, running=[RUN]).endswith("12:30 UTC; waits for a free worker")


@pytest.mark.parametrize(
    "is_served, is_alive, words",
    [
        (False, True, "fashion was interrupted; resume it: ressmooth resume fashion --home"),
        (False, False, "fashion was interrupted; resume it: ressmooth study fashion --home"),
        (True, False, "fashion goes on with the next service: ressmooth serve --home"),
    ],
)
def test_an_interrupted_study_is_followed_by_its_command(is_served, is_alive, words):
    study = replace(STUDY, is_interrupted=True, is_served=is_served, epochs_per_minute=None)
    text = text_of(study, service=replace(SERVICE, is_alive=is_alive))
    assert "interrupted" in text.splitlines()[5] and "waits" not in text
    assert words in " ".join(text.split())
    assert ("The service gpu1/4711 has died; start one:" in text) is not is_alive


def test_many_studies_of_a_dead_service_share_a_line():
    studies = [
        replace(STUDY, id=number, name=f"s{number}", is_interrupted=True) for number in range(5)
    ]
    text = text_of(*studies, service=replace(SERVICE, is_alive=False))
    last = text.rpartition("\n\n")[2]
    assert " ".join(last.split()) == (
        "s0, s1, s2 and 2 more go on with the next service: ressmooth serve --home /data/home"
    )


def test_a_failed_study_says_why():
    failed = replace(STUDY, state=StudyState.FAILED, problem="no images in \x1b[31mshapes\nmore")
    assert "12:30 UTC; no images in \\x1b[31mshapes" in text_of(failed)


def test_hidden_studies_are_counted():
    text = text_of(STUDY, hidden=7)
    assert text.endswith("7 older rows hidden; show all: ressmooth queue --all --home /data/home")


def test_an_empty_queue_says_so():
    assert text_of(service=None).endswith("No studies yet.")


def test_workers_are_listed_by_node():
    elsewhere = replace(RUN, study="mine", host="desk", gpus=None, device="cpu", params={})
    nodes = [*SERVICE.nodes, {"node": "gpu2", "workers": 1, "gpus": 0.0}]
    queue = Queue(replace(SERVICE, nodes=nodes), [], [RUN, elsewhere], 0)
    assert workers_text(queue, HOME).splitlines()[2:] == [
        "gpu1: 2 workers, 1 GPU",
        "run                     study  device  epoch       since (UTC)",
        "──────────────────────────────────────────────────────────────",
        "laplace b=0.3 seed 1  fashion   GPU 0   3/48  2026-05-01 12:30",
        "",
        "gpu2: 1 worker, no GPU",
        "  idle",
        "",
        "desk: not a node of the service",
        "run             study  device  epoch       since (UTC)",
        "──────────────────────────────────────────────────────",
        "laplace seed 1   mine     cpu   3/48  2026-05-01 12:30",
    ]


def test_gpus_are_listed_with_their_memory_and_use():
    busy = {"index": 0, "name": "NVIDIA A100", "memory_total": 40960.0, "memory_used": 8192.0}
    busy |= {"utilization": 87.0, "power": 250.0}
    unknown = busy | {"index": 1, "memory_used": None, "utilization": None}
    nodes = [{"node": "gpu1", "workers": 2, "gpus": [busy, unknown]}]
    text = workers_text(Queue(replace(SERVICE, nodes=nodes), [], [RUN], 0), HOME)
    assert text.splitlines()[2:6] == [
        "gpu1: 2 workers, 2 GPUs",
        "  GPU 0: NVIDIA A100, 8.0 of 40.0 GiB in use, 87 % busy",
        "  GPU 1: NVIDIA A100, 40.0 GiB",
        "run                     study  device  epoch       since (UTC)",
    ]


def test_without_a_service_there_are_no_nodes():
    for service in (None, replace(SERVICE, is_alive=False)):
        text = workers_text(Queue(service, [], [], 0), HOME)
        assert "\n" not in text and text.endswith("start one: ressmooth serve --home /data/home")
