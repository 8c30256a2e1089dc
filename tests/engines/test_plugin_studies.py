"""Studies of plug-ins only keep every promise: resume, both engines, rerun, errors before rows."""

import os
import sys
from subprocess import run

import pytest
from helpers.launch import CURVES, RESULTS, epochs_recorded, invoke, query
from helpers.plugins import OTHER, SOURCE, write

STUDY = """
name = "mine"
dataset = "stripes"
model = "mlp"
optimizer = "sign_sgd"
epochs = 30
batch_size = 8
lr = 0.02
seeds = 2
[arms.plain]
method = "cross_entropy"
beta = { grid = [0.5, 0.9] }
[arms.focal]
method = "FocalLoss"
gamma = { grid = [1.0, 3.0] }
"""
slow = pytest.mark.slow


@pytest.fixture
def files(tmp_path):
    """A study file and its plug-in, in a directory of their own."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "mine.toml").write_text(STUDY)
    return folder / "mine.toml", write(folder)


@pytest.fixture(scope="module")
def undisturbed_plugins(local_engine, tmp_path_factory):
    """The study by worker processes, undisturbed: its home and its files."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "mine.toml").write_text(STUDY)
    options = ["--plugin", str(write(folder)), "--workers", "2"]
    done = local_engine.launch(folder / "mine.toml", folder / "home", *options)
    assert done.returncode == 0, done.stderr
    return folder / "home"


def test_a_study_of_plugins_is_recorded_with_their_source(undisturbed_plugins):
    home = undisturbed_plugins
    assert query(home, "SELECT state, count(*) FROM run GROUP BY state") == [("complete", 8)]
    ((recorded,),) = query(home, "SELECT json_extract(spec, '$.plugins[0].source') FROM study")
    assert recorded == SOURCE
    assert query(home, "SELECT count(DISTINCT data_sha256) FROM run") == [(1,)]


def test_a_recorded_run_of_plugins_is_identical_when_it_is_trained_again(undisturbed_plugins):
    command = [sys.executable, "-m", "ressmooth.cli", "rerun", "3", "--home", undisturbed_plugins]
    done = run(command, capture_output=True, text=True)
    assert done.stdout == "run 3: identical in every epoch and in the weights\n", done.stderr


def test_a_changed_plugin_is_another_study(undisturbed_plugins, files):
    study, plugin = files
    plugin.write_text(SOURCE + "\n# changed\n")
    said = invoke(study, undisturbed_plugins, "--plugin", str(plugin), "--dry-run")
    assert said.exit_code == 2 and "plugin mine.py was" in said.stderr


def test_a_launch_by_name_uses_the_recorded_plugins_whatever_others_there_are(
    undisturbed_plugins, tmp_path, monkeypatch
):
    other = write(tmp_path, OTHER).rename(tmp_path / "other.py")
    monkeypatch.setenv("RESSMOOTH_PLUGINS", str(other))
    said = invoke("mine", undisturbed_plugins, "--dry-run")
    assert said.exit_code == 0 and "focal" in said.stdout, said.output


@slow
def test_both_engines_give_the_same_rows(ray_engine, files, tmp_path, undisturbed_plugins):
    study, plugin = files
    done = ray_engine.launch(study, tmp_path / "home", "--plugin", str(plugin), "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert query(tmp_path / "home", RESULTS) == query(undisturbed_plugins, RESULTS)
    assert query(tmp_path / "home", CURVES) == query(undisturbed_plugins, CURVES)


@slow
def test_a_killed_study_resumes_bit_for_bit_without_the_file_of_its_plugin(
    engine, files, tmp_path, undisturbed_plugins
):
    study, plugin = files
    home = tmp_path / "home"
    for at_least in (5, 60):
        launcher = engine.start(study, home, "--plugin", str(plugin), "--workers", "2", "--quiet")
        epochs_recorded(home, at_least)
        launcher.kill()
        launcher.wait()
    plugin.unlink()
    study.unlink()
    done = engine.launch("mine", home, "--workers", "2")  # by its recorded name
    assert done.returncode == 0, done.stderr
    assert query(home, RESULTS) == query(undisturbed_plugins, RESULTS)
    assert query(home, CURVES) == query(undisturbed_plugins, CURVES)


@slow
@pytest.mark.parametrize(
    "statement, reason",
    [
        ("raise ValueError('mine')", "ValueError: mine"),
        ("exit(3)", "SystemExit: 3"),
        ("print('x' * 10_000)", None),
    ],
)
def test_a_plugin_that_misbehaves_while_training_costs_its_runs_alone(
    local_engine, files, tmp_path, statement, reason
):
    study, plugin = files
    branch = f"        if self.gamma > 2 and progress > 0.6: {statement}\n"
    forward = "    def forward(self, logits, target, progress):\n"
    plugin.write_text(SOURCE.replace(forward, forward + branch))
    done = local_engine.launch(study, tmp_path / "h", "--plugin", str(plugin), "--set", "epochs=4")
    assert done.returncode == 0, done.stderr
    states = dict(query(tmp_path / "h", "SELECT state, count(*) FROM run GROUP BY state"))
    assert states == ({"complete": 8} if reason is None else {"complete": 6, "failed": 2})
    for (error,) in query(tmp_path / "h", "SELECT error FROM run WHERE state = 'failed'"):
        assert reason in error


@pytest.mark.parametrize(
    "before, after, message",
    [
        ("import ressmooth\n", "import ressmooth\nimport not_there\n", "cannot be loaded: Module"),
        ("nn.Linear(width, num_classes)", "nn.Linear(width, 5)", "model 'mlp' should return"),
        ("return torch.optim.SGD(", "return torch.optim.NONE(", "mine.py:44: cannot build a run"),
        ("    return nn.Sequential(", "    import os; os._exit(3)\n    (", "with exit code 3."),
    ],
)
def test_what_cannot_be_built_is_exit_2_and_nothing_is_created(
    local_engine, files, tmp_path, before, after, message
):
    study, plugin = files
    assert before in SOURCE
    plugin.write_text(SOURCE.replace(before, after, 1))
    done = local_engine.launch(study, tmp_path / "home", "--plugin", str(plugin))
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "home").exists()


def test_a_study_file_alone_runs_no_code(files, tmp_path):
    study, plugin = files
    plugin.write_text(SOURCE + f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    said = invoke(study, tmp_path / "home")
    assert said.exit_code == 2 and "--plugin FILE adds your own" in said.stderr
    assert os.listdir(tmp_path) == ["files"]
