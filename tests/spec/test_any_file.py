"""Every file is either a study or a ConfigError whose lines can be printed."""

import json
import math
import re

from click.testing import CliRunner
from helpers.study_files import RICH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ressmooth import spec
from ressmooth.config import RunConfig
from ressmooth.errors import ConfigError
from ressmooth.spec import read_stored
from ressmooth.study import main

ANY = settings(
    max_examples=700,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
KEYS = [*RunConfig.model_fields, *"name description seeds search grid arms resources".split()]
KEYS += "low high log step choices sampler pruner trials hours workers gpus_per_run a".split()
KEYS += ["enqueue", "warm_start"]
scalars = (
    st.sampled_from(["digits", "mse", "laplace", "tpe", "grid", "asha", "s", "a.b", "", "\n"])
    | st.sampled_from([0, 1, 2, 10, -1, 0.5, 1e-3, 1e308, 5e-324, math.inf, math.nan, 10**17])
    | st.booleans()
    | st.integers(-5, 2**64)
    | st.floats()
    | st.text(max_size=5)
)
keys = st.sampled_from(KEYS) | st.text(max_size=4)


def trees(children):
    return st.lists(children, max_size=4) | st.dictionaries(keys, children, max_size=4)


values = st.recursive(scalars, trees, max_leaves=12)
lists = st.lists(scalars, max_size=4)
ranges = st.fixed_dictionaries(
    {"low": scalars, "high": scalars}, optional={"log": st.booleans(), "step": scalars}
)
several = (
    ranges | st.fixed_dictionaries({"grid": lists}) | st.fixed_dictionaries({"choices": lists})
)
settings_of_runs = st.sampled_from(list(RunConfig.model_fields))
points = st.lists(st.dictionaries(settings_of_runs, scalars, max_size=2), max_size=3)
arms = st.dictionaries(
    settings_of_runs | st.just("enqueue"), scalars | several | points, max_size=3
)
searches = st.fixed_dictionaries(
    {}, optional={"sampler": st.sampled_from(["grid", "random", "tpe"]), "trials": scalars}
)


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quote(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, str):
        return quote(value)
    return str(value).lower()


def quote(value):
    return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'


def attempt(path, content):
    path.write_bytes(content)
    home = path.parent / "home"
    done = CliRunner().invoke(main, [str(path), "--home", str(home), "--dry-run"])
    assert list(path.parent.iterdir()) == [path], "something was created"
    try:
        study = spec.load(str(path))
    except ConfigError as error:
        lines = str(error).split("\n")
        assert all(re.match(rf"{path}(:\d+)?: ", line) and line.isprintable() for line in lines)
        assert done.exit_code == 2 and done.stdout == ""
        assert done.stderr == "".join(f"error: {line}\n" for line in lines)
        return
    assert done.exit_code == 0 or done.stderr.startswith("error: "), done.exception
    assert read_stored(json.loads(json.dumps(study.to_dict(), allow_nan=False))) == study
    assert len({branch.key for branch in study.branches}) == len(study.branches) > 0


@ANY
@given(
    st.lists(
        st.tuples(
            st.sampled_from(range(RICH.count("\n"))),
            st.sampled_from(["value", "item", "drop", "double", "junk", "move"]),
            values,
            st.text(max_size=6),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_mutated_studies_load_or_are_refused(tmp_path, mutations):
    lines = RICH.splitlines()
    for at, kind, value, junk in mutations:
        at %= len(lines)
        key, _, old = lines[at].partition(" = ")
        if kind == "value":
            lines[at] = f"{key} = {toml(value)}"
        elif kind == "item":
            lines[at] = f"{key} = {old.replace('[', '[' + toml(value) + ', ')}"
        elif kind == "drop":
            lines[at : at + 1] = [""]
        elif kind == "double":
            lines.insert(at, lines[at])
        elif kind == "junk":
            lines[at] += junk
        else:
            lines.append(lines.pop(at))
    attempt(tmp_path / "x.toml", "\n".join(lines).encode())


@ANY
@given(
    st.just({}) | st.dictionaries(keys, values, max_size=6) | arms, arms | values, searches | values
)
def test_random_trees_load_or_are_refused(tmp_path, top, arm, search):
    tree = {"name": "s", "arms": {"a": arm}, "search": search, **top}
    content = "\n".join(f"{quote(k)} = {toml(v)}" for k, v in tree.items())
    attempt(tmp_path / "x.toml", content.encode())


@ANY
@given(st.binary(max_size=60), st.integers(0, len(RICH)), st.integers(0, 60))
def test_random_bytes_load_or_are_refused(tmp_path, junk, at, length):
    attempt(tmp_path / "x.toml", junk)
    content = RICH.encode()
    attempt(tmp_path / "x.toml", content[:at] + junk + content[at + length :])
