"""`ressmooth fetch`, `sync`, `db upgrade` and `doctor`."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers.commands import run
from helpers.nvml import Nvml

from ressmooth.cli import admin
from ressmooth.training.datasets import DEBIAN_FASHION_MNIST

pytestmark = pytest.mark.usefixtures("mlflow_is_unreachable")


def test_fetch_decodes_a_data_set_once(tmp_path):
    assert "1,437 training images" in run("fetch", "digits", home=tmp_path).output
    if DEBIAN_FASHION_MNIST.is_dir():
        assert "60,000 training images" in run("fetch", "fashion_mnist", home=tmp_path).output
        assert len(list(tmp_path.glob("data/fashion_mnist-*.pt"))) == 1


def test_sync_without_mlflow_names_its_address(home):
    result = run("sync", home=home)
    assert result.exit_code == 4 and "http://127.0.0.1:9" in result.stderr


def test_db_upgrade_reports_the_revision(home, tmp_path):
    assert "is already at 0005" in run("db", "upgrade", home=home).output
    assert "upgraded from nothing to 0005" in run("db", "upgrade", home=tmp_path / "new").output


def test_doctor_finds_what_is_missing(home, monkeypatch):
    result = run("doctor", home=home)
    assert result.exit_code == 1
    assert "BAD  MLflow" in result.output and "ok   database" in result.output
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    result = run("doctor", home=home)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("flags", "said"), [("avx2 avx512_bf16 fma", "is faster than"), ("avx2", "is slower than")]
)
def test_doctor_says_whether_bf16_is_fast_on_this_cpu(home, tmp_path, monkeypatch, flags, said):
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    monkeypatch.setattr(admin, "CPU_INFO", tmp_path / "cpuinfo")
    assert f'precision = "bf16" {said} fp32 here' in run("doctor", home=home).output


@pytest.fixture
def see_gpu(monkeypatch):
    """Let torch see a GPU of this compute capability."""

    def see(capability, parts=()):
        Nvml(1).install(monkeypatch).parts = parts
        properties = SimpleNamespace(total_memory=16 * 2**30)
        cuda = {
            "is_available": True,
            "device_count": 1,
            "get_device_name": "NVIDIA X",
            "get_device_capability": capability,
            "get_device_properties": properties,
            "get_arch_list": ["sm_75", "sm_80"],
        }
        for name, value in cuda.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)

    return see


def test_doctor_describes_gpus(home, see_gpu):
    see_gpu((8, 0), parts=("MIG-a", "MIG-b"))
    found = "ok   CUDA: NVIDIA X (16 GiB, compute capability 8.0), divided into 2 MIG instances; "
    assert f"{found}driver 580.95.05, CUDA {torch.version.cuda}" in run("doctor", home=home).output
    see_gpu((7, 5))
    assert "compute capability 7.5, without tf32 and bf16)" in run("doctor", home=home).output
    see_gpu((6, 1))
    said = run("doctor", home=home).output
    assert "BAD  CUDA: NVIDIA X has compute capability 6.1, but torch" in said
    assert "install a torch for an older CUDA" in said


def test_doctor_names_a_gpu_that_torch_cannot_see(home, see_gpu, monkeypatch):
    see_gpu((8, 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = run("doctor", home=home).output
    assert "BAD  CUDA: driver 580.95.05, but torch finds no GPU; is the driver new enough" in said


def test_doctor_finds_a_torch_that_cannot_be_loaded(home, tmp_path):
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libtorch_python.so").write_text("damaged")
    broken = "raise ImportError('libcudart.so.13: cannot open shared object file')"
    (tmp_path / "torch" / "__init__.py").write_text(broken)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "ressmooth.cli", "doctor", "--home", str(home)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "BAD  torch: cannot be loaded: libcudart.so.13: cannot open" in done.stdout
    assert done.returncode == 1 and "ok   database" in done.stdout


def test_doctor_finds_a_damaged_embedded_mlflow(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (tmp_path / "mlflow.db").write_bytes(b"not a database" * 100)
    assert "BAD  MLflow: MLflow at" in run("doctor", home=tmp_path).output
    (tmp_path / "mlflow.db").unlink()
    assert "ok   MLflow" in run("doctor", home=tmp_path).output


def test_doctor_counts_the_studies_of_an_embedded_mlflow(home, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert run("sync", home=home).exit_code == 0
    assert "mlflow.db, 1 studies" in run("doctor", home=home).output


def test_doctor_refuses_a_home_that_cannot_be_written():
    result = run("doctor", home="/proc/ressmooth")  # where even root creates nothing
    assert result.exit_code == 2
    assert "'/proc/ressmooth': cannot write to /proc" in result.stderr and "--home" in result.stderr
