"""Serve /metrics for Prometheus. Each scrape reads the Store."""

import errno
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from socket import socket
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ressmooth.errors import ConfigError, RessmoothError
from ressmooth.store import State, Statistics, Store, StudyState


class EpochCounter:
    """Counts the epochs that are recorded from now on.

    The number of recorded epochs falls if a study is deleted or retried, which Prometheus would
    take for a restart. So rises are added up for each study.
    """

    def __init__(self) -> None:
        self.began = time.time()
        self.total = 0
        self.seen: Mapping[int, int] | None = None  # by study id

    def update(self, epochs: Mapping[int, int]) -> None:
        if self.seen is not None:
            rises = (number - self.seen.get(study, 0) for study, number in epochs.items())
            self.total += sum(rise for rise in rises if rise > 0)
        self.seen = epochs


class StoreCollector(Collector):
    """Reads the Store at each scrape. A standby shows only that it is one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Store | None = None
        self.counter: EpochCounter | None = None  # from when the service is active
        self.lock = threading.Lock()  # scrapes come in threads

    def activate(self) -> None:
        """Show the Store from now on."""
        self.counter = EpochCounter()
        list(self.collect())

    def collect(self) -> Iterator[Metric]:
        with self.lock:
            yield from self._collect()

    def _collect(self) -> Iterator[Metric]:
        is_active = self.counter is not None
        yield _gauge(
            "service_active", "1 if this service runs the studies, 0 for a standby", is_active
        )
        if self.counter is None:
            return
        try:
            found = self._read()
        except RessmoothError:
            yield _gauge("store_up", "1 if the database answers", False)
            return
        yield _gauge("store_up", "1 if the database answers", True)
        self.counter.update(found.epochs)
        yield from _families(found, self.counter)

    def _read(self) -> Statistics:
        if self.store is None:
            self.store = Store(self.url)
        else:
            self.store.database.check()  # fails soon during an outage, unlike other reads
        return self.store.statistics()


def _families(found: Statistics, counter: EpochCounter) -> Iterator[Metric]:
    studies = _labelled("studies", "Studies by state", "state")
    for study_state in StudyState:
        studies.add_metric([study_state], found.studies.get(study_state, 0))
    yield studies

    runs = _labelled("runs", "Runs by state and node; waiting ones have no node", "state", "node")
    hosts = {host for _, host in found.runs} | {node["node"] for node in found.nodes}
    for state in State:
        for host in [""] if state == State.WAITING else sorted(hosts - {""}):
            runs.add_metric([state, host], found.runs.get((state, host), 0))
    yield runs

    by_study = _labelled("study_runs", "Runs of studies that wait or run", "study", "state")
    for (name, state), number in found.study_runs.items():
        by_study.add_metric([name, state], number)
    yield by_study

    workers = _labelled("workers", "Runs that a node can execute at once", "node")
    for node in found.nodes:
        workers.add_metric([node["node"]], node["workers"])
    yield workers

    yield from _gpu_families(found.nodes)
    epochs = "Epochs recorded since this service became active"
    yield CounterMetricFamily("ressmooth_epochs", epochs, counter.total, created=counter.began)
    yield _gauge("queue_length", "Runs that wait for a worker", found.queue_length)
    yield _gauge(
        "oldest_waiting_run_age_seconds",
        "Time since the oldest waiting run was planned, or its study was submitted or taken up",
        found.oldest_wait,
    )
    yield _gauge(
        "mlflow_pending_events", "Events not yet delivered to MLflow", found.pending_events
    )
    yield _gauge(
        "webhook_pending_messages", "Messages not yet sent to the webhook", found.pending_messages
    )


def _gpu_families(nodes: Collection[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the GPUs and their use, as the service's last heartbeat has recorded it.

    Of Ray's nodes only their number is recorded.
    """
    listed = {node["node"]: node["gpus"] for node in nodes if isinstance(node["gpus"], list)}
    numbers = _labelled("gpus", "GPUs of a node", "node")
    for node in nodes:
        number = len(node["gpus"]) if node["node"] in listed else node["gpus"]
        numbers.add_metric([node["node"]], number)
    yield numbers
    gpus = [(name, gpu) for name, found in listed.items() for gpu in found if isinstance(gpu, dict)]
    for name, help_text, key, factor in (
        ("gpu_memory_used_bytes", "GPU memory in use", "memory_used", 2**20),
        ("gpu_memory_total_bytes", "GPU memory", "memory_total", 2**20),
        ("gpu_utilization_ratio", "Share of the time in which a kernel ran", "utilization", 0.01),
    ):
        family = _labelled(name, help_text, "node", "gpu", "name")
        for node, gpu in gpus:
            if gpu[key] is not None:  # NVML can tell it
                family.add_metric([node, str(gpu["index"]), gpu["name"]], gpu[key] * factor)
        if gpus:
            yield family


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ressmooth_{name}", help_text, value)


def _labelled(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"ressmooth_{name}", help_text, labels=labels)


def metrics_host() -> str:
    """Return RESSMOOTH_METRICS_HOST, or the loopback address."""
    return os.environ.get("RESSMOOTH_METRICS_HOST") or "127.0.0.1"


class MetricsServer:
    """Answers scrapes from threads. The port is taken as soon as it exists."""

    def __init__(self, store_url: str, port: int, host: str) -> None:
        self.collector = StoreCollector(store_url)
        registry = CollectorRegistry()
        registry.register(self.collector)
        try:
            self.server, _ = start_http_server(port, host, registry)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                free = f"choose another, as in --metrics-port {_free_port()}"
                raise ConfigError(f"--metrics-port {port}: {error.strerror}; {free}") from None
            rule = "an address of this machine, as in 127.0.0.1 or 0.0.0.0"
            reason = f"{error.strerror}; {rule}"
            raise ConfigError(f"RESSMOOTH_METRICS_HOST = {host}: {reason}") from None
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def activate(self) -> None:
        self.collector.activate()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        if self.collector.store is not None:
            self.collector.store.close()


def _free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
