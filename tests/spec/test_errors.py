"""The errors of a study file."""

import json

import pytest
from helpers.study_files import RICH, errors_of, load, text
from pydantic import model_validator

from ressmooth import config
from ressmooth.config import RunConfig
from ressmooth.errors import ConfigError

# part of the file, its line, the error
WRONG = [
    ("top", "learning_rat = 1", "learning_rat = 1: unknown key"),
    ("top", "epoch = 3", "epoch = 3: unknown key (did you mean 'epochs'?)"),
    ("top", "seed = 3", "seed = 3: not in a study: seeds = N trains each trial with"),
    ("top", "epochs = 0", "epochs = 0: input should be greater than or equal to 1"),
    ("top", "epochs = 1000000000", "epochs = 1000000000: input should be less than or equal to"),
    ("top", "epochs = true", "epochs = True: input should be a valid integer"),
    ("top", "epochs = 5.0", "epochs = 5.0: input should be a valid integer"),
    ("top", 'epochs = "5"', "epochs = '5': input should be a valid integer"),
    ("top", "lr = nan", "lr = nan: input should be a finite number"),
    ("top", "lr = 1979-05-27", "lr = datetime.date(1979, 5, 27): input should be a valid number"),
    ("top", "compile = 1", "compile = 1: input should be a valid boolean"),
    ("top", 'dataset = "mnist"', "dataset = 'mnist': input should be 'digits', 'fashion_mnist'"),
    ("top", "b = [1, 2]", "b = [1, 2]: input should be one value; several go into [grid] or an"),
    ("top", "b = { grid = [1] }", "b = {'grid': [1]}: input should be one value"),
    ("top", "seeds = 0", "seeds = 0: input should be greater than or equal to 1"),
    ("top", "seeds = 10001", "seeds = 10001: input should be less than or equal to 10000"),
    ("top", "seeds = true", "seeds = True: input should be a valid integer"),
    ("top", "description = 5", "description = 5: input should be a valid string"),
    ("top", r'description = "a\u0000"', r"description = 'a\x00': string should match pattern"),
    ("top", f"epochs = {2**63}", f"epochs = {2**63}: input should be an integer of at most 64"),
    ("top", f"epochs = 0x{'f' * 6000}", f"epochs = 0x{'f' * 75}...: input should be an integer"),
    ("search", "sampler = 'gird'", "search.sampler = 'gird': input should be 'grid', 'random'"),
    ("search", "pruner = 'hyperband'", "search.pruner = 'hyperband': input should be 'none'"),
    ("search", "objective = 'min'", "search.objective = 'min': input should be 'max' or 'mean'"),
    ("search", "trails = 5", "search.trails = 5: unknown key (did you mean 'trials'?)"),
    ("search", "trials = 0", "search.trials = 0: input should be greater than or equal to 1"),
    ("search", "trials = 100001", "search.trials = 100001: input should be less than or equal"),
    ("search", "trials = 1.5", "search.trials = 1.5: input should be a valid integer"),
    ("search", "hours = 0", "search.hours = 0: input should be greater than 0"),
    ("search", "hours = inf", "search.hours = inf: input should be a finite number"),
    ("search", "seed = -1", "search.seed = -1: input should be greater than or equal to 0"),
    ("grid", "fraction = []", "grid.fraction = []: input should be a list of 1 to 1,000 values"),
    ("grid", "fraction = 0.5", "grid.fraction = 0.5: input should be a list of 1 to 1,000"),
    ("grid", "fraction = { grid = [1] }", "grid.fraction = {'grid': [1]}: input should be a list"),
    ("grid", "fraction = [1, 1.0]", "grid.fraction[1] = 1.0: given twice"),
    ("grid", "fraction = [1, 2]", "grid.fraction[1] = 2: input should be less than or equal to 1"),
    ("grid", "fractoin = [1]", "grid.fractoin = [1]: unknown key (did you mean 'fraction'?)"),
    ("grid", "seed = [1, 2]", "grid.seed = [1, 2]: not in a study"),
    ("grid", "seeds = [1, 2]", "grid.seeds = [1, 2]: unknown key"),
    ("arm", "weight_decya = 0", "arms.a.weight_decya = 0: unknown key (did you mean 'weight_deca"),
    ("arm", "seed = 1", "arms.a.seed = 1: not in a study"),
    ("arm", "mu = -1", "arms.a.mu = -1: input should be greater than or equal to 0"),
    ("arm", "b = [0.1, 0.3]", "arms.a.b = [0.1, 0.3]: input should be one value, { grid = [...] }"),
    ("arm", "b = {}", "arms.a.b = {}: input should be one value, { grid = [...] }"),
    ("arm", "b = { gird = [1] }", "arms.a.b = {'gird': [1]}: input should be one value, { grid"),
    ("arm", "b = { grid = [] }", "arms.a.b.grid = []: input should be a list of 1 to 1,000"),
    ("arm", "b = { grid = 1 }", "arms.a.b.grid = 1: input should be a valid list"),
    ("arm", "b = { grid = [1, 2, 1] }", "arms.a.b.grid[2] = 1: given twice"),
    ("arm", "b = { grid = [1, 'x'] }", "arms.a.b.grid[1] = 'x': input should be a valid number"),
    ("arm", "b = { grid = [1, [2]] }", "arms.a.b.grid[1] = [2]: input should be a valid number"),
    ("arm", "b = { grid = [1], log = true }", "arms.a.b.log = True: unknown key"),
    ("arm", "method = { grid = ['mse', 'ms'] }", "arms.a.method.grid[1] = 'ms': input should be"),
    ("arm", "device = { low = 1, high = 2 }", "arms.a.device = {'low': 1, 'high': 2}: is not a"),
    ("arm", "compile = { low = 0, high = 1 }", "arms.a.compile = {'low': 0, 'high': 1}: is not a"),
    ("resources", "workers = -1", "resources.workers = -1: input should be greater than or equal"),
    ("resources", "gpus_per_run = 1.5", "resources.gpus_per_run = 1.5: input should be a part of"),
    ("resources", "cpus_per_run = 0", "resources.cpus_per_run = 0: input should be greater than"),
    ("resources", "gpu_per_run = 1", "resources.gpu_per_run = 1: unknown key (did you mean 'gpus_"),
    ("resources", "retries = 1e3", "resources.retries = 1000.0: input should be a valid integer"),
    ("name", "", "name: missing"),
    ("end", "[arms.A]", "arms.A = {}: a name has 1 to 64 of a-z 0-9 . _ - and no '..', and begins"),
    ("end", '[arms."../x"]', "arms.'../x' = {}: a name has"),
    ("end", '[arms."a\\nb"]', "arms.'a\\nb' = {}: a name has"),
]
# a sampled setting, its error
WRONG_SPACE = [
    ("b = { low = 2, high = 1 }", "b = {'low': 2, 'high': 1}: low should be less than high"),
    ("b = { low = 1, high = 1 }", "b = {'low': 1, 'high': 1}: low should be less than high"),
    ("b = { low = 0, high = 1 }", "b.low = 0: input should be greater than"),
    ("b = { low = nan, high = 1 }", "b.low = nan: input should be a finite number"),
    ("b = { low = 1, high = inf }", "b.high = inf: input should be a finite number"),
    ("b = { low = 1, high = 'x' }", "b.high = 'x': input should be a valid number"),
    ("b = { low = true, high = 2 }", "b.low = True: input should be a valid number"),
    ("b = { low = 1 }", "b.high: missing"),
    ("b = { high = 1 }", "b.low: missing"),
    ("b = { low = 1, high = 2, stpe = 1 }", "b.stpe = 1: unknown key (did you mean 'step'?)"),
    ("b = { low = 1, high = 2, log = 1 }", "b.log = 1: input should be a valid boolean"),
    ("b = { low = 1, high = 2, step = 0 }", "step should be greater than 0"),
    ("b = { low = 1, high = 2, step = -1 }", "step should be greater than 0"),
    ("b = { low = 1, high = 2, step = nan }", "b.step = nan: input should be a finite number"),
    ("b = { low = 1, high = 2, step = 0.3 }", "high should be a whole number of steps above low"),
    ("b = { low = 1, high = 2, step = 1e-300, log = true }", "log and step exclude each other"),
    ("mu = { low = 0, high = 1, log = true }", "log needs low greater than 0"),
    ("mu = { low = 0.5, high = 1.1 }", "mu.high = 1.1: input should be less than or equal to 1"),
    ("layers = { low = 1, high = 2.0 }", "layers.high = 2.0: input should be a valid integer"),
    ("layers = { low = 1, high = 3, step = 1.0 }", "layers.step = 1.0: input should be a valid in"),
    ("b = { choices = [] }", "b.choices = []: input should be a list of 1 to 1,000 values"),
    ("b = { choices = [1, 1] }", "b.choices[1] = 1: given twice"),
    ("b = { choices = [0] }", "b.choices[0] = 0: input should be greater than"),
    ("b = { choices = [1], low = 1 }", "b.low = 1: unknown key"),
]


@pytest.mark.parametrize(("part", "line", "error"), WRONG, ids=lambda value: str(value)[:40])
def test_each_error_is_one_line_with_key_value_and_what_is_allowed(tmp_path, part, line, error):
    (found,) = errors_of(tmp_path, text(**{part: line}))
    assert found.startswith(error)


@pytest.mark.parametrize(("line", "error"), WRONG_SPACE, ids=lambda value: str(value)[:40])
def test_each_error_of_a_space_is_one_line(tmp_path, line, error):
    (found,) = errors_of(tmp_path, text(search='sampler = "tpe"\ntrials = 3', arm=line))
    assert error in found
    assert found.startswith(f"arms.a.{line.split()[0]}")


NAMES = ["../../etc/x", "/abs", "..", ".", "a/b", "a\\b", "%2e%2e", "．．", "a\0", "a\n", "CON"]
NAMES += ["a" * 65, "🙂", "'; DROP TABLE", "${x}", "-a", "", "a..b", "A", " a"]


@pytest.mark.parametrize("name", NAMES)
def test_bad_names_are_refused(tmp_path, name):
    (found,) = errors_of(tmp_path, text(name=f"name = {json.dumps(name, ensure_ascii=False)}"))
    assert found.startswith("name = ") and "a name has 1 to 64 of" in found
    (found,) = errors_of(tmp_path, text(end=f"[arms.{json.dumps(name, ensure_ascii=False)}]"))
    assert found.startswith("arms.") and "a name has 1 to 64 of" in found


@pytest.mark.parametrize("name", ["a", "0", "fashion-partial", "a.b_c-9", "a" * 64])
def test_good_names_are_accepted(tmp_path, name):
    assert load(tmp_path, text(name=f'name = "{name}"', end=f'[arms."x{name[1:]}"]')).name == name


@pytest.mark.parametrize("table", ["search", "grid", "arms", "resources", "arms.a"])
@pytest.mark.parametrize("value", ["5", "[]", "[{ a = 1 }]", '"x"'])
def test_a_value_instead_of_a_table_is_an_error(tmp_path, table, value):
    other = "" if table.startswith("arms") else "\n[arms.a]"
    (found,) = errors_of(tmp_path, f'name = "s"\n{table} = {value}{other}')
    assert found.startswith(f"{table} = ") and found.endswith("input should be a table")


@pytest.mark.parametrize("content", ['name = "s"', 'name = "s"\n[arms]'])
def test_a_study_needs_an_arm(tmp_path, content):
    (found,) = errors_of(tmp_path, content)
    assert found.startswith("arms")
    assert found.endswith(": missing: write an [arms.NAME] table for each method")


def test_an_axis_is_given_once(tmp_path):
    grid = "b = [1, 2]\nmu = [0.5]"
    assert errors_of(tmp_path, text(top="mu = 0.1", grid=grid, arm="b = { grid = [3] }")) == [
        "mu = 0.1: is an axis of [grid] already: give it once",
        "arms.a.b = {'grid': [3]}: is an axis of [grid] already: give it once",
    ]


def test_the_grid_sampler_cannot_sample(tmp_path):
    assert errors_of(tmp_path, text(arm="b = { low = 1, high = 2 }\nmu = { choices = [0.5] }")) == [
        "arms.a.b = {'low': 1, 'high': 2}: needs search.sampler = random, tpe or cmaes; "
        "or write { grid = [...] }",
        "arms.a.mu = {'choices': [0.5]}: needs search.sampler = random, tpe or cmaes; "
        "or write { grid = [...] }",
    ]


def test_the_problem_cannot_be_searched(tmp_path):
    search = "sampler = 'tpe'\ntrials = 2"
    arm = "fraction = { low = 0.1, high = 1.0 }\nmodel = { choices = ['small', 'resnet20'] }"
    rule = "cannot be searched: give one value or { grid = [...] }"
    assert errors_of(tmp_path, text(arm=arm, search=search)) == [
        f"arms.a.fraction = {{'low': 0.1, 'high': 1.0}}: {rule}",
        f"arms.a.model = {{'choices': ['small', 'resnet20']}}: {rule}",
    ]


def test_sampling_needs_trials_or_hours(tmp_path):
    arm = "b = { low = 1, high = 2 }"
    assert errors_of(tmp_path, text(search='sampler = "tpe"', arm=arm)) == [
        "search.sampler = 'tpe': needs search.trials (per branch) or search.hours"
    ]
    assert load(tmp_path, text(search='sampler = "tpe"\nhours = 2', arm=arm)).search.trials is None
    assert (
        load(tmp_path, text(search='sampler = "tpe"')).search.sampler == "tpe"
    )  # nothing is sampled


@pytest.mark.parametrize(
    ("parts", "runs"),
    [
        ({"top": "seeds = 10000", "grid": f"epochs = {list(range(1, 12))}"}, "110,000"),
        ({"top": "seeds = 2", "search": "sampler = 'tpe'\ntrials = 50001"}, "100,002"),
        ({k: "\n".join(f"{name} = {v}" for name, v in lines.items()) for k, lines in {
            "grid": {name: list(range(1, 1001)) for name in ("epochs", "batch_size", "b", "nu")},
        }.items()}, "1.0e+12"),
    ],
)  # fmt: skip
def test_too_many_runs_are_counted_and_refused(tmp_path, parts, runs):
    arm = "" if "epochs" in parts.get("grid", "") else "b = { low = 1, high = 2 }"
    assert errors_of(tmp_path, text(**parts, arm=arm)) == [
        f"{runs} runs: at most 100,000 in a study"
    ]


def test_a_hundred_thousand_runs_are_accepted(tmp_path):
    grid = f"batch_size = {list(range(1, 101))}\nb = {list(range(1, 101))}"
    assert len(load(tmp_path, text(top="seeds = 10", grid=grid)).branches) == 10_000
    with pytest.raises(ConfigError, match="list of 1 to 1,000 values"):
        load(tmp_path, text(grid=f"epochs = {list(range(1, 1002))}"))


def test_settings_that_are_only_wrong_together_are_found(tmp_path, monkeypatch):
    class Coupled(RunConfig):
        @model_validator(mode="after")
        def _mse_has_no_layers(self):
            if self.method == "mse" and self.layers > 1:
                raise ValueError("mse smooths nothing")
            return self

    monkeypatch.setattr(config, "RunConfig", Coupled)
    arm = 'method = { choices = ["mse"] }\nlayers = { grid = [1, 2, 3] }'
    (found,) = errors_of(tmp_path, text(search='sampler = "tpe"\ntrials = 3', arm=arm))
    assert found.startswith("arms.a = {") and "in a layers=2: " in found and "mse smooths" in found


def test_all_errors_are_reported_in_the_order_of_the_file(tmp_path):
    content = """\
epochs = 0
[search]
trials = 0
[arms.a]
b = { grid = [1, -1] }
[arms.b]
"x\\u001b[31m" = "y\\u001b[31m"
[resources]
workers = 0
"""
    keys = [line.split(" = ")[0].split(":")[0] for line in errors_of(tmp_path, content)]
    assert keys == [
        *("name", "epochs", "search.trials", "arms.a.b.grid[1]"),
        *("arms.b.'x\\x1b[31m'", "resources.workers"),
    ]


def test_long_values_and_long_lists_of_errors_are_cut(tmp_path):
    (found,) = errors_of(tmp_path, text(top=f'model = "{"x" * 5000}"'))
    assert found.startswith(f"model = '{'x' * 76}...: input should be")
    found = errors_of(tmp_path, text(top="\n".join(f"key{n} = 1" for n in range(5000))))
    assert len(found) == 101
    assert found[-1] == "and 4,900 more errors"


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("seeds=0", "--set: seeds = 0: input should be greater than or equal to 1"),
        ("epochs=5x", "--set: epochs = '5x': input should be a valid integer"),
        ("compile=True", "--set: compile = 'True': input should be a valid boolean"),
        ("epochs=", "--set: epochs = '': input should be a valid integer"),
        ("epochs=1\nlr=2", r"--set: epochs = '1\nlr=2': input should be a valid integer"),
        ("arms.sgd.b.grid=[]", "--set: arms.sgd.b.grid = []: input should be a list of 1 to"),
        ("arms.sdg.lr=0.2", "--set 'arms.sdg.lr=0.2': no such arm (did you mean 'sgd'?); arms"),
        ("arms.sgd.lr.low=1", "--set 'arms.sgd.lr.low=1': arms.sgd.lr = 0.05 is not a table"),
        ("extends=x.toml", "--set 'extends=x.toml': write extends into the study file"),
        ("seeds", "--set 'seeds': write key=value, as in search.trials=50"),
        ("=3", "--set '=3': write key=value"),
        ("a b=3", "--set 'a b=3': write key=value"),
        ("#=3", "--set '#=3': write key=value"),
        ("a..b=3", "--set 'a..b=3': write key=value"),
        ("a\nb=3", r"--set 'a\nb=3': write key=value"),
        (".".join("a" * 9000) + "=3", "--set 'a.a.a"),
        ("epochs=" + "[" * 9000, "--set: epochs = '[[["),
        ("epochs=" + "9" * 9000, "--set: epochs = '999"),
        ("model=\udc80", r"--set: model = '\udc80': input should be"),
        ("x.y=1", "--set: x = {'y': 1}: unknown key"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_bad_overrides(tmp_path, override, error):
    (found,) = errors_of(tmp_path, RICH, [override])
    assert found.startswith(error)
