"""Both engines, launched as a user does."""

import os
import subprocess

import psutil
import pytest
from helpers.launch import EPOCHS, TINY, command, launch, workers_of

NO_MLFLOW = "http://127.0.0.1:9"  # nothing listens there


class LaunchedEngine:
    """Launches studies on one engine while MLflow is down, which must not matter."""

    def __init__(self, name, raylet=None, **environment):
        self.name, self.raylet = name, raylet
        self.options = ["--engine", name]
        self.environment = {**os.environ, "MLFLOW_TRACKING_URI": NO_MLFLOW, **environment}

    def launch(self, file, home, *options, **changes):
        environment = {**self.environment, **changes}
        return launch(file, home, *self.options, *options, env=environment)

    def start(self, file, home, *options, **changes):
        return subprocess.Popen(
            command(file, home, *self.options, *options),
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, **changes},
        )

    def workers(self, launcher):
        """Return the processes that train for a launcher."""
        if self.raylet is None:
            return workers_of(launcher)
        actors = psutil.Process(self.raylet).children(recursive=True)
        return [actor for actor in actors if "ray::ResourceTrainable" in " ".join(actor.cmdline())]


@pytest.fixture(scope="session")
def local_engine():
    return LaunchedEngine("local")


@pytest.fixture(scope="session")
def ray_engine(ray_cluster):
    raylet = ray_cluster.head_node.all_processes["raylet"][0].process.pid
    return LaunchedEngine("ray", raylet, RAY_ADDRESS=ray_cluster.address)


@pytest.fixture(scope="module", params=["local", "ray"])
def engine(request):
    return request.getfixturevalue(f"{request.param}_engine")


@pytest.fixture(scope="session")
def ray_whole(ray_engine, tmp_path_factory):
    """The tiny study on Ray, undisturbed, with the embedded MLflow: home, process."""
    home = tmp_path_factory.mktemp("whole")
    (home / "tiny.toml").write_text(TINY.format(epochs=EPOCHS))
    done = ray_engine.launch(home / "tiny.toml", home, "--workers", "2", MLFLOW_TRACKING_URI="")
    assert done.returncode == 0, done.stderr
    return home, done


@pytest.fixture
def whole(engine, request):
    """The tiny study by this engine, undisturbed: home, process."""
    return request.getfixturevalue("undisturbed" if engine.name == "local" else "ray_whole")
