"""/metrics for Prometheus, read over HTTP and by its own parser."""

import json
import re
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers.records import free_port
from helpers.store_rows import ENVIRONMENT, add_trial, epoch, record, set_state, spec
from prometheus_client.parser import text_string_to_metric_families as parse

from ressmooth.errors import ConfigError
from ressmooth.store import Holder, Store, open_store
from ressmooth.tracking.prometheus import MetricsServer
from ressmooth.training.gpu import Gpu


@pytest.fixture
def server(store):
    server = MetricsServer(store.url, free_port(), "127.0.0.1")
    server.activate()
    yield server
    server.close()


def scrape(server):
    """Return the samples of a scrape: {(name, labels...): value}."""
    with urllib.request.urlopen(server.url, timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_a_scrape_shows_the_store(server, store):
    record(store)
    found = scrape(server)
    assert found["ressmooth_service_active",] == found["ressmooth_store_up",] == 1
    assert found["ressmooth_studies", "stopped"] == 1 and found["ressmooth_studies", "failed"] == 0
    assert found["ressmooth_runs", "box", "running"] == 1
    assert found["ressmooth_runs", "box", "failed"] == 0  # so that an alert can wait for it
    assert found["ressmooth_runs", "", "waiting"] == 0
    assert found["ressmooth_mlflow_pending_events",] == store.count_pending(None) == 4
    assert found["ressmooth_webhook_pending_messages",] == 0
    assert found["ressmooth_queue_length",] == 0
    assert found["ressmooth_oldest_waiting_run_age_seconds",] == 0


def test_names_follow_the_conventions(server, store):
    record(store)
    for name, *_ in scrape(server):
        assert re.fullmatch(r"ressmooth(_[a-z]+)+", name)


def test_gpus_are_shown_as_the_service_has_recorded_them(server, store):
    gpu = Gpu(0, "A100", memory_total=40960.0, memory_used=1024.0, utilization=50.0, power=None)
    mig = Gpu(1, "MIG", memory_total=None, memory_used=None, utilization=None, power=None)
    nodes = [
        {"node": "box", "workers": 2, "gpus": [asdict(gpu), asdict(mig)]},
        {"node": "ray", "workers": 1, "gpus": ["0"]},
    ]
    holder = Holder.here()
    assert store.acquire_service(holder, "local")
    store.service_heartbeat(holder, "2 workers", nodes, {})
    found = scrape(server)
    assert found["ressmooth_gpu_memory_used_bytes", "0", "A100", "box"] == 2**30
    assert found["ressmooth_gpu_memory_total_bytes", "0", "A100", "box"] == 40 * 2**30
    assert found["ressmooth_gpu_utilization_ratio", "0", "A100", "box"] == 0.5
    assert len([key for key in found if key[0].startswith("ressmooth_gpu_")]) == 3


def test_epochs_are_counted_from_the_start_of_the_service(store):
    attempt = record(store)
    server = MetricsServer(store.url, free_port(), "127.0.0.1")
    server.activate()
    try:
        assert scrape(server)["ressmooth_epochs_total",] == 0
        store.record_epoch(attempt, epoch(4), None)
        assert scrape(server)["ressmooth_epochs_total",] == 1
        store.finish_run(attempt, "failed", error="x")
        store.reset_failed(store.study("demo").id)  # its epochs go
        assert scrape(server)["ressmooth_epochs_total",] == 1
        attempt = store.claim(attempt.run_id, ENVIRONMENT)
        store.record_epoch(attempt, epoch(1), None)
        assert scrape(server)["ressmooth_epochs_total",] == 2
        store.delete_study(store.study("demo").id)
        assert scrape(server)["ressmooth_epochs_total",] == 2
    finally:
        server.close()


def test_a_standby_shows_only_that_it_is_one(store):
    """What it shows of the Store would be counted twice."""
    server = MetricsServer(store.url, free_port(), "127.0.0.1")
    try:
        assert scrape(server) == {("ressmooth_service_active",): 0}
    finally:
        server.close()


def test_a_store_that_does_not_answer_is_shown(tmp_path, capfd):
    open_store(f"sqlite:///{tmp_path}/results.db").close()
    server = MetricsServer(f"sqlite:///{tmp_path}/results.db", free_port(), "127.0.0.1")
    server.activate()
    (tmp_path / "results.db").rename(tmp_path / "away.db")
    try:
        found = scrape(server)
        assert found == {("ressmooth_service_active",): 1, ("ressmooth_store_up",): 0}
        (tmp_path / "away.db").rename(tmp_path / "results.db")
        assert scrape(server)["ressmooth_store_up",] == 1
    finally:
        server.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_taken_port_is_an_error_with_a_free_one(server):
    port = server.server.server_port
    with pytest.raises(ConfigError, match=f"--metrics-port {port}: .*already in use; choose"):
        MetricsServer("sqlite:///x.db", port, "127.0.0.1")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "300.1.1.1", "192.0.2.1"])
def test_a_wrong_host_is_an_error(tmp_path, host):
    with pytest.raises(ConfigError, match=f"RESSMOOTH_METRICS_HOST = {host}: "):
        MetricsServer(f"sqlite:///{tmp_path}/results.db", free_port(), host)


RUNS, EPOCHS = 10_000, 50


@pytest.mark.slow
def test_a_scrape_of_ten_thousand_runs_takes_less_than_50_ms(store):
    fill(store)
    server = MetricsServer(store.url, free_port(), "127.0.0.1")
    server.activate()
    try:
        seconds = []
        for _ in range(20):
            began = time.perf_counter()
            found = scrape(server)
            seconds.append(time.perf_counter() - began)
        print(f"scrape of {RUNS} runs: {[round(1000 * s, 1) for s in seconds]} ms")
        assert found["ressmooth_runs", "complete", "node3"] == RUNS / 4
        assert min(seconds) < 0.05
    finally:
        server.close()


def fill(store, studies=200):
    """Record many runs quickly: with SQL that both databases know."""
    for number in range(studies):
        study_id = store.open_study(spec(name=f"s{number}"))
        add_trial(store, study_id, seeds=RUNS // studies, note="x" * 1000)
    other = Store(store.url)
    with other.database.engine.begin() as connection:
        run = connection.exec_driver_sql
        run(f"UPDATE run SET state='complete', last_epoch={EPOCHS}")
        run("UPDATE run SET host='node' || (id - id / 4 * 4)")
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50) "
        now = "CURRENT_TIMESTAMP"
        run(
            "INSERT INTO epoch (run_id, epoch, recorded_at) "
            f"{numbers} SELECT run.id, i, {now} FROM run, n"
        )
        run(
            "INSERT INTO outbox (study_id, run_id, epoch, kind, created_at, sent_at) "
            f"{numbers} SELECT trial.study_id, run.id, i, 'epoch', {now}, {now} FROM n, run "
            "JOIN trial ON trial.id = run.trial_id"
        )
    other.close()


def test_of_rays_nodes_the_number_of_gpus_is_shown(server, store):
    nodes = [{"node": "ray", "workers": 1, "gpus": 2.0}, {"node": "box", "workers": 2, "gpus": []}]
    holder = Holder.here()
    assert store.acquire_service(holder, "ray")
    store.service_heartbeat(holder, "", nodes, {})
    found = scrape(server)
    assert (found["ressmooth_gpus", "ray"], found["ressmooth_gpus", "box"]) == (2, 0)
    assert found["ressmooth_workers", "ray"] == 1


def test_runs_are_counted_by_study_while_it_is_active(server, store):
    record(store)
    assert ("ressmooth_study_runs", "demo", "running") not in scrape(server)  # it is stopped
    set_state(store, store.study("demo").id, "running")
    assert scrape(server)["ressmooth_study_runs", "demo", "running"] == 1


def test_grafanas_dashboard_asks_for_metrics_that_exist(server, store):
    record(store)
    set_state(store, store.study("demo").id, "running")
    gpu = Gpu(0, "A100", memory_total=40960.0, memory_used=1024.0, utilization=50.0, power=None)
    holder = Holder.here()
    assert store.acquire_service(holder, "local")
    nodes = [{"node": "box", "workers": 2, "gpus": [asdict(gpu)]}]
    store.service_heartbeat(holder, "2 workers", nodes, {})
    exported = {name for name, *_ in scrape(server)}
    file = Path(__file__).parents[2] / "docker" / "grafana" / "dashboards" / "ressmooth.json"
    panels = json.loads(file.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) == 8
    for expression in expressions:
        assert set(re.findall(r"ressmooth_\w+", expression)) & exported, expression
