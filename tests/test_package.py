"""The wheel: installed into an empty environment, used from outside the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from helpers.launch import query

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the wheel, and with our dependencies but not ressmooth."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("ressmooth", "studies"):
        shutil.copytree(ROOT / name, source / name, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(directory), str(source)]
    subprocess.run(build, check=True)
    venv.create(directory / "environment", with_pip=False)
    python = directory / "environment" / "bin" / "python"
    (wheel,) = directory.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(directory / "environment")})
    # a path in a .pth file adds its packages, but not the editable install of this checkout
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.mark.slow
def test_an_installed_wheel_runs_a_bundled_study(python, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [str(python), "-m", "ressmooth.study", "quickstart", "--home", str(tmp_path / "home")]
    done = subprocess.run(
        [*command, "--set", "epochs=1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert query(tmp_path / "home", "SELECT state, count(*) FROM run GROUP BY 1") == [
        ("complete", 12)
    ]
    found = [str(python), "-c", "import ressmooth; print(ressmooth.__file__)"]
    assert next(python.parents[1].rglob("ressmooth/studies/study.schema.json")).is_file()
    place = subprocess.run(found, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert place.stdout.startswith(str(python.parents[1]))
