"""Search spaces and points at the top of a study file, which all arms share."""

import json

import pytest
from helpers.study_files import load, placed_errors_of

from ressmooth import spec
from ressmooth.spec import Choices, Range, read_stored
from ressmooth.spec.schema import Arm

SHARED = """\
name = "s"
epochs = 3
weight_decay = { low = 1e-5, high = 1e-2, log = true }
b = { low = 0.05, high = 2.0 }
distribution = { choices = ["laplace", "logistic"] }
enqueue = [{ weight_decay = 1e-3 }, { b = 1, weight_decay = 1e-4 }]
[search]
sampler = "tpe"
trials = 20
[arms.sgd]
method = "mse"
lr = { low = 0.01, high = 0.1 }
enqueue = [{ lr = 0.05 }]
[arms.smooth]
alpha = { low = 0.5, high = 2.0 }
[arms.constant]
distribution = "constant"
weight_decay = 0.0
[arms.narrow]
b = { low = 0.3, high = 1.0 }
"""
WRITTEN_OUT = """\
name = "s"
epochs = 3
[search]
sampler = "tpe"
trials = 20
[arms.sgd]
method = "mse"
weight_decay = { low = 1e-5, high = 1e-2, log = true }
lr = { low = 0.01, high = 0.1 }
enqueue = [{ weight_decay = 1e-3 }, { lr = 0.05 }]
[arms.smooth]
weight_decay = { low = 1e-5, high = 1e-2, log = true }
b = { low = 0.05, high = 2.0 }
distribution = { choices = ["laplace", "logistic"] }
alpha = { low = 0.5, high = 2.0 }
enqueue = [{ weight_decay = 1e-3 }, { b = 1, weight_decay = 1e-4 }]
[arms.constant]
distribution = "constant"
weight_decay = 0.0
[arms.narrow]
weight_decay = { low = 1e-5, high = 1e-2, log = true }
distribution = { choices = ["laplace", "logistic"] }
b = { low = 0.3, high = 1.0 }
enqueue = [{ weight_decay = 1e-3 }, { b = 1.0, weight_decay = 1e-4 }]
"""
ONE = 'name = "s"\n{top}\n[search]\nsampler = "tpe"\ntrials = 6\n[arms.a]\n{arm}\n'
SPACE = "b = { low = 0.1, high = 1.0 }"


def one(top="", arm="", end=""):
    return ONE.format(top=top, arm=arm) + end


def stored(study):
    return json.dumps(study.to_dict())  # with the order of the keys, on which samplers depend


def test_a_shared_space_is_the_same_as_one_in_each_arm_that_uses_it(tmp_path):
    shared, written_out = load(tmp_path, SHARED), load(tmp_path, WRITTEN_OUT)
    assert shared == written_out
    assert stored(shared) == stored(written_out)
    assert spec.differences(json.loads(stored(shared)), written_out) == []
    assert [branch.key for branch in shared.branches] == ["sgd", "smooth", "constant", "narrow"]


def test_a_study_with_shared_spaces_and_points_is_read_back_equal(tmp_path):
    study = load(tmp_path, SHARED)
    assert read_stored(json.loads(stored(study))) == study


def test_an_arm_without_points_is_stored_as_before(tmp_path):
    assert load(tmp_path, SHARED).to_dict()["arms"]["constant"].keys() == {"fixed", "grid", "space"}


def test_a_shared_choice_decides_what_else_is_used(tmp_path):
    top = 'method = { choices = ["mse", "smoothing"] }\nb = { low = 0.1, high = 1.0 }'
    study = load(tmp_path, one(top, end='[arms.b]\nmethod = "cross_entropy"\n'))
    assert study.arms["a"].space.keys() == {"method", "b"}
    assert study.arms["b"] == Arm({"method": "cross_entropy"}, {}, {})


def test_a_shared_space_can_be_changed_and_extended(tmp_path):
    study = load(tmp_path, one(SPACE), ["b.high=0.5", "mu={ choices = [0.5] }"])
    assert study.arms["a"].space == {"b": Range(low=0.1, high=0.5), "mu": Choices(choices=[0.5])}
    (tmp_path / "base.toml").write_text(one(SPACE))
    child = 'extends = "base.toml"\nname = "c"\nb = 0.3\nalpha = { low = 1, high = 2 }'
    assert load(tmp_path, child).arms["a"].space == {"alpha": Range(low=1.0, high=2.0)}


ARMS_OF_OWN = '[arms.b]\nmethod = "mse"\n'
WRONG = [  # top of the file, arm, other arms, error
    ("nu = { low = 1, high = 2 }", "", "", ": has no effect: no arm uses it; remove it"),
    (SPACE, "b = 0.5", ARMS_OF_OWN, ": has no effect: no arm uses it; remove it"),
    ("b = { grid = [1] }", "", "", "; a grid of all arms is a list in [grid]"),
    ("b = { low = 2, high = 1 }", "", "", ": low should be less than high"),
    ("fraction = { low = 0.1, high = 1.0 }", "", "", "give one value or a list in [grid]"),
    ("metric = { choices = ['nll', 'ece'] }", "", "", ": cannot be searched: give one value"),
    ("enqueue = [{ b = 1 }]", "", "", "enqueue[0] = {'b': 1}: no arm searches b"),
    ("enqueue = [{ b = 1, lr = 1 }]", SPACE, "", ": no arm searches b and lr"),
    ("enqueue = [{ b = 5 }]", SPACE, "", ".b = 5: input should be 0.1 to 1.0, as in arms.a"),
    ("enqueue = [{ bb = 5 }]", SPACE, "", "[0].bb: unknown key (did you mean 'b'?)"),
    ("enqueue = [{ b = 'x' }]", SPACE, "", ".b = 'x': input should be a valid number"),
    ("enqueue = []", SPACE, "", ": input should be a list of 1 to 1,000 points"),
    ("enqueue = [{}]", SPACE, "", ": input should be a point, as in { b = 0.5, alpha = 1.0 }"),
    ("enqueue = [7]", SPACE, "", ": input should be a point, as in { b = 0.5, alpha = 1.0 }"),
    ("enqueue = [{ b = 1 }, { b = 1.0 }]", SPACE, "", "[1] = {'b': 1.0}: given twice to arms.a"),
]


@pytest.mark.parametrize(("top", "arm", "end", "error"), WRONG)
def test_wrong_spaces_and_points_at_the_top_are_refused_with_their_line(
    tmp_path, top, arm, end, error
):
    (found,) = placed_errors_of(tmp_path, one(top, arm, end))
    assert found.startswith(f"x.toml:2: {top.split()[0]}")
    assert found.endswith(error)


WRONG_POINTS = [  # settings of an arm, its enqueue, the error
    (SPACE, "[{ alpha = 1 }]", "[0].alpha = 1: is not searched: arms.a has no range or choices"),
    (f"{SPACE}\nmu = {{ grid = [0.5] }}", "[{ mu = 0.5 }]", "[0].mu = 0.5: is not searched"),
    (SPACE, "[{ b = 0.5 }, { b = 0.05 }]", "[1].b = 0.05: input should be 0.1 to 1.0"),
    ("layers = { low = 1, high = 7, step = 2 }", "[{ layers = 4 }]",
        "[0].layers = 4: input should be 1 to 7 in steps of 2"),
    ("layers = { low = 1, high = 7 }", "[{ layers = 2.0 }]",
        "[0].layers = 2.0: input should be a valid integer"),
    ('output = { choices = ["softmax"] }', "[{ output = 'identity' }]",
        "[0].output = 'identity': input should be one of ['softmax']"),
    (SPACE, "[{ b = true }]", "[0].b = True: input should be a valid number"),
    (SPACE, "[{ b = { low = 1, high = 2 } }]", "[0].b = {'low': 1, 'high': 2}: input should be"),
    (SPACE, "[{ seed = 1 }]", "[0].seed = 1: not in a study"),
    (SPACE, "{ b = 1 }", " = {'b': 1}: input should be a list of 1 to 1,000 points"),
    (SPACE, f"{[{'b': n / 10} for n in range(1, 8)]}".replace(":", " =").replace("'", ""),
        ": 7 points, but a has 6 trials; set search.trials to at least 7"),
    (f"{SPACE}\nlayers = {{ grid = [1, 2] }}",
        "[{ b = 1 }, { b = 0.9 }, { b = 0.8 }, { b = 0.7 }]",
        ": 4 points, but a layers=1 has 3 trials; set search.trials to at least 8"),
]  # fmt: skip


@pytest.mark.parametrize(("arm", "points", "error"), WRONG_POINTS)
def test_wrong_points_of_an_arm_are_refused_with_their_line(tmp_path, arm, points, error):
    content = one(arm=f"{arm}\nenqueue = {points}")
    line = next(n for n, text in enumerate(content.splitlines(), 1) if "enqueue" in text)
    (found,) = placed_errors_of(tmp_path, content)
    assert found.startswith(f"x.toml:{line}: arms.a.enqueue")
    assert error in found


def test_points_may_stand_on_the_steps_that_a_sampler_would_choose(tmp_path):
    arm = "mu = { low = 0.0, high = 0.9, step = 0.3 }\nenqueue = [{ mu = 0.6 }, { mu = 0.9 }]"
    assert load(tmp_path, one(arm=arm)).arms["a"].enqueue == [{"mu": 0.6}, {"mu": 0.9}]
    assert Range(low=0.0, high=0.9, step=0.1).contains(0.1 * 3)  # 0.30000000000000004
    assert not Range(low=0.0, high=0.9, step=0.1).contains(0.35)


def test_with_a_time_budget_only_any_number_of_points_is_accepted(tmp_path):
    content = one(arm=f"{SPACE}\nenqueue = [{{ b = 1 }}]").replace("trials = 6", "hours = 1")
    assert load(tmp_path, content).arms["a"].enqueue == [{"b": 1.0}]


def test_points_of_a_recorded_study_cannot_change(tmp_path):
    def with_points(points):
        return load(tmp_path, one(arm=f"{SPACE}\nenqueue = {points}"))

    recorded = with_points("[{ b = 1 }]").to_dict()
    (line,) = spec.differences(recorded, with_points("[{ b = 1 }, { b = 0.5 }]"))
    assert line == "arms.a.enqueue was [{'b': 1.0}], is [{'b': 1.0}, {'b': 0.5}]"
    (line,) = spec.differences(recorded, load(tmp_path, one(arm=SPACE)))
    assert line == "arms.a.enqueue was [{'b': 1.0}], is not set"


def test_a_sampler_that_learns_nothing_cannot_be_warm_started(tmp_path):
    content = one(arm=SPACE).replace('"tpe"', '"random"\nwarm_start = "old"')
    assert placed_errors_of(tmp_path, content) == [
        "x.toml:5: search.warm_start = 'old': needs search.sampler = tpe or cmaes: "
        "random learns nothing"
    ]
    content = one().replace('"tpe"', '"tpe"\nwarm_start = "old"')
    (found,) = placed_errors_of(tmp_path, content)
    assert found.startswith("x.toml:5: search.warm_start = 'old': has no effect: no arm has a")


def test_the_grid_sampler_refuses_a_shared_space_where_it_stands(tmp_path):
    content = one(SPACE).replace('"tpe"', '"grid"')
    assert placed_errors_of(tmp_path, content) == [
        "x.toml:2: b = {'low': 0.1, 'high': 1.0}: needs search.sampler = random, tpe or cmaes; "
        "or put a list into [grid]"
    ]
