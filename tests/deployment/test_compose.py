"""The deployment's checklist over the parsed docker-compose.yml and docker/; nothing is started."""

import re
import runpy
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ressmooth.cli.service import serve
from ressmooth.tracking import deployed

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
ONE_SHOT = ("migrate", "study")
USER = "${RESSMOOTH_UID:-61000}:${RESSMOOTH_UID:-61000}"
WEAK = re.compile(rb"password1234|postgres:postgres|admin:admin|changeme", re.I)
PINNED = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==([\w.+!]+)", re.MULTILINE)

FOREIGN = {"caddy": "0:0", "prometheus": "65534:65534"}  # users that own their images' volumes

every_service = pytest.mark.parametrize("name", SERVICES)


@every_service
def test_a_service_has_no_more_rights_than_it_needs(name):
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert any(mount.startswith("/tmp") for mount in service["tmpfs"])
    assert not service.keys() & {"privileged", "network_mode", "pid", "ipc", "devices"}
    mounts = [volume.partition(":")[0] for volume in service.get("volumes", [])]
    assert not [m for m in mounts if m in (".", "/") or "docker.sock" in m]
    if name == "db":
        assert set(service["cap_add"]) == {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}
    else:
        assert service["user"] == FOREIGN.get(name, USER)
        assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "caddy" else [])


@every_service
def test_a_service_has_limits_and_ends_cleanly(name):
    service = SERVICES[name]
    assert service["mem_limit"] and service["pids_limit"] and "cpus" in service
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "5"}
    assert int(service["stop_grace_period"].rstrip("s")) >= (120 if name == "db" else 60)
    assert service["init"] is (name != "db")  # PostgreSQL passes signals on itself
    assert service.get("stop_signal") == ("SIGINT" if name == "db" else None)


@every_service
def test_what_runs_on_is_restarted_and_watched(name):
    service = SERVICES[name]
    assert service["restart"] == ("no" if name in ONE_SHOT else "unless-stopped")
    assert ("healthcheck" in service) is (name not in ONE_SHOT)


def test_only_this_host_reaches_what_is_published():
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "gate": ["127.0.0.1:${MLFLOW_PORT:-5000}:8000"],
        "dashboard-gate": ["127.0.0.1:${DASHBOARD_PORT:-8080}:8000"],
        "grafana-gate": ["127.0.0.1:${GRAFANA_PORT:-3000}:8000"],
        "caddy": ["${TLS_ADDRESS:-0.0.0.0}:80:80", "${TLS_ADDRESS:-0.0.0.0}:443:443"],
    }
    assert SERVICES["caddy"]["profiles"] == ["tls"]  # only where somebody asks for it


def test_only_three_services_have_a_way_out():
    networks = COMPOSE["networks"]
    for name in ("store", "cluster", "web", "tls"):
        assert networks[name]["internal"] is True
        no_host = networks[name]["driver_opts"]["com.docker.network.bridge.inhibit_ipv4"]
        assert no_host == "true"  # or local users would reach PostgreSQL and Ray
    masquerade = {"com.docker.network.bridge.enable_ip_masquerade": "false"}
    assert networks["edge"] == {"driver_opts": masquerade}
    assert {name: set(service["networks"]) for name, service in SERVICES.items()} == {
        "db": {"store"},
        "migrate": {"store"},
        "backup": {"store"},
        "mlflow": {"web", "store", "tls"},
        "gate": {"edge", "web"},
        "dashboard": {"web"},
        "dashboard-gate": {"edge", "web"},
        "ray-head": {"cluster"},
        "ray-worker": {"store", "cluster"},
        "scheduler": {"outside", "store", "cluster", "web"},
        "study": {"store"},
        "alarm": {"outside"},
        "caddy": {"outside", "tls"},  # MLflow believes only what Caddy says about clients
        "prometheus": {"web"},
        "grafana": {"web"},
        "grafana-gate": {"edge", "web"},
    }


@every_service
def test_no_container_leaves_a_volume_without_a_name(name):
    """Images of PostgreSQL declare this one, and `down` would leave it behind."""
    service = SERVICES[name]
    if service["image"].startswith("postgres:"):
        places = [*service["tmpfs"], *(v.split(":")[1] for v in service["volumes"])]
        assert "/var/lib/postgresql/data" in places


def test_images_have_a_version():
    for service in SERVICES.values():
        ours = re.escape("${COMPOSE_PROJECT_NAME:-ressmooth}:latest")
        foreign = r"(postgres|caddy|prom/prometheus|grafana/grafana):v?\d+\.\d+[.\d]*(@sha256:.*)?"
        assert re.fullmatch(rf"{ours}|{foreign}", service["image"])
    bases = re.findall(r"^FROM (\S+)", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert set(bases) == {"python:3.11-slim", "dependencies"}


def test_one_service_builds_the_image_of_all():
    assert [name for name, service in SERVICES.items() if "build" in service] == ["migrate"]
    ours = {name for name, service in SERVICES.items() if "PROJECT" in service["image"]}
    assert len(ours) > 8
    assert {SERVICES[name]["pull_policy"] for name in ours} == {"never"}


def test_the_wheel_is_built_from_the_lock_alone():
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    (build,) = re.findall(r"pip wheel .*", dockerfile)
    assert "--no-build-isolation" in build and "--no-index" in build
    downloads = [
        line for line in dockerfile.splitlines() if re.search(r"pip (install|wheel)", line)
    ]
    assert all("--no-index" in line or "--require-hashes" in line for line in downloads)


def test_the_image_is_of_another_user_and_its_dependencies_come_before_the_code():
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert "\nUSER $RESSMOOTH_UID:$RESSMOOTH_UID\n" in dockerfile
    assert "\nARG RESSMOOTH_UID=61000\n" in dockerfile
    *_, last = dockerfile.split("\nFROM ")
    assert last.index("COPY --from=dependencies") < last.index("COPY --from=wheel")
    assert last.index("apt-get") < last.index("COPY --from=dependencies")
    assert re.findall(r"apt-get install -y --no-install-recommends (.*?) &&", last) == ["g++"]


def test_only_workers_load_what_they_compile():
    mounts = {name: [m for m in s["tmpfs"] if "exec" in m] for name, s in SERVICES.items()}
    (cache,) = mounts.pop("ray-worker")
    assert cache.startswith("/cache:exec,mode=1777,") and not any(mounts.values())
    assert "install -d -m 1777 /cache" in (ROOT / "docker" / "Dockerfile").read_text()
    environment = SERVICES["ray-worker"]["environment"]
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert environment[name].startswith("/cache/")


def test_the_lock_has_every_dependency_in_a_version_that_fits():
    lock = (ROOT / "docker" / "requirements.lock").read_text()
    pinned = {canonicalize_name(name): version for name, version in PINNED.findall(lock)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *extras["ray"], *extras["deploy"]]:
        wanted = Requirement(line)
        if wanted.name != "ressmooth":
            assert pinned[canonicalize_name(wanted.name)] in wanted.specifier, line
    assert lock.count("--hash=sha256:") > len(pinned)


def test_secrets_are_files_that_must_be_there_and_are_given_to_whom_needs_them():
    for name, secret in COMPOSE["secrets"].items():
        assert secret == {"file": f"${{RESSMOOTH_SECRETS:?run docker/init-secrets first}}/{name}"}
    assert {name: set(service.get("secrets", [])) for name, service in SERVICES.items()} == {
        "db": {
            "db_password",
            "results_password",
            "launcher_password",
            "viewer_password",
            "mlflow_password",
            "mlflow_auth_password",
        },
        "migrate": {
            "results_password",
            "mlflow_password",
            "mlflow_auth_password",
            "mlflow_launcher_password",
        },
        "backup": {"db_password"},
        "mlflow": {
            "viewer_password",
            "mlflow_password",
            "mlflow_auth_password",
            "mlflow_admin_password",
            "mlflow_secret_key",
        },
        "gate": set(),
        "dashboard": set(),
        "dashboard-gate": set(),
        "ray-head": {"ray_token"},
        "ray-worker": {"ray_token"},
        "scheduler": {"launcher_password", "mlflow_launcher_password", "ray_token", "webhook"},
        "study": {"launcher_password", "mlflow_launcher_password"},
        "alarm": {"webhook"},
        "caddy": set(),
        "prometheus": set(),
        "grafana": {"grafana_password"},
        "grafana-gate": set(),
    }


def test_no_secret_is_in_the_repository_or_in_the_image():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    files = [Path(name) for name in tracked.stdout.splitlines()]
    assert files and not [f for f in files if f.name == ".env" or "secrets" in f.parts]
    for file in files:
        if file.suffix in (".yml", ".sh", ".toml", ".example") or file.parent.name == "docker":
            assert not WEAK.search((ROOT / file).read_bytes()), file
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*" and not {"!.env", "!secrets", "!backups", "!.git"} & set(ignored)


def test_mlflow_is_told_whom_it_serves():
    script = (ROOT / "docker" / "mlflow-server").read_text()
    for name in ("hosts", "origins"):
        assert "*" not in re.search(rf'^{name}="([^"]*)"', script, re.MULTILINE)[1]
    assert 'MLFLOW_SERVER_ALLOWED_HOSTS="$hosts"' in script
    assert 'MLFLOW_SERVER_CORS_ALLOWED_ORIGINS="$origins"' in script
    assert "exec python -m ressmooth.tracking.deployed " in script
    assert "default_permission = NO_PERMISSIONS" in script
    for name in deployed.NEEDED:
        assert f"export {name}=" in script or f" {name}=" in script
    assert "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE" not in script
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false" in dockerfile
    assert "MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false" in dockerfile


def test_services_start_in_order():
    def waits(name):
        return {other: how["condition"] for other, how in SERVICES[name]["depends_on"].items()}

    assert waits("migrate") == {"db": "service_healthy"}
    migrated = {"migrate": "service_completed_successfully"}
    assert waits("mlflow") == waits("ray-head") == migrated
    assert waits("ray-worker") == {"ray-head": "service_healthy"}
    assert waits("scheduler") == {"ray-worker": "service_healthy"}


def test_a_command_starts_no_service_and_trains_nothing_itself():
    study = SERVICES["study"]
    assert "depends_on" not in study and "entrypoint" not in study
    assert "depends_on" not in SERVICES["backup"]  # it would migrate before it backs up
    assert study["environment"] == {
        "RESSMOOTH_USER": "${USER:-unknown}",
        "RESSMOOTH_COMMAND": "docker compose run --rm study ressmooth",
        "RESSMOOTH_SERVE": "docker compose up -d",
        "RESSMOOTH_REPORTS": "/reports",
        "RESSMOOTH_DASHBOARD": "docker compose --profile dashboard up -d dashboard dashboard-gate",
        "RESSMOOTH_CLEAN_MLFLOW": "docker compose exec mlflow clean-mlflow",
    }


def test_the_scheduler_serves_with_the_options_that_there_are():
    run, command = SERVICES["scheduler"]["command"][:2], SERVICES["scheduler"]["command"][2:]
    assert run == ["ray-node", "run"]
    values = [re.sub(r"^\$\{[A-Z_]+:-(.*)\}$", r"\1", word) for word in command]
    context = serve.make_context("serve", values[2:])
    assert values[:2] == ["ressmooth", "serve"]
    assert (context.params["engine_name"], context.params["workers"]) == ("ray", "auto")
    assert (context.params["gpus_per_run"], context.params["cpus_per_run"]) == ("auto", 1.0)
    check = SERVICES["scheduler"]["healthcheck"]["test"]
    assert check[1:2] + check[3:6] == ["health", "entrypoint", "ressmooth", "serve"]
    assert serve.make_context("serve", check[6:]).params["check"]


def test_one_variable_switches_to_gpus():
    runtimes = {name: service.get("runtime") for name, service in SERVICES.items()}
    assert {name: runtime for name, runtime in runtimes.items() if runtime} == {
        "ray-worker": "${CONTAINER_RUNTIME:-runc}"
    }


def test_a_worker_on_another_machine_is_the_same_worker():
    other = yaml.safe_load((ROOT / "docker" / "worker.yml").read_text())
    here = {
        k: v for k, v in SERVICES["ray-worker"].items() if k not in ("depends_on", "pull_policy")
    }
    assert other["services"] == {"ray-worker": here | {"build": SERVICES["migrate"]["build"]}}


def test_a_service_that_hangs_is_restarted():
    """By `health`, which kills it. Services of other images only become unhealthy."""
    watched = {name: s["healthcheck"]["test"] for name, s in SERVICES.items() if "healthcheck" in s}
    hanging = {name for name, test in watched.items() if test[:2] != ["CMD", "health"]}
    assert hanging == {"db", "backup", "caddy", "prometheus", "grafana"}


def test_health_kills_what_fails_twice_after_it_was_healthy(tmp_path):
    init = subprocess.Popen(["sh", "-c", "sleep 60; exit $?"])  # stands for the container's init
    script = (ROOT / "docker" / "health").read_text()
    script = script.replace("/tmp/", f"{tmp_path}/").replace("/proc/1/fd/2", f"{tmp_path}/log")
    script = script.replace("-s KILL 10", "-s KILL 1")
    (tmp_path / "health").write_text(script.replace("PPid:\t1'", f"PPid:\t{init.pid}'"))

    def check(*command):
        return subprocess.run(["sh", tmp_path / "health", "2", *command]).returncode

    for _ in range(3):
        assert check("false") == 1 and init.poll() is None  # it may still be starting
    assert check("true") == 0
    assert check("false") == 1 and check("true") == 0
    assert check("false") == 1 and init.poll() is None  # not two in a row
    assert check("sleep", "60") == 1 and init.poll() is None  # the check itself did not end
    assert check("false") == 1
    assert init.wait(10) == 128 + signal.SIGKILL
    assert "2 checks failed in a row; restarting" in (tmp_path / "log").read_text()


def test_every_variable_is_explained_in_the_example():
    text = (ROOT / "docker-compose.yml").read_text()
    used = set(re.findall(r"\$\{([A-Z_]+)", text))
    named = set(re.findall(r"^([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert used - {"USER"} == named  # USER comes from the shell


RAY_NODE = str(ROOT / "docker" / "ray-node")


@pytest.fixture
def claim_gpus():
    return runpy.run_path(RAY_NODE)["claim_gpus"]


@pytest.fixture
def three_gpus(tmp_path, monkeypatch):
    """What nvidia-smi prints on a machine that has them."""
    lines = "".join(f"GPU {i}: NVIDIA A100 80GB (UUID: GPU-{i}e8f-aa)\\n" for i in range(3))
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    return tmp_path


def test_workers_of_one_machine_never_share_a_gpu(claim_gpus, three_gpus):
    first, second = claim_gpus(2, three_gpus), claim_gpus(None, three_gpus)
    assert (first, second) == (["GPU-0e8f-aa", "GPU-1e8f-aa"], ["GPU-2e8f-aa"])
    assert claim_gpus(None, three_gpus) == []


def test_the_gpus_of_a_worker_that_ended_are_free(claim_gpus, three_gpus):
    claim = (
        f"import runpy; print(*runpy.run_path({RAY_NODE!r})['claim_gpus'](None, '{three_gpus}'))"
    )
    ended = subprocess.run([sys.executable, "-c", claim], capture_output=True, text=True)
    assert len(ended.stdout.split()) == 3
    assert len(claim_gpus(None, three_gpus)) == 3


def test_without_gpus_none_are_claimed(claim_gpus, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert claim_gpus(None) == []
