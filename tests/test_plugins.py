"""Plug-ins: read without running them, run in isolation."""

import subprocess
import sys

import pytest
from helpers.plugins import ALL, OTHER, SOURCE, plugins, write

from ressmooth.config import RunConfig, parse
from ressmooth.errors import ConfigError
from ressmooth.plugins import Parameter, Plugins, find, load, read
from ressmooth.spec import differences, read_stored
from ressmooth.spec import load as load_study


def test_what_a_plugin_provides_is_read_from_its_source():
    found = {d.name: d for d in plugins().files[0].definitions}
    assert {name: d.kind for name, d in found.items()} == {v: k for k, v in ALL.items()}
    assert found["stripes"].given == ("root",)
    assert found["mlp"].parameters == {"width": Parameter("int", 16)}
    assert found["FocalLoss"].parameters == {"gamma": Parameter("float", 2.0)}
    assert found["sign_sgd"].given == ("parameters", "lr", "weight_decay")


def test_reading_a_plugin_runs_nothing_and_does_not_load_torch(tmp_path):
    source = SOURCE + f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n"
    file = write(tmp_path, source)
    code = (
        "import sys; from pathlib import Path; from ressmooth.plugins import find; "
        f"find([Path({str(file)!r})], []); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "head, decorator",
    [
        ("import ressmooth", "ressmooth.model"),
        ("import ressmooth as rs", "rs.model"),
        ("from ressmooth import model", "model"),
        ("from ressmooth import model as network", "network"),
    ],
)
def test_decorators_are_found_however_they_are_imported(head, decorator):
    source = f"{head}\n@{decorator}\ndef net(num_classes, in_channels): ...\n"
    assert [d.name for d in read(source, "x.py").definitions] == ["net"]
    assert list(load("x.py", source)) == [("model", "net")]


@pytest.mark.parametrize(
    "definition, message",
    [
        ("def f(num_classes, size): ...", "x.py:3: model f: parameter 'size' needs a type"),
        ("def f(size: list): ...", "parameter 'size' needs a type"),
        ("def f(size: int = 'a'): ...", "parameter 'size' needs a type"),
        ("def f(size=print()): ...", "parameter 'size' needs a type"),
        ("def f(size={[]}): ...", "parameter 'size' needs a type"),
        ("def f(*sizes): ...", "no \\*args"),
        (
            "def f(\n    num_classes,\n    alpha: float = 1.0): ...",
            "x.py:5: .*'alpha' is a setting",
        ),
    ],
)
def test_a_signature_that_does_not_fit_is_named_with_its_line(definition, message):
    source = f"import ressmooth\n@ressmooth.model\n{definition}\n"
    with pytest.raises(ConfigError, match=message):
        read(source, "x.py", RunConfig.model_fields)


@pytest.mark.parametrize(
    "source, message",
    [
        ("def f(:\n", "x.py:1: "),
        ("import ressmooth\n", "provides nothing; decorate .* @ressmooth.dataset"),
        (SOURCE.replace("mlp", "a\0b"), "x.py:"),
    ],
)
def test_a_file_that_is_no_plugin_is_refused(source, message):
    with pytest.raises(ConfigError, match=message):
        read(source, "x.py")


def test_plugins_come_from_options_and_from_the_environment(tmp_path, monkeypatch):
    file = write(tmp_path)
    other = tmp_path / "other.py"
    other.write_text("import ressmooth\n@ressmooth.model\ndef net(num_classes, in_channels): ...\n")
    monkeypatch.setenv("RESSMOOTH_PLUGINS", str(other))
    assert find([file], []).names("model") == ["mlp", "net"]
    assert find([file, other], []).names("model") == ["mlp", "net"]  # the same file counts once
    with pytest.raises(ConfigError, match="--plugin .*gone.py: No such file"):
        find([tmp_path / "gone.py"], [])
    monkeypatch.setenv("RESSMOOTH_PLUGINS", str(tmp_path / "gone.py"))
    with pytest.raises(ConfigError, match="RESSMOOTH_PLUGINS .*gone.py: No such file"):
        find([], [])
    with pytest.raises(ConfigError, match="study.toml: a plug-in is a Python file"):
        find([tmp_path / "study.toml"], [])


def test_plugins_of_an_installed_package_are_found(tmp_path, monkeypatch):
    write(tmp_path).rename(tmp_path / "installed_plugin.py")
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ressmooth.plugins]\ntheirs = installed_plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find([], []).names("method") == ["FocalLoss"]


def test_two_plugins_must_not_provide_the_same_name(tmp_path):
    file = write(tmp_path)
    copy = tmp_path / "copy.py"
    copy.write_text(SOURCE)
    with pytest.raises(ConfigError, match="copy.py: dataset 'stripes' is given twice"):
        find([file, copy], [])


@pytest.mark.parametrize("statement", ["raise ValueError('no')", "exit(3)", "import not_there"])
def test_a_plugin_that_cannot_be_run_is_an_error_with_its_name(statement):
    with pytest.raises(ConfigError, match="mine.py: cannot be loaded: "):
        load("mine.py", f"{SOURCE}\n{statement}\n")


@pytest.mark.parametrize(
    "statement, passed, raised",
    [
        ("raise ValueError('no')", True, True),
        ("exit(3)", True, True),
        ("given()", True, False),  # as a signal that ends a worker while a plug-in computes
        ("pass", False, False),
    ],
)
def test_the_line_of_a_plugin_that_an_error_passed_is_found(statement, passed, raised):
    head = "import ressmooth\n@ressmooth.method\ndef M():\n"
    theirs = plugins(f"{head}    def run(given):\n        {statement}\n    return run\n")

    def end():
        raise SystemExit(1)

    with pytest.raises(BaseException) as error:
        theirs.call("method", "M", {})(end)
        end()
    assert theirs.place(error.value) == ("mine.py:5" if passed else "")
    assert theirs.place(error.value, innermost=True) == ("mine.py:5" if raised else "")


# the settings of a run


def test_a_config_takes_names_and_settings_of_plugins():
    config = parse({**ALL, "gamma": 3, "width": 8}, plugins())
    assert config.plugin_settings == {"count": 60, "width": 8, "gamma": 3.0, "beta": 0.9}
    assert parse(config.model_dump(), plugins()) == config
    assert (config.epochs, config.lr) == (50, 1e-3)


def test_settings_of_plugins_that_a_run_does_not_use_are_left_out():
    config = parse({"method": "mse", "gamma": 3.0}, plugins())
    assert config.plugin_settings == {}
    assert "plugin_settings" not in config.model_dump()


@pytest.mark.parametrize(
    "values, message",
    [
        ({"method": "FocalLos"}, "did you mean 'FocalLoss'"),
        ({"method": "FocalLoss", "gamma": "much"}, "gamma of FocalLoss: input should be a valid f"),
        ({"method": "FocalLoss", "gamma": float("nan")}, "gamma of FocalLoss"),
        ({"model": "mlp", "width": 2.5}, "width of mlp: input should be a valid int"),
        ({"model": "mlp", "width": True}, "width of mlp: input should be a valid int"),
        ({"model": "mlp", "depth": 3}, "unknown setting 'depth'"),
    ],
)
def test_wrong_names_and_values_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        parse(values, plugins())


def test_without_the_plugin_its_names_are_unknown_and_the_message_says_how_to_add_it():
    with pytest.raises(ConfigError, match="'FocalLoss'.*--plugin FILE adds your own"):
        parse({"method": "FocalLoss"})


def test_a_parameter_without_a_default_must_be_set():
    source = "import ressmooth\n@ressmooth.method\nclass M:\n    def __init__(self, k: int): ...\n"
    with pytest.raises(ConfigError, match="k of M: missing"):
        parse({"method": "M"}, plugins(source))
    assert parse({"method": "M", "k": 2}, plugins(source)).plugin_settings == {"k": 2}


# the plug-ins of a study

STUDY = """
name = "mine"
dropout = 0.5
[arms.plain]
method = "mse"
[arms.focal]
method = "FocalLoss"
"""


def study(folder, text=STUDY, mine=SOURCE, other=OTHER):
    (folder / "mine.toml").write_text(text)
    taken = RunConfig.model_fields
    given = Plugins((read(mine, "mine.py", taken), read(other, "other.py", taken)))
    return load_study(str(folder / "mine.toml"), plugins=given)


def names(spec):
    return [plugin.file for plugin in spec.plugins.files]


def test_only_plugins_that_a_study_uses_are_recorded(tmp_path):
    assert names(study(tmp_path, STUDY.replace("dropout = 0.5", ""))) == ["mine.py"]
    with_a_setting = study(tmp_path)  # which all arms with `linear` would use
    assert names(with_a_setting) == ["mine.py", "other.py"]
    assert read_stored(with_a_setting.to_dict()).settings == {"dropout": 0.5}


def test_a_plugin_may_change_unless_recorded_arms_use_it(tmp_path):
    text = STUDY.replace("dropout = 0.5", "")
    stored = study(tmp_path, text).to_dict()
    assert differences(stored, study(tmp_path, text, other=OTHER + "#")) == []
    more = f"{text}[arms.linear]\nmethod = 'mse'\nmodel = 'linear'\n"
    assert differences(stored, study(tmp_path, more)) == []
    (line,) = differences(stored, study(tmp_path, text, mine=SOURCE + "#"))
    assert line.startswith("plugin mine.py was ")
