"""`--dry-run --time`: a few measured steps tell how long a study trains."""

import re
import subprocess
import sys

import pytest
from helpers import specs
from helpers.launch import invoke

from ressmooth.config import parse
from ressmooth.engines import timing
from ressmooth.engines.catalogue import planned_runs
from ressmooth.errors import DataError

ARMS = {
    "sgd": {"method": "mse", "weight_decay": {"grid": [1e-3, 1e-4]}},
    "deep": {"layers": {"grid": [1, 3]}, "b": {"low": 0.1, "high": 1.0}},
}
SEARCH = {"sampler": "random", "trials": 3}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("RESSMOOTH_DATABASE_URL", "RESSMOOTH_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_each_kind_of_run_is_measured_once_and_summed_over_runs(tmp_path, monkeypatch):
    """Training an epoch takes 2 s here, evaluating it 1 s, and three layers ten times as long."""
    spec = specs.study(ARMS, search=SEARCH, seeds=2, epochs=20, eval_every=5)
    asked = []

    def call(work, configs, plugins, home, uses_gpu, tick):
        asked.extend(configs)
        return [(20.0, 10.0) if config["layers"] == 3 else (2.0, 1.0) for config in configs]

    monkeypatch.setattr(timing, "call_in_child", call)
    seconds = timing.measured_seconds(spec, tmp_path)
    assert [(config["method"], config["layers"]) for config in asked] == [
        ("mse", 1),
        ("smoothing", 1),
        ("smoothing", 3),
    ]
    run = 20 * 2.0 + 5 * 1.0  # evaluated after epochs 5, 10, 15, 19 and 20
    # two cells share three trials
    assert seconds == pytest.approx((2 * 2 + 2 * 2 + 1 * 2 * 10) * run)


@pytest.mark.parametrize("setting, value", [("dataset", "synthetic"), ("batch_size", 64)])
def test_what_changes_the_time_is_measured_apart(setting, value):
    (config, _), *_ = planned_runs(specs.study({"sgd": {"method": "mse"}}))
    other = parse({**config.model_dump(), setting: value})
    assert timing._cost(config) != timing._cost(other)
    assert timing._cost(config) == timing._cost(parse({**config.model_dump(), "lr": 0.5}))


def test_a_study_is_measured_and_nothing_is_created(study, tmp_path):
    home = tmp_path / "home"
    done = invoke(study, home, "--dry-run", "--time", "--workers", "2")
    assert done.exit_code == 0, done.output
    assert re.search(r"About \d+ s of training, from a few steps measured on this", done.stdout)
    assert not home.exists()


def test_the_dry_run_itself_loads_no_torch(study, tmp_path):
    code = (
        "import sys; from click.testing import CliRunner; from ressmooth.study import main\n"
        "if __name__ == '__main__':\n"
        f"    done = CliRunner().invoke(main, {[str(study), '--dry-run', '--time']})\n"
        "    print(done.exit_code, 'torch' in sys.modules)\n"
    )
    (tmp_path / "dry.py").write_text(code)
    run = [sys.executable, str(tmp_path / "dry.py")]
    assert subprocess.run(run, capture_output=True, text=True).stdout == "0 False\n"


def test_data_that_is_not_here_is_named_with_the_command_that_fetches_it(study, tmp_path):
    home = tmp_path / "a home"
    done = invoke(study, home, "--dry-run", "--time", "--set", "dataset=cifar10")
    assert done.exit_code == 2
    assert f"cifar10 is not here yet; to download it: ressmooth fetch cifar10 --home '{home}'" in (
        done.stderr
    )
    assert not home.exists()
    with pytest.raises(DataError, match="cifar10 is not here"):
        timing.measure([parse({"dataset": "cifar10"}).model_dump()], [], home, False)


def test_time_needs_dry_run_and_a_dry_run_without_history_suggests_it(study, tmp_path):
    home = tmp_path / "home"
    options = ["--workers", "3", "--set", "seeds=1"]
    suggested = f"ressmooth study {study} --workers 3 --set seeds=1 --dry-run --time --home {home}"
    refused = invoke(study, home, *options, "--time")
    assert refused.exit_code == 2
    assert refused.stderr == f"error: --time: only with --dry-run; run: {suggested}\n"
    plan = invoke(study, home, *options, "--dry-run")
    assert f"no similar run is recorded. Measure it: {suggested}\n" in plan.stdout
    assert not home.exists()
