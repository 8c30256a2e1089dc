"""The Ray cluster of a study: connect to it or start it, and tell how many runs fit."""

import logging
import math
import os
import secrets
import signal
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from ressmooth.build import build_resource
from ressmooth.engines.placement import capacity, concurrency, gpus_per_run, slots, visible_gpus
from ressmooth.errors import ClusterUnreachable, ConfigError
from ressmooth.formatting import count
from ressmooth.spec import Resources

ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",  # we have our own view
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",  # or Tune would retry, and so do we
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_register_timeout_seconds": "600",  # not 60: a busy machine would never start one
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the launcher handles signals
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",  # nothing is restored from Tune's state
    "TUNE_MAX_PENDING_TRIALS_PG": "1024",  # the searcher limits concurrency
    "TUNE_STATE_REFRESH_PERIOD": "1e9",  # it would block while the head does not answer
}
MAX_SILENT = 3  # refreshes without an answer; after a minute Ray ends the launcher silently


class RayCluster:
    """The nodes at RAY_ADDRESS, or a Ray started on this machine."""

    def __init__(self, resources: Resources, workers: int | None, url: str) -> None:
        self.resources, self.wanted, self.url = resources, workers, url
        self.capacity = self.silent = 0
        self.unused = 0  # places whose GPU is broken
        self.alive: set[str] = set()  # Ray's ids of nodes
        self.address = os.environ.get("RAY_ADDRESS") or "local"
        if self.address.startswith("ray://"):
            raise ConfigError(
                f"RAY_ADDRESS = {self.address!r}: a launcher runs on a node of the cluster; "
                "start it there and give auto or HOST:6379"
            )
        if self.is_local:  # started when there is something to train
            self.workers = len(slots(workers, resources))
            self.gpus: float = len(visible_gpus())
            self.gpus_per_run = gpus_per_run(resources, self.gpus)
            self.description = "in a Ray of this machine's own"
            here = {"node": socket.gethostname(), "workers": self.workers, "gpus": visible_gpus()}
            self.nodes: list[dict[str, Any]] = [here]
            return
        self._check_reachable(self.address)
        self.connect()
        # decided once: Tune cannot change what a run asks for when nodes join
        self.gpus_per_run = gpus_per_run(resources, sum(_totals(_nodes(), "GPU")))
        if not self.refresh():
            raise ConfigError(
                f"resources.gpus_per_run = {self.gpus_per_run:g}, cpus_per_run = "
                f"{resources.cpus_per_run:g}: no node has room for a run "
                f"{self.description}"
            )

    @property
    def is_local(self) -> bool:
        return self.address == "local"

    def connect(self) -> None:
        os.environ.update(ENVIRONMENT)
        hide_token_file()
        options: dict[str, Any] = {}
        if self.is_local:
            # Other users of this machine reach its ports. Ray would write a token for all to read.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            cores = len(os.sched_getaffinity(0))
            needed = math.ceil(self.workers * self.resources.cpus_per_run)
            gpus = visible_gpus()  # Ray sees no MIG instances
            os.environ.update({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
            options = {"num_cpus": max(cores, needed), "num_gpus": len(gpus)}
            options["include_dashboard"] = False
        try:
            self._init(options)
        except SystemExit:  # a SIGTERM came meanwhile, and Ray's handler has just left with 15
            ray.shutdown()
            signal.raise_signal(signal.SIGTERM)
            self._init(options)
        context = ray.get_runtime_context()
        self.head, self.node = context.gcs_address, context.get_node_id()
        logging.getLogger("ray").setLevel(logging.CRITICAL)  # the view reports events

    def _init(self, options: dict[str, Any]) -> None:
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(self.address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
        except Exception as error:  # ConnectionError, RuntimeError, ValueError, RpcError ...
            raise self._unreachable(error) from error
        finally:
            signal.signal(signal.SIGTERM, on_sigterm)  # instead of Ray's own handler

    def refresh(self) -> int:
        """Ask the cluster for its nodes. Return how many runs fit on those that are alive."""
        try:
            self._check_reachable(self.head)
        except ClusterUnreachable:
            self.silent += 1
            if self.silent == MAX_SILENT:
                raise
            return self.capacity
        self.silent = 0
        self._check_own_node()
        nodes, others = _nodes(), _nodes(of_this_build=False)
        self._check_database(nodes)
        cpus, gpus = _totals(nodes, "CPU"), _totals(nodes, "GPU")
        per_run = self.resources.cpus_per_run, self.gpus_per_run
        fitting = sum(capacity(*has, *per_run) for has in zip(cpus, gpus, strict=True))
        self.capacity = max(0, fitting - self.unused)
        self.alive = {node["NodeID"] for node in nodes}
        self.workers = concurrency(self.wanted, self.capacity)
        self.nodes = [
            {"node": node["NodeName"], "workers": capacity(cpu, gpu, *per_run), "gpus": gpu}
            for node, cpu, gpu in zip(nodes, cpus, gpus, strict=True)
        ]
        self.gpus = sum(gpus)
        parts = count(len(nodes), "Ray node"), count(sum(cpus), "CPU"), count(sum(gpus), "GPU")
        self.description = "on {} with {} and {}".format(*parts)
        if others:
            names = ", ".join(sorted(node["NodeName"] for node in others))
            self.description += f", without {names}: another version of ressmooth"
        return self.capacity

    def _check_own_node(self) -> None:
        """Fail if the launcher's own node is gone: Ray starts nothing more for it, and waits."""
        if not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == self.node):
            raise ClusterUnreachable(
                "Ray has ended on this machine: one of its processes failed or was killed"
            )

    def _check_database(self, nodes: list[dict[str, Any]]) -> None:
        here = ray.util.get_node_ip_address()
        elsewhere = [node["NodeName"] for node in nodes if node["NodeManagerAddress"] != here]
        if elsewhere and self.url.startswith("sqlite"):
            raise ConfigError(
                f"the results are in SQLite, a file of this machine, and node {elsewhere[0]} is "
                "another one; set RESSMOOTH_DATABASE_URL to a PostgreSQL that all nodes reach"
            )

    def _check_reachable(self, address: str) -> None:
        """Fail within seconds where nobody listens. Ray itself tries for minutes."""
        host, _, port = address.rpartition(":")
        if host:
            try:
                socket.create_connection((host, port), timeout=5).close()
            except OSError as error:
                raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ClusterUnreachable:
        reason = str(error).partition("\n")[0]
        if "AF_UNIX" in reason:
            return ClusterUnreachable(
                f"Ray cannot start: {reason}. Use a shorter path, as in: RAY_TMPDIR=/tmp"
            )
        if self.is_local:
            return ClusterUnreachable(f"Ray cannot start on this machine: {reason}")
        return ClusterUnreachable(
            f"Ray at {self.address} does not answer: {reason}. "
            "Is it running, and is RAY_AUTH_TOKEN the cluster's?"
        )


def hide_token_file() -> None:
    """Make the cluster's token readable for its owner only. Ray writes it with the umask's mode."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    with suppress(OSError):  # there is none, or it is somebody else's
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)


def _nodes(of_this_build: bool = True) -> list[dict[str, Any]]:
    """Return the nodes that are alive, without those whose CPUs belong to another build."""
    resource = build_resource()
    return [
        node
        for node in ray.nodes()
        if node["Alive"] and _fits(node["Resources"], resource) is of_this_build
    ]


def _fits(resources: dict[str, float], build: str | None) -> bool:
    return build is None or build in resources or not resources.get("CPU")


def _totals(nodes: list[dict[str, Any]], kind: str) -> list[float]:
    return [node["Resources"].get(kind, 0.0) for node in nodes]
