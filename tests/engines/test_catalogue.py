import subprocess
import sys

import pytest
from click.testing import CliRunner
from helpers import specs

from ressmooth.cli import main
from ressmooth.engines.catalogue import planned_runs
from ressmooth.spec import bundled, load


def test_runs_are_counted_over_branches_trials_seeds_and_confirmations():
    arms = {"sgd": {"method": "mse"}, "b": {"b": {"low": 0.1, "high": 1.0}, "epochs": 5}}
    search = {"sampler": "random", "trials": 7}
    spec = specs.study(arms, search=search, seeds=2, confirm=4)
    assert [(config.epochs, number) for config, number in planned_runs(spec)] == [
        (3, 2),
        (5, 14),
        (3, 4),
        (5, 4),
    ]


def test_list_shows_every_bundled_study_in_80_columns():
    shown = CliRunner().invoke(main, ["study", "--list"])
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in lines if not line.startswith(" ")}
    assert set(bundled()) < rows.keys()
    assert rows["quickstart"] == ["12", "144"] and rows["search-cifar10"] == ["240", "38,400"]
    text = " ".join(shown.output.split())
    assert all(load(name).description in text for name in bundled())


@pytest.mark.parametrize("module", ["ressmooth.study", "ressmooth.cli"])
def test_list_loads_no_heavy_package(module):
    words = ["--list"] if module == "ressmooth.study" else ["study", "--list"]
    code = (
        f"import sys; from click.testing import CliRunner; from {module} import main\n"
        f"assert CliRunner().invoke(main, {words}).exit_code == 0\n"
        "print([m for m in ('torch', 'mlflow', 'optuna', 'ray', 'sqlalchemy') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output.strip() == "[]"
