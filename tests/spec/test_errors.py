"""The errors of a study file."""

import json

import pytest
from helpers.study_files import RICH, errors_of, load, placed_errors_of, text
from pydantic import model_validator

from ressmooth import config
from ressmooth.config import RunConfig
from ressmooth.errors import ConfigError

# part of the file, its line, the error
WRONG = [
    ("top", "learning_rat = 1", "learning_rat: unknown key"),
    ("top", "epoch = 3", "epoch: unknown key (did you mean 'epochs'?)"),
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
    ("top", 'dataset = "Digits"', "dataset = 'Digits': input should be 'digits', 'fashion_mnist'"),
    ("top", "b = [1, 2]", "b = [1, 2]: input should be one value, { choices = [...] } or { low"),
    ("top", "b = { grid = [1] }", "b = {'grid': [1]}: input should be one value, { choices"),
    ("top", "b = { lwo = 1 }", "b = {'lwo': 1}: input should be one value, { choices = [...] }"),
    ("top", "enqueue = 5", "enqueue = 5: input should be a list of 1 to 1,000 points"),
    ("top", "metric = 'acc'", "metric = 'acc': input should be 'accuracy', 'nll', 'ece' or"),
    ("top", "seeds = 0", "seeds = 0: input should be greater than or equal to 1"),
    ("top", "seeds = 10001", "seeds = 10001: input should be less than or equal to 10000"),
    ("top", "seeds = {}", "seeds.race: missing"),
    ("top", "seeds = { race = false }", "seeds.race = False: input should be true; without a race"),
    ("top", "seeds = { race = 1 }", "seeds.race = 1: input should be a valid boolean"),
    (
        "top",
        "seeds = { race = true, at_least = 1 }",
        "seeds.at_least = 1: input should be greater than or equal to 2",
    ),
    (
        "top",
        "seeds = { race = true, at_most = 10001 }",
        "seeds.at_most = 10001: input should be less than or equal to 10000",
    ),
    (
        "top",
        "seeds = { race = true, at_least = 6, at_most = 5 }",
        "seeds = {'race': True, 'at_least': 6, 'at_most': 5}: at_least should not be greater than",
    ),
    (
        "top",
        "seeds = { race = true, at_mots = 5 }",
        "seeds.at_mots: unknown key (did you mean 'at_most'?)",
    ),
    ("top", "seeds = true", "seeds = True: input should be a valid integer"),
    ("top", "description = 5", "description = 5: input should be a valid string"),
    ("top", r'description = "a\u0000"', r"description = 'a\x00': string should match pattern"),
    ("top", f"epochs = {2**63}", f"epochs = {2**63}: input should be an integer of at most 64"),
    ("top", f"epochs = 0x{'f' * 6000}", f"epochs = 0x{'f' * 75}...: input should be an integer"),
    ("top", "reference = 'A'", "reference = 'A': input should be an arm: a (did you mean 'a'?)"),
    ("top", "reference = 1", "reference = 1: input should be a valid string"),
    ("search", "sampler = 'gird'", "search.sampler = 'gird': input should be 'grid', 'random'"),
    ("search", "pruner = 'hyperband'", "search.pruner = 'hyperband': input should be 'none'"),
    ("search", "objective = 'min'", "search.objective = 'min': input should be 'max' or 'mean'"),
    ("search", "trails = 5", "search.trails: unknown key (did you mean 'trials'?)"),
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
    ("grid", "fractoin = [1]", "grid.fractoin: unknown key (did you mean 'fraction'?)"),
    ("grid", "metric = ['nll']", "grid.metric = ['nll']: the same for all arms: write it at the"),
    ("grid", "seed = [1, 2]", "grid.seed = [1, 2]: not in a study"),
    ("grid", "seeds = [1, 2]", "grid.seeds: unknown key"),
    ("arm", "weight_decya = 0", "arms.a.weight_decya: unknown key (did you mean 'weight_deca"),
    ("arm", "metric = 'nll'", "arms.a.metric = 'nll': the same for all arms: write it at the top"),
    ("arm", "metric = { grid = ['nll'] }", "arms.a.metric = {'grid': ['nll']}: the same for all"),
    ("arm", "enqueu = []", "arms.a.enqueu: unknown key (did you mean 'enqueue'?)"),
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
    ("arm", "b = { grid = [1], log = true }", "arms.a.b.log: unknown key"),
    ("arm", "method = { grid = ['mse', 'ms'] }", "arms.a.method.grid[1] = 'ms': input should be"),
    ("arm", "device = { low = 1, high = 2 }", "arms.a.device = {'low': 1, 'high': 2}: is not a"),
    ("arm", "compile = { low = 0, high = 1 }", "arms.a.compile = {'low': 0, 'high': 1}: is not a"),
    ("resources", "workers = -1", "resources.workers = -1: input should be greater than or equal"),
    ("resources", "gpus_per_run = 1.5", "resources.gpus_per_run = 1.5: input should be a part of"),
    ("resources", "gpus_per_run = -1", "resources.gpus_per_run = -1: input should be greater than"),
    (
        "resources",
        "gpus_per_run = nan",
        "resources.gpus_per_run = nan: input should be a finite nu",
    ),
    (
        "resources",
        "gpus_per_run = 'all'",
        "resources.gpus_per_run = 'all': input should be 'auto' ",
    ),
    (
        "resources",
        "gpus_per_run = true",
        "resources.gpus_per_run = True: input should be 'auto' or",
    ),
    ("resources", "cpus_per_run = 0", "resources.cpus_per_run = 0: input should be greater than"),
    ("resources", "gpu_per_run = 1", "resources.gpu_per_run: unknown key (did you mean 'gpus_"),
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
    ("b = { low = 1, high = 2, stpe = 1 }", "b.stpe: unknown key (did you mean 'step'?)"),
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
    ("b = { choices = [1], low = 1 }", "b.low: unknown key"),
]


@pytest.mark.parametrize(("part", "line", "error"), WRONG, ids=lambda value: str(value)[:40])
def test_each_error_is_one_line_with_key_value_and_what_is_allowed(tmp_path, part, line, error):
    (found,) = errors_of(tmp_path, text(**{part: line}))
    assert found.startswith(error)


@pytest.mark.parametrize(("part", "line", "error"), WRONG, ids=lambda value: str(value)[:40])
def test_each_error_begins_with_the_line_of_the_file(tmp_path, part, line, error):
    content = text(**{part: line})
    place = f":{content.splitlines().index(line) + 1}" if line else ""  # a missing key has none
    (found,) = placed_errors_of(tmp_path, content)
    assert found.startswith(f"x.toml{place}: {error}")


def test_an_error_in_a_value_of_several_lines_has_the_line_of_its_statement(tmp_path):
    arm = "b = { grid = [\n  1,\n  -1,  # [\n] }\nmu = 2\nscale.low = 3"
    top = 'description = """\n[arms.a]\nb = 2\n"""\nlr = 0'
    places = [line.split(": ")[0] for line in placed_errors_of(tmp_path, text(top=top, arm=arm))]
    assert places == ["x.toml:6", "x.toml:12", "x.toml:16", "x.toml:17", "x.toml:17"]


def test_a_missing_key_has_the_line_of_its_table(tmp_path):
    arm = 'method = "mse"\nweight_decay = { low = 0 }'
    search = 'sampler = "tpe"'
    found = placed_errors_of(tmp_path, text(search=search, arm=arm))
    assert found == ["x.toml:9: arms.a.weight_decay.high: missing"]
    found = placed_errors_of(tmp_path, 'name = "s"\n\n[arms]\n')
    assert found == ["x.toml:3: arms = {}: missing: write an [arms.NAME] table for each method"]


@pytest.mark.parametrize(("line", "error"), WRONG_SPACE, ids=lambda value: str(value)[:40])
def test_each_error_of_a_space_is_one_line(tmp_path, line, error):
    (found,) = errors_of(tmp_path, text(search='sampler = "tpe"\ntrials = 3', arm=line))
    assert error in found
    assert found.startswith(f"arms.a.{line.split()[0]}")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ('distribution = "Laplace"', "'logistic' or 'constant' (did you mean 'laplace'?)"),
        ('method = "MSE"', "(did you mean 'mse'?)"),
        ('method = { grid = ["mse", "smothing"] }', "(did you mean 'smoothing'?)"),
        ('model = "resnet21"', "(did you mean 'resnet20'?)"),
        ('Method = "mse"', "unknown key (did you mean 'method'?)"),
        ("b = { min = 0.1, max = 2 }", "(did you mean { low = ..., high = ... }?)"),
        ("b = { low = 0.1, max = 2 }", "(did you mean { low = ..., high = ... }?)"),
        ("b = { values = [1, 2] }", "(did you mean { choices = [...] } or { grid = [...] }?)"),
        ("b = { choice = [1, 2] }", "high = ... } (did you mean 'choices'?)"),
    ],
)
def test_a_close_value_or_key_is_suggested(tmp_path, line, hint):
    (found,) = errors_of(tmp_path, text(arm=line))
    assert found.endswith(hint)


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
        "search.sampler = 'tpe': needs search.trials (per arm) or search.hours"
    ]
    assert load(tmp_path, text(search='sampler = "tpe"\nhours = 2', arm=arm)).search.trials is None
    assert (
        load(tmp_path, text(search='sampler = "tpe"')).search.sampler == "tpe"
    )  # nothing is sampled


NO_EFFECT = [  # settings of an arm, the last of which has no effect; the reason
    ('method = "mse"\nb = { low = 0.1, high = 1 }', "with method mse, only with smoothing"),
    ('method = "mse"\nalpha = 2', "with method mse, only with smoothing"),
    ('method = "mse"\ndistribution = "logistic"', "with method mse, only with smoothing"),
    ('distribution = "constant"\nmu = { choices = [0.5, 0.6] }',
        "with distribution constant, only with laplace, logistic"),
    ("scale = 0.5", "with distribution laplace, only with constant"),
    ("epsilon = { grid = [0.1, 0.2] }", "with method smoothing, only with label_smoothing"),
    ('optimizer = "adam"\nmomentum = 0.5', "with optimizer adam, only with sgd"),
    ('optimizer = { grid = ["adam", "adagrad"] }\nmomentum = { low = 0.1, high = 0.9 }',
        "with optimizer adagrad, adam, only with sgd"),
    ('method = { choices = ["mse", "label_smoothing"] }\nb = 1',
        "with method label_smoothing, mse, only with smoothing"),
    ('method = "cross_entropy"\noutput = "identity"',
        "with method cross_entropy, only with smoothing, mse, label_smoothing, adaptive_decay"),
]  # fmt: skip
SAMPLED = "sampler = 'tpe'\ntrials = 6"


@pytest.mark.parametrize(("arm", "reason"), NO_EFFECT)
def test_a_setting_that_the_arm_ignores_is_refused(tmp_path, arm, reason):
    content = text(search=SAMPLED, arm=arm)
    line = arm.splitlines()[-1]
    (found,) = placed_errors_of(tmp_path, content)
    place = f"x.toml:{content.splitlines().index(line) + 1}: arms.a.{line.split()[0]} = "
    assert found.startswith(place) and found.endswith(f": has no effect {reason}; remove it")


def test_a_searched_setting_that_the_arm_ignores_needs_no_sampler(tmp_path):
    (found,) = errors_of(tmp_path, text(arm='method = "mse"\nb = { low = 1, high = 2 }'))
    assert "has no effect with method mse" in found


@pytest.mark.parametrize(
    "parts",
    [
        {"top": "b = 0.3\nepsilon = 0.2", "arm": 'method = "mse"'},  # common settings
        {"grid": "b = [0.3, 0.5]", "end": '[arms.b]\nmethod = "mse"'},  # one arm uses it
        {"arm": 'method = { grid = ["mse", "smoothing"] }\nb = { low = 1, high = 2 }'},
        {"arm": 'distribution = { choices = ["laplace", "constant"] }\nb = 1\nscale = 1'},
        {"grid": 'optimizer = ["adam", "sgd"]', "arm": "momentum = 0.5"},
        {"top": 'method = "label_smoothing"', "arm": "epsilon = 0.2"},
    ],
)
def test_a_setting_that_some_run_uses_is_accepted(tmp_path, parts):
    load(tmp_path, text(search=SAMPLED, **parts))


def test_an_axis_that_no_arm_uses_is_refused(tmp_path):
    assert placed_errors_of(tmp_path, text(grid="nu = [1, 2]", end="[arms.b]\nalpha = 2")) == [
        "x.toml:6: grid.nu = [1, 2]: has no effect: no arm uses it; remove it"
    ]


def test_an_invalid_method_is_the_only_error_of_its_arm(tmp_path):
    for method in ('"msee"', "{ grid = [] }", "{ choices = ['mse', 'x'] }"):
        (found,) = errors_of(tmp_path, text(search=SAMPLED, arm=f"method = {method}\nb = 1"))
        assert found.startswith("arms.a.method")


def test_a_pruner_needs_something_to_prune(tmp_path):
    arm = "b = { grid = [0.1, 0.3] }"
    (found,) = placed_errors_of(tmp_path, text(search='pruner = "asha"', arm=arm))
    assert found.startswith("x.toml:4: search.pruner = 'asha': has no effect: it stops sampled")
    wrong = text(search=f"{SAMPLED}\npruner = 'asha'", arm="b = { low = 2, high = 1 }")
    (found,) = errors_of(tmp_path, wrong)  # once the range is right, the pruner has something
    assert "low should be less than high" in found
    one = text(search=f"{SAMPLED}\npruner = 'asha'", end="[arms.b]\nb = { low = 1, high = 2 }")
    assert load(tmp_path, one).search.pruner == "asha"


@pytest.mark.parametrize(
    ("pruner", "option", "needs"),
    [
        ("median", "min_epochs = 2", "asha"),
        ("none", "reduction = 2", "asha"),
        ("asha", "warmup = 2", "median"),
    ],
)
def test_an_option_of_another_pruner_is_refused(tmp_path, pruner, option, needs):
    search, arm = f"{SAMPLED}\npruner = '{pruner}'\n{option}", "b = { low = 1, high = 2 }"
    (found,) = placed_errors_of(tmp_path, text(search=search, arm=arm))
    assert found == f"x.toml:7: search.{option}: needs search.pruner = '{needs}'"


def test_each_cell_of_an_arm_needs_a_trial(tmp_path):
    arm = "b = { low = 1, high = 2 }\nlayers = { grid = [1, 2, 3] }"
    parts = {"grid": "fraction = [0.5, 1]", "arm": arm, "end": "[arms.b]\nmu = { choices = [1] }"}
    search = "sampler = 'tpe'\ntrials = 5"
    assert placed_errors_of(tmp_path, text(search=search, **parts)) == [
        "x.toml:5: search.trials = 5: input should be at least 6, one for each cell of arms.a"
    ]
    assert load(tmp_path, text(search=SAMPLED, **parts)).search.trials == 6


@pytest.mark.parametrize(
    ("parts", "runs"),
    [
        ({"top": "seeds = 10000", "grid": f"epochs = {list(range(1, 12))}"}, "110,000"),
        (
            {
                "top": "seeds = { race = true }",
                "grid": f"epochs = {list(range(1, 1001))}\nlayers = {list(range(1, 12))}",
            },
            "110,000",
        ),
        ({"top": "seeds = 2", "search": "sampler = 'tpe'\ntrials = 50001"}, "100,002"),
        (
            {
                "top": "seeds = 2\nconfirm = 1",
                "search": "sampler = 'tpe'\ntrials = 50000",
                "grid": "layers = [1, 2]",
            },
            "100,002",
        ),
        ({k: "\n".join(f"{name} = {v}" for name, v in lines.items()) for k, lines in {
            "grid": {name: list(range(1, 1001)) for name in ("epochs", "batch_size", "b", "alpha")},
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
        def _check_depth(self):
            if self.model == "small" and self.layers > 1:
                raise ValueError("too many layers")
            return self

    monkeypatch.setattr(config, "RunConfig", Coupled)
    (found,) = errors_of(tmp_path, text(arm="layers = { grid = [1, 2, 3] }"))
    assert found.startswith("arms.a = {") and "in a layers=2: " in found and "too many" in found


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
        ("arms.sgd.lr={grid=[]}", "--set: arms.sgd.lr.grid = []: input should be a list of 1 to"),
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
        ("x.y=1", "--set: x: unknown key"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_bad_overrides(tmp_path, override, error):
    (found,) = errors_of(tmp_path, RICH, [override])
    assert found.startswith(error)
