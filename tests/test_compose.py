"""The checklist of the deployment over the parsed docker-compose.yml; nothing is started."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
LONG_RUNNING = [name for name, service in SERVICES.items() if service["restart"] != "no"]
WEAK = re.compile(r"password1234|postgres:postgres|admin:admin|changeme", re.I)

every_service = pytest.mark.parametrize("name", SERVICES)


@every_service
def test_a_service_has_no_more_rights_than_it_needs(name):
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True and service["init"] is True
    assert any(mount.startswith("/tmp") for mount in service["tmpfs"])
    assert not service.keys() & {"privileged", "network_mode", "pid", "ipc", "devices"}
    assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))
    if name == "db":
        assert set(service["cap_add"]) <= {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}
    else:
        assert service["user"] == "10001:10001" and "cap_add" not in service


@every_service
def test_a_service_has_limits_and_ends_cleanly(name):
    service = SERVICES[name]
    assert service["mem_limit"] and service["pids_limit"]
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "5"}
    assert int(service["stop_grace_period"].rstrip("s")) >= 60


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_what_runs_on_is_restarted_and_watched(name):
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert "healthcheck" in SERVICES[name] or name in ("dashboard", "backup")


def test_only_this_host_reaches_what_is_published():
    published = {name: service.get("ports", []) for name, service in SERVICES.items()}
    assert {name for name, ports in published.items() if ports} == {"mlflow", "dashboard"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_databases_and_ray_are_on_networks_without_a_way_out():
    networks = COMPOSE["networks"]
    assert networks["data"] == networks["ray"] == {"internal": True}
    assert SERVICES["db"]["networks"] == ["data"]
    for name in ("ray-head", "ray-worker"):
        assert set(SERVICES[name]["networks"]) == {"data", "ray"}


def test_images_have_a_version():
    for service in SERVICES.values():
        assert re.fullmatch(r"ressmooth:\w+|postgres:\d+\.\d+(@sha256:.*)?", service["image"])


def test_secrets_are_files_that_must_be_there():
    for name, secret in COMPOSE["secrets"].items():
        assert secret == {"file": f"${{RESSMOOTH_SECRETS:?run docker/init-secrets first}}/{name}"}
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
    assert used == set(COMPOSE["secrets"])


def test_no_secret_is_in_the_repository():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [ROOT / name for name in tracked.stdout.splitlines()]
    assert not [f for f in files if f.name == ".env" or "secrets" in f.relative_to(ROOT).parts]
    for file in files:
        if file.suffix in (".yml", ".sh", ".toml", ".example") or file.parent.name == "docker":
            assert not WEAK.search(file.read_text()), file


def test_mlflow_is_told_whom_it_serves():
    script = (ROOT / "docker" / "mlflow-server").read_text()
    hosts = re.search(r'--allowed-hosts "([^"]*)"', script)[1]
    assert "*" not in hosts and "mlflow:5000" in hosts.split(",")
    assert "--app-name basic-auth" in script and "NO_PERMISSIONS" in script
    for forbidden in ("--disable-security-middleware", "--gunicorn-opts", "--waitress-opts"):
        assert forbidden not in script


def test_services_start_in_order():
    def waits(name):
        return {other: how["condition"] for other, how in SERVICES[name]["depends_on"].items()}

    assert waits("migrate") == waits("mlflow") == {"db": "service_healthy"}
    assert waits("ray-head") == {"migrate": "service_completed_successfully"}
    assert waits("ray-worker") == {"ray-head": "service_healthy"}


def test_one_variable_switches_to_gpus():
    assert SERVICES["ray-worker"]["runtime"] == "${CONTAINER_RUNTIME:-runc}"
