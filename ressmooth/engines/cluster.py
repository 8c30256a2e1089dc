"""The Ray that a study runs on: reached or started, and what it has room for."""

import logging
import math
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from ressmooth.errors import ClusterUnreachable, ConfigError
from ressmooth.phrases import count
from ressmooth.placement import at_once, room, slots, visible_gpus

if TYPE_CHECKING:
    from ressmooth.dispatch import Dispatcher
    from ressmooth.engines.ray import Engine
    from ressmooth.spec import Resources
    from ressmooth.view import View

SILENCE = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the view is ours
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",  # or Tune retries what we retry
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # signals are the launcher's
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",  # nothing is restored from Tune's state
    "TUNE_MAX_PENDING_TRIALS_PG": "1024",  # how many go at once is for the searcher to say
    "TUNE_STATE_REFRESH_PERIOD": "1e9",  # it would block while the head does not answer
}
PATIENCE = 3  # looks without an answer; Ray ends the launcher after a minute, without a word


class Cluster:
    """Where the workers are: the nodes at RAY_ADDRESS, or a Ray started on this machine."""

    def __init__(self, resources: "Resources", workers: int | None, url: str) -> None:
        self.cpus_per_run, self.gpus_per_run = resources.cpus_per_run, resources.gpus_per_run
        self.wanted, self.url = workers, url
        self.fitting = self.silent = 0
        self.address = os.environ.get("RAY_ADDRESS") or "local"
        if self.address.startswith("ray://"):
            raise ConfigError(
                f"RAY_ADDRESS = {self.address!r}: a launcher runs on a node of the cluster; "
                "start it there and give auto or HOST:6379"
            )
        if self.address == "local":  # to be started when there is something to train
            here = slots(workers, gpus_per_run=self.gpus_per_run, cpus_per_run=self.cpus_per_run)
            self.workers = len(here)
            self.idle_gpus: float = 0 if self.gpus_per_run else len(visible_gpus())
            self.where = "in a Ray of this machine's own"
            return
        self._knock(self.address)
        self._connect()
        if not self.look():
            raise ConfigError(
                f"resources.gpus_per_run = {resources.gpus_per_run:g}, cpus_per_run = "
                f"{resources.cpus_per_run:g}: no node has room for a run; there are {self.where}"
            )

    def __str__(self) -> str:
        return f"{count(self.workers, 'worker')} {self.where}"

    def engine(self, dispatcher: "Dispatcher", home: Path, view: "View") -> "Engine":
        if self.address == "local":
            self._connect()
        from ressmooth.engines.ray import Engine  # takes a second

        return Engine(dispatcher, self, home, view)

    def look(self) -> int:
        """How many runs the nodes that are alive have room for."""
        try:
            self._knock(self.head)
        except ClusterUnreachable:
            self.silent += 1
            if self.silent == PATIENCE:
                raise
            return self.fitting
        self.silent = 0
        nodes = [node for node in ray.nodes() if node["Alive"]]
        self._check_store(nodes)
        has = [
            {kind: node["Resources"].get(kind, 0.0) for kind in ("CPU", "GPU")} for node in nodes
        ]
        self.fitting = sum(
            room(
                node["CPU"],
                node["GPU"],
                cpus_per_run=self.cpus_per_run,
                gpus_per_run=self.gpus_per_run,
            )
            for node in has
        )
        self.workers = at_once(self.wanted, self.fitting)
        cpus, gpus = (sum(node[kind] for node in has) for kind in ("CPU", "GPU"))
        self.idle_gpus = 0 if self.gpus_per_run else gpus
        parts = count(len(nodes), "Ray node"), count(cpus, "CPU"), count(gpus, "GPU")
        self.where = "on {} with {} and {}".format(*parts)
        return self.fitting

    def _check_store(self, nodes: list[dict[str, Any]]) -> None:
        here = ray.util.get_node_ip_address()
        elsewhere = [node["NodeName"] for node in nodes if node["NodeManagerAddress"] != here]
        if elsewhere and self.url.startswith("sqlite"):
            raise ConfigError(
                f"the results are in SQLite, a file of this machine, and node {elsewhere[0]} is "
                "another one; set RESSMOOTH_DATABASE_URL to a PostgreSQL that all nodes reach"
            )

    def _knock(self, address: str) -> None:
        """Ray itself tries for minutes where nobody listens."""
        host, _, port = address.rpartition(":")
        if host:
            try:
                socket.create_connection((host, port), timeout=5).close()
            except OSError as error:
                raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ClusterUnreachable:
        reason = str(error).partition("\n")[0]
        return ClusterUnreachable(
            f"Ray at {self.address} does not answer: {reason}. "
            "Is it running, and is RAY_AUTH_TOKEN the cluster's?"
        )

    def _connect(self) -> None:
        os.environ.update(SILENCE)
        local: dict[str, Any] = {}
        if self.address == "local":
            cores = len(os.sched_getaffinity(0))
            asked = math.ceil(self.workers * self.cpus_per_run)
            local = {"num_cpus": max(cores, asked), "include_dashboard": False}
        terminated = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(self.address, log_to_driver=False, logging_level=logging.CRITICAL, **local)
        except Exception as error:  # ConnectionError, RuntimeError, ValueError, RpcError ...
            raise self._unreachable(error) from error
        finally:
            signal.signal(signal.SIGTERM, terminated)  # Ray's own would exit with 15
        self.head = ray.get_runtime_context().gcs_address
        logging.getLogger("ray").setLevel(logging.CRITICAL)  # what happens, the view tells
