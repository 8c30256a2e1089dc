"""A race of seeds in `show`, in the report and in MLflow's description of the study."""

import random

import pytest
from helpers import records, specs

from ressmooth.report.compare import by_selecting_statistic, compare_studies
from ressmooth.report.page import Report, write
from ressmooth.report.race import race_sheet
from ressmooth.report.tables import details
from ressmooth.search.planner import Planner
from ressmooth.store import Placing, RaceResult
from ressmooth.tracking import artifacts

RACE = {"race": True, "at_least": 2, "at_most": 8}
ARMS = {"sgd": {"method": "mse"}, "laplace": {"b": {"grid": [0.1, 0.3, 0.9]}}}


def accuracy(config):
    noise = random.Random(f"{config['method']} {config['b']} {config['seed']}").gauss(0, 0.1)
    if config["method"] == "mse":
        return 80.0 + noise
    return {0.1: 82.0, 0.3: 81.0, 0.9: 70.0}[config["b"]] + noise


@pytest.fixture(scope="module")
def raced(store):
    return records.simulate(store, specs.study(ARMS, seeds=RACE, name="raced"), accuracy)


@pytest.fixture(scope="module")
def held_out(store):
    spec = specs.study(ARMS, seeds=RACE, name="held-out", selection="holdout")
    return records.simulate(store, spec, accuracy)


def results(store, study):
    trials = {trial.id: trial for trial in store.trials(study.id)}
    found = {}
    for placing in store.race(study.id):
        trial = trials[placing.trial_id]
        found[trial.arm, trial.params.get("b")] = placing
    return found


def test_a_race_decides_the_verdict_of_the_comparison(store, raced, held_out):
    for study in (raced, held_out):
        placing = results(store, study)["laplace", 0.1]
        (table,) = by_selecting_statistic(compare_studies(store, [study]))
        (line,) = table.tested
        assert placing.result == "gain" and line.difference.is_decided
        assert line.arm.params == {"b": 0.1} and line.arm.trial == placing.trial_id
        assert line.reference.trial == placing.rival_id


def test_the_sheet_says_who_was_dropped_when_and_why(store, raced):
    placings = results(store, raced)
    sheet = race_sheet(store.trials(raced.id), store.race(raced.id))
    assert sheet.title == "The race of seeds"
    rows = {(row[0], row[1]): row[2:] for row in sheet.rows}
    seeds = placings["laplace", 0.1].seeds
    assert rows["laplace", "b=0.9"][:3] == ["dropped", "2", "laplace b=0.1"]
    assert rows["laplace", "b=0.9"][3].endswith("% chance to pass it")
    assert rows["laplace", "b=0.1"][:3] == ["gain", str(seeds), "sgd"]
    assert rows["laplace", "b=0.1"][3].startswith("evidence ")
    assert rows["sgd", "–"] == ["reference", str(seeds), "–", "best of its arm"]


def test_show_report_and_mlflow_have_the_sheet(store, raced, tmp_path):
    assert results(store, raced)["laplace", 0.9].chance < 0.0005
    chance = "under 0.1 % chance to pass it"
    shown = details(store, raced)
    assert "The race of seeds" in shown and chance in shown
    write(Report(store, raced), tmp_path)
    for name in ("index.html", "report.md"):
        page = (tmp_path / name).read_text().replace("\N{NO-BREAK SPACE}", " ")
        assert "The race" in page and chance in page and "2 to 8 racing seeds per trial" in page
    comparisons = compare_studies(store, [raced])
    race = store.race(raced.id)
    artifacts.write_study(tmp_path, raced, store.trials(raced.id), comparisons, race)
    assert chance in (tmp_path / "comparison.md").read_text()


def test_a_race_that_is_not_over_says_so(store):
    spec = specs.study(ARMS, seeds=RACE, name="begun")
    planner = Planner(store, store.open_study(spec), spec)
    for _ in range(8):
        run = planner.next()
        attempt = store.claim(run.id, records.ENVIRONMENT)
        store.finish_run(attempt, "complete", max_acc=accuracy(run.config))
        planner.run_ended(run)
    planner.next()
    sheet = race_sheet(store.trials(planner.study_id), store.race(planner.study_id))
    assert sheet.title.endswith("not over yet")
    assert "in the race" in {row[2] for row in sheet.rows}


def test_without_a_race_there_is_no_sheet(store):
    study = records.simulate(store, specs.study(ARMS, seeds=2, name="plain"), accuracy)
    assert store.race(study.id) == [] and "race" not in details(store, study)
    assert Report(store, study).race_sheet is None


def test_deleting_a_study_deletes_its_race(store):
    study = records.simulate(store, specs.study(ARMS, seeds=RACE, name="gone"), accuracy)
    store.delete_study(study.id)
    assert store.race(study.id) == []


@pytest.mark.parametrize("chance", [None, 0.0, 0.02])
def test_an_undecided_verdict_says_whether_more_seeds_may_decide(store, raced, chance):
    trials = store.trials(raced.id)
    placing = Placing(trials[1].id, RaceResult.UNDECIDED, 8, trials[0].id, chance, 1.0)
    (row,) = [row for row in race_sheet(trials, [placing]).rows if row[2] == "undecided"]
    expected = "2.0 % chance that more seeds decide" if chance else "not decided by the last seed"
    assert row[-1] == expected
