"""Studies that extend others, and the text that is stored of a study."""

import pytest
from click.testing import CliRunner
from helpers.study_files import OVERRIDES, RICH, errors_of, load, text

from ressmooth import spec
from ressmooth.errors import ConfigError
from ressmooth.spec.schema import Range
from ressmooth.study import main

BASE = """\
name = "base"
description = "the base"
dataset = "digits"
epochs = 12
seeds = 3
[search]
sampler = "tpe"
trials = 20
[grid]
fraction = [1.0, 0.5]
batch_size = [32, 64]
[arms.sgd]
method = "mse"
lr = 0.05
[arms.smooth]
b = { low = 0.05, high = 2, log = true }
mu = 0.5
[resources]
workers = 2
"""
CHILD = """\
extends = "base.toml"
name = "child"
epochs = 5
seeds = 1
[search]
trials = 8
[grid]
fraction = [0.25]
layers = [1, 2]
[arms.smooth]
b = { low = 1, high = 3 }
[arms.adam]
optimizer = "adam"
[resources]
retries = 1
"""


def extended(folder, base, child, overrides=()):
    (folder / "base.toml").write_text(base)
    return load(folder, child, overrides)


def refusal(folder, *files):
    """Return the errors of the last of some files, each of which can extend the others."""
    for name, content in files:
        (folder / name).write_text(content)
    with pytest.raises(ConfigError) as error:
        spec.load(str(folder / files[-1][0]))
    return str(error.value).replace(f"{folder}/", "").splitlines()


def test_a_study_extends_another_table_by_table_and_arm_by_arm(tmp_path):
    study = extended(tmp_path, BASE, CHILD)
    assert (study.name, study.description, study.seeds) == ("child", "the base", 1)
    assert study.settings == {"dataset": "digits", "epochs": 5}
    assert study.search == spec.Search(sampler="tpe", trials=8)
    assert study.grid == {"fraction": [0.25], "batch_size": [32, 64], "layers": [1, 2]}
    assert list(study.arms) == ["sgd", "smooth", "adam"]
    assert study.arms["sgd"].fixed == {"method": "mse", "lr": 0.05}
    assert study.arms["smooth"].fixed == {"mu": 0.5}
    assert study.arms["smooth"].space == {"b": Range(low=1.0, high=3.0)}  # no log: one value
    assert study.arms["adam"].fixed == {"optimizer": "adam"}
    assert study.resources == spec.Resources(workers=2, retries=1)


def test_a_name_is_not_inherited(tmp_path):
    with pytest.raises(ConfigError, match=r"x\.toml: name: missing$"):
        extended(tmp_path, BASE, 'extends = "base.toml"')


def test_a_study_extends_a_file_beside_it_or_a_bundled_study(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    assert extended(tmp_path, BASE, CHILD).settings["epochs"] == 5
    bundled = load(tmp_path, 'extends = "quickstart"\nname = "mine"')
    assert bundled.arms == spec.load("quickstart").arms
    (tmp_path / "quickstart").write_text(BASE)
    beside = load(tmp_path, 'extends = "quickstart"\nname = "mine"')
    assert list(beside.arms) == ["sgd", "smooth"]


def test_an_error_names_the_file_or_option_it_comes_from(tmp_path):
    base = BASE.replace("epochs = 12", "epochs = 0\nlr = -1").replace("trials = 20", "trials = 0")
    child = 'extends = "base.toml"\nname = "s"\nmomentum = 2\nlr = -2\n[search]\nseed = -1\n'
    rule = "input should be greater than or equal to"
    lines = refusal(tmp_path, ("base.toml", base), ("x.toml", child + "[arms.sgd]\nmu = 2"))
    assert lines == [
        f"base.toml:4: epochs = 0: {rule} 1",
        f"x.toml:4: lr = -2: {rule} 0.000001",
        f"base.toml:9: search.trials = 0: {rule} 1",
        f"x.toml:6: search.seed = -1: {rule} 0",
        "x.toml:8: arms.sgd.mu = 2: input should be less than or equal to 1",
        "x.toml:3: momentum = 2: input should be less than 1",
    ]
    with pytest.raises(ConfigError) as error:
        spec.load(str(tmp_path / "x.toml"), ["epochs=-1", "search.trials=2"])
    assert f"--set: epochs = -1: {rule} 1" in str(error.value)
    assert "search.trials" not in str(error.value)


def test_an_error_of_a_chain_names_the_file_it_comes_from(tmp_path):
    base = 'name = "base"\nepochs = 0\nlr = -1\n[arms.a]\nb = -1\nmu = 2\n'
    middle = 'extends = "base.toml"\nname = "middle"\n[search]\ntrials = 0'
    top = 'extends = "middle.toml"\nname = "top"\nlr = -2\n[arms.a]\nb = -2\n[arms.new]\nmu = 3'
    files = [("base.toml", base), ("middle.toml", middle), ("top.toml", top)]
    assert [line.partition(": input")[0] for line in refusal(tmp_path, *files)] == [
        "base.toml:2: epochs = 0",
        "top.toml:3: lr = -2",
        "top.toml:5: arms.a.b = -2",
        "base.toml:6: arms.a.mu = 2",
        "top.toml:7: arms.new.mu = 3",
        "middle.toml:4: search.trials = 0",
    ]
    with pytest.raises(ConfigError, match=r"--set: arms\.a\.mu = 4: "):
        spec.load(str(tmp_path / "top.toml"), ["arms.a={ mu = 4 }"])


def test_a_chain_has_at_most_ten_files_and_no_cycle(tmp_path):
    chain = [("1.toml", 'name = "s"\n[arms.a]\nlr = 0.5\n')]
    chain += [(f"{n}.toml", f'extends = "{n - 1}.toml"\nname = "s"') for n in range(2, 12)]
    rule = "at most 10 files, without a cycle"
    assert refusal(tmp_path, *chain) == [f"2.toml:1: extends = '1.toml': {rule}"]
    assert spec.load(str(tmp_path / "10.toml")).arms["a"].fixed == {"lr": 0.5}
    loop = [("x.toml", 'extends = "y.toml"'), ("y.toml", 'extends = "x.toml"')]
    assert refusal(tmp_path, *loop) == [f"x.toml:1: extends = 'y.toml': {rule}"]
    done = CliRunner().invoke(
        main, [str(tmp_path / "x.toml"), "--home", str(tmp_path / "home"), "--dry-run"]
    )
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{rule}\n") and not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("5", "extends = 5: input should be a path or a bundled study"),
        ("['quickstart']", "extends = ['quickstart']: input should be a path or a bundled study"),
        ("'quickstrat'", "extends = 'quickstrat': neither a file nor a bundled study (did you me"),
        (f"'{'x' * 5000}'", f"extends = '{'x' * 76}...: neither a file nor a bundled study"),
        ('"a\\u0000"', r"extends = 'a\x00': neither a file nor a bundled study"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_only_an_existing_file_or_bundled_study_can_be_extended(tmp_path, value, error):
    (line,) = errors_of(tmp_path, f"extends = {value}\n{text()}")
    assert line.startswith(error)


def test_an_unreadable_base_is_named(tmp_path):
    assert refusal(tmp_path, ("base.toml", "seeds = 1\nseeds = 2"), ("x.toml", CHILD)) == [
        "base.toml:2: 'seeds = 2': cannot overwrite a value (is this key given twice?)"
    ]


@pytest.mark.parametrize("dataset, epochs", [("cifar10", 160), ("cifar100", 160), ("svhn", 100)])
@pytest.mark.parametrize("model", ["resnet56", "densenet_bc_100_12"])
def test_the_studies_of_table_3_differ_in_their_problem_only(model, dataset, epochs):
    first = spec.load("paper-table3-resnet56-cifar10")
    name = f"paper-table3-{model.partition('_')[0]}-{dataset}"
    study = spec.load(name)
    common = {"selection": "paper", "cutoff": 1e-3}
    assert study.settings == {"dataset": dataset, "model": model, **common}
    problem = {"name": name, "description": study.description, "settings": study.settings}
    assert study.to_dict() == {**first.to_dict(), **problem}
    assert {branch.example().epochs for branch in study.branches} == {epochs}
    assert len(study.branches) * study.seeds == 40


def test_the_text_of_an_unchanged_study_is_its_file(tmp_path):
    content = f"# a comment\n{RICH}"
    assert load(tmp_path, content).text == content


@pytest.mark.parametrize("overrides", [[], OVERRIDES], ids=["as written", "--set"])
@pytest.mark.parametrize("extends", [False, True], ids=["one file", "extends"])
def test_the_text_of_a_study_gives_the_same_study_again(tmp_path, extends, overrides):
    child = 'extends = "base.toml"\nname = "child"\nepochs = 5\n[arms.smooth]\nalpha = 2\n'
    study = extended(tmp_path, RICH, child if extends else RICH, overrides)
    alone = tmp_path / "alone"
    alone.mkdir()
    again = load(alone, study.text)
    assert again == study
    assert [branch.key for branch in again.branches] == [branch.key for branch in study.branches]
    assert ("x.toml with what it extends and every --set" in study.text) == (study.text != RICH)


def test_the_text_of_an_extended_study_never_needs_the_base(tmp_path):
    study = extended(tmp_path, 'name = "base"', f'extends = "base.toml"\n{RICH}')
    (tmp_path / "base.toml").unlink()
    assert load(tmp_path, study.text) == study
