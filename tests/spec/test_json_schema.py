"""The JSON Schema of study files accepts what the reader accepts, where a schema can tell."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.study_files import RICH, text
from jsonschema import Draft202012Validator

from ressmooth.cli import main
from ressmooth.config import RunConfig
from ressmooth.spec.json_schema import study_schema

STUDIES = Path(__file__).parents[2] / "studies"
COPY = STUDIES / "study.schema.json"
SAMPLED = "sampler = 'tpe'\ntrials = 6"
PLUGIN = """\
import ressmooth

@ressmooth.method
def focal(gamma: float = 2.0, deep: bool = False, name: str = "x", rounds: int = 1): ...
"""


def is_valid(content, schema=None):
    validator = Draft202012Validator(schema or study_schema())
    return validator.is_valid(tomllib.loads(content))


def printed(*options):
    done = CliRunner().invoke(main, ["schema", *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_copy_beside_the_studies_is_up_to_date():
    command = "python -m ressmooth.cli schema > studies/study.schema.json"
    assert COPY.read_text() == printed(), f"stale; run: {command}"


def test_it_is_a_schema():
    Draft202012Validator.check_schema(study_schema())
    assert study_schema()["$schema"].endswith("2020-12/schema")


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_bundled_studies_name_the_schema_and_are_valid(path):
    assert path.read_text().startswith("#:schema ./study.schema.json\n")
    assert is_valid(path.read_text(), json.loads(COPY.read_text()))


def test_every_setting_has_a_meaning_and_references_lead_somewhere():
    schema = study_schema()
    for name in RunConfig.model_fields.keys() - {"seed", "plugin_settings"}:
        assert schema["properties"][name]["description"], name
    for reference in set(_references(schema)):
        node = schema
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def _references(node):
    if isinstance(node, dict):
        yield from [node["$ref"]] if "$ref" in node else []
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


RIGHT = [
    RICH,
    text(),
    'extends = "quickstart"\nname = "x"',
    text(top='dataset = "images:./cats"\nmodel = "timm:vit_tiny"\nmetric = "nll"'),
    text(top="b = { low = 1, high = 2 }\nenqueue = [{ b = 1 }]", search=SAMPLED),
    text(top='distribution = { choices = ["laplace"] }', search=SAMPLED),
    text(search=SAMPLED + "\nwarm_start = 'old'", arm="b = { low = 1, high = 2, log = true }"),
    text(arm="layers = { low = 1, high = 5, step = 2 }\nenqueue = [{ layers = 3 }]"),
    text(resources='gpus_per_run = "auto"'),
    text(resources="gpus_per_run = 0"),
    text(top="seeds = { race = true, at_least = 3, at_most = 8 }"),
    text(grid="fraction = [0.5, 1]", arm="model = { grid = ['small'] }"),
]
WRONG = [
    "",
    'name = "x"',
    text(name='name = "A/b"'),
    text(name="name = 5"),
    text(top="epoch = 3"),
    text(top="seed = 3"),
    text(top="epochs = 0"),
    text(top="epochs = 1.5"),
    text(top="seeds = 0"),
    text(top="seeds = {}"),
    text(top="seeds = { race = false }"),
    text(top="seeds = { race = true, at_least = 1 }"),
    text(top="seeds = { race = true, most = 9 }"),
    text(top="lr = 'fast'"),
    text(top='dataset = "mnist"'),
    text(top='model = "timm:"'),
    text(top='metric = "acc"'),
    text(top='metric = { choices = ["nll"] }'),
    text(top="b = { grid = [1] }"),
    text(top="b = [1, 2]"),
    text(top="fraction = { low = 0.1, high = 1.0 }"),
    text(top="enqueue = { b = 1 }"),
    text(top="enqueue = [{}]"),
    text(top="enqueue = [{ b = 'x' }]"),
    text(top="enqueue = [{ dataset = 'digits' }]"),
    text(search="sampler = 'gird'"),
    text(search="trails = 5"),
    text(search="warm_start = 5"),
    text(grid="fraction = 0.5"),
    text(grid="fraction = []"),
    text(grid="fraction = [2]"),
    text(grid="metric = ['nll']"),
    text(arm="metric = 'nll'"),
    text(arm="b = [1, 2]"),
    text(arm="b = {}"),
    text(arm="b = { low = 1 }"),
    text(arm="b = { low = 1, high = 2, steps = 1 }"),
    text(arm="b = { low = 1, high = 2, step = 0 }"),
    text(arm="b = { grid = [1], log = true }"),
    text(arm="b = { grid = [1, 1] }"),
    text(arm="device = { low = 1, high = 2 }"),
    text(arm="dataset = { choices = ['digits'] }"),
    text(end="[arms.A]"),
    text(resources="workers = 0"),
    text(resources="gpus_per_run = -1"),
    text(resources="gpus_per_run = 'all'"),
    text(end="[serach]"),
]


@pytest.mark.parametrize("content", RIGHT)
def test_right_files_are_valid(content):
    assert is_valid(content)


@pytest.mark.parametrize("content", WRONG)
def test_wrong_files_are_not_valid(content):
    assert not is_valid(content)


def test_a_plug_in_adds_its_names_and_settings(tmp_path):
    (tmp_path / "focal.py").write_text(PLUGIN)
    schema = json.loads(printed("--plugin", str(tmp_path / "focal.py")))
    content = text(arm='method = "focal"\ngamma = { grid = [1, 2.5] }\ndeep = true')
    assert is_valid(content, schema) and not is_valid(content)
    assert not is_valid(text(arm='method = "focal"\nrounds = 1.5'), schema)
