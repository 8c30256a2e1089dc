import re
from dataclasses import replace

import pytest
from helpers import records, specs
from helpers.shown import ARMS, EIGHTH, accuracy

from ressmooth.report import verdicts
from ressmooth.report.compare import by_selecting_statistic, compare_studies
from ressmooth.report.notes import SELECTION
from ressmooth.report.notes import notes as notes_of
from ressmooth.report.page import Report
from ressmooth.spec.reader import load


def test_a_gain_comes_with_its_evidence_and_the_papers(compared):
    sentence = verdicts.verdict(compared[0].lines[1], compared[0])
    assert sentence.startswith(
        "By the best epoch's accuracy on fashion_mnist (resnet20, fraction 0.125), "
        "laplace (b=1.3 alpha=1) reaches 90.01 ± 0.36 % (n = 5) and sgd (weight_decay=0.001) "
    )
    assert "89.00 ± 0.37 % (n = 5): a gain" in sentence
    assert (
        "a gain of 1.01 points, decided after 4 of 5 seeds (evidence 439 : 1, "
        "95 % interval +0.98 to +1.03, p = 0.005, corrected for 2 comparisons), "
        "but these seeds also selected the configurations (best of 4 against best of 2)" in sentence
    )
    assert sentence.endswith("; the paper's ordering holds (the paper reports +0.33).")


def test_an_undecided_difference_comes_with_the_seeds_that_would_decide_it(compared):
    sentence = verdicts.verdict(compared[0].lines[2], compared[0])
    assert "+0.01 points, undecided after 5 seeds (no evidence, 95 % interval −" in sentence
    assert "; even 1,000 seeds per arm would hardly decide so small a difference" in sentence
    assert sentence.endswith("the paper reports +0.39.")


def test_a_contradiction_of_the_paper_is_reported(store):
    def worse(config):
        return accuracy(config) - (3.0 if config["distribution"] == "logistic" else 0.0)

    study = records.simulate(store, specs.study(ARMS, seeds=5, name="worse", **EIGHTH), worse)
    table = compare_studies(store, [study])[0]
    sentence = verdicts.verdict(table.lines[2], table)
    assert "a loss of 2.99 points" in sentence
    assert sentence.endswith("the paper's ordering is contradicted (the paper reports +0.39).")


def test_one_seed_is_too_few_to_test(store):
    study = records.simulate(store, specs.study(ARMS, name="single", **EIGHTH), accuracy)
    table = compare_studies(store, [study])[0]
    sentence = verdicts.verdict(table.lines[1], table)
    assert "reaches 90.00 % (n = 1) and sgd (weight_decay=0.001) 89.00 % (n = 1)" in sentence
    assert "+1.00 points, undecided after 1 seed; at least 4 seeds are needed;" in sentence
    assert "interval" not in sentence and "evidence" not in sentence


@pytest.mark.parametrize("arms, least", [(1, 4), (3, 4), (4, 5)])
def test_the_fewest_seeds_that_can_decide_follow_from_the_number_of_comparisons(store, arms, least):
    smoothing = {f"b{b}": {**ARMS["logistic"], "b": b / 10} for b in range(1, arms + 1)}
    spec = specs.study({"sgd": {"method": "mse"}, **smoothing}, seeds=3, name=f"of-{arms}")
    study = records.simulate(store, spec, lambda c: 90.0 + c["seed"] * (c["method"] != "mse"))
    table = compare_studies(store, [study])[0]
    sentence = verdicts.verdict(table.lines[1], table)
    assert (
        f"a difference of +1.00 points, undecided after 3 seeds; at least {least} seeds are needed "
        "(no evidence, p = 1.00" in sentence
    )
    assert re.search(r"about \d+ more seeds per arm would decide it\.$", sentence)


def test_arms_with_some_common_seeds_say_how_many(store):
    spec = specs.study(ARMS, confirm=6, name="lost", **EIGHTH)

    def lost(config):
        is_lost = config["method"] != "mse" and config["seed"] == 10_001
        return None if is_lost else accuracy(config)

    table = compare_studies(store, [records.simulate(store, spec, lost)])[0]
    sentence = verdicts.verdict(table.lines[1], table)
    assert "(n = 5) and sgd (weight_decay=0.001) 89.00 ± 0.33 % (n = 6): a gain" in sentence
    assert ", decided after 4 of 5 common seeds (" in sentence


@pytest.fixture(scope="module")
def other_seeds(store):
    """SGD with seeds 0, 1 and 2, and another study's laplace with three fresh seeds."""
    arms = {"sgd": {"method": "mse", "weight_decay": 1e-3}}
    first = records.simulate(store, specs.study(arms, seeds=3, name="first", **EIGHTH), accuracy)
    arms = {"laplace": {**ARMS["logistic"], "distribution": "laplace", "b": 1.3}}
    spec = specs.study(arms, confirm=3, name="second", **EIGHTH)
    return [first, records.simulate(store, spec, accuracy)]


def test_arms_without_common_seeds_are_tested_for_one_look(store, other_seeds):
    tables = compare_studies(store, other_seeds)
    sentence = verdicts.verdict(tables[0].lines[1], tables[0])
    assert "Welch's t-test of different seeds, valid for one look only)" in sentence
    assert "evidence" not in sentence and "more seed" not in sentence
    text = " ".join(notes_of(tables, against_paper=False))
    assert "compared by Welch's t-test, which is valid for one look only." in text
    assert "however often you look" not in text


@pytest.mark.parametrize(
    "e_value, text",
    [
        (1.0, "no evidence"),
        (1.99, "evidence 1.9 : 1"),
        (39.99, "evidence 39 : 1"),  # 40 : 1 would decide two comparisons
        (1234.5, "evidence 1,234 : 1"),
        (1e300, "evidence over 1,000,000 : 1"),
    ],
)
def test_evidence_is_rounded_down(e_value, text):
    assert verdicts.odds(e_value) == text


def test_a_constant_difference_is_not_called_too_few_seeds(store):
    spec = specs.study(ARMS, seeds=3, name="constant", **EIGHTH)
    study = records.simulate(
        store, spec, lambda config: 90.0 if "smooth" in config["method"] else 89.0
    )
    table = compare_studies(store, [study])[0]
    sentence = verdicts.verdict(table.lines[1], table)
    assert "+1.00 points; not tested, because it is the same for every seed" in sentence


def test_all_verdicts_are_summarised_in_a_sentence(compared):
    assert verdicts.summary(by_selecting_statistic(compared)) == (
        "By the best epoch's accuracy, 2 comparisons with SGD gave 1 gain, 0 losses and "
        "1 undecided; the paper's ordering holds in 1, is contradicted in 0 and is undecided in 1."
    )


def test_the_nearest_reading_of_the_paper_is_named(store):
    def measured(config):
        """Return measured accuracies, and values farther off where there are none."""
        known = {"none": 88.72, "flip": 90.15, "crop-flip": 90.09}
        if config["output"] == "identity":
            return None if config["method"] == "mse" else 90.18  # near, but its SGD diverged
        if config["reduction"] == "mean":
            return 87.0
        if config["method"] == "mse":
            return known[config["augmentation"]]
        return 90.66 if config["augmentation"] == "crop-flip" else 88.5

    study = records.simulate(store, load("paper-readings"), measured)
    (sentence,) = verdicts.rankings(by_selecting_statistic(compare_studies(store, [study]))[0])
    assert sentence.startswith(
        "By max, the reading of logistic nearest to the paper is logistic-crop-flip with "
        "sgd-crop-flip: 0.39 points off on average (next: "
    )
    assert sentence.endswith("). With one seed, this is only a hint.")
    assert "logistic-logits" not in sentence
    assert sentence in Report(store, study).verdicts


def test_readings_of_sgd_are_judged_by_the_whole_row(store):
    paper = {1e-2: 88.14, 1e-3: 89.79, 1e-4: 89.00, 1e-5: 88.62}

    def measured(config):
        """Return figures of which flips are nearest in the best cell, and padding in the row."""
        if config["epochs"] == 384:
            return None  # diverged: a row with holes is not ranked
        if config["augmentation"] == "flip":
            return {1e-2: 87.14, 1e-3: 89.79, 1e-4: 88.00, 1e-5: 87.62}[config["weight_decay"]]
        return paper[config["weight_decay"]] - (0.5 if config["padding"] else 0.7)

    study = records.simulate(store, load("paper-readings-sgd"), measured)
    (sentence,) = verdicts.row_ranking(by_selecting_statistic(compare_studies(store, [study])))
    assert sentence == (
        "By max, the reading of SGD nearest to the paper at all of its 4 weight decays is padded: "
        "0.50 points off on average (0.0001: 88.50, paper 89.00; 0.001: 89.29, paper 89.79; "
        "0.01: 87.64, paper 88.14; 1e-05: 88.12, paper 88.62). "
        "Next: plain 0.70; last-batch 0.70; crop 0.70; flip 0.75. Seeds: 3."
    )
    assert sentence in Report(store, study).verdicts


def test_the_notes_say_which_figures_are_biased(store, compared):
    text = " ".join(notes_of(compared, against_paper=True))
    assert SELECTION["paper"].startswith("Validation uses the test set, as in the paper,")
    assert SELECTION["paper"] in text
    assert (
        "sgd, laplace: selected by the seeds shown, so their figures and verdicts are "
        "optimistically biased. Set confirm = N in the study file" in text
    )
    assert (
        "stay valid however often you look and add seeds. A verdict takes evidence of 20 : 1 times "
        "the number of arms compared with SGD (Bonferroni). None of them corrects for selecting "
        "configurations by the same seeds." in text
    )
    assert "The 95 % interval of a mean is Student's t, valid for one look." in text
    spec = specs.study(ARMS, seeds=2, confirm=2, name="fresh", **EIGHTH)
    fresh = compare_studies(store, [records.simulate(store, spec, accuracy)])
    text = " ".join(notes_of(fresh, against_paper=True))
    assert "fresh: none was used for selection" in text and "confirm = N" not in text
    assert "None of them corrects" not in text


def test_the_notes_say_what_a_verdict_does_not_cover(store, compared):
    several = "The 5 % of false verdicts hold for each of the 2 tables, not for all together."
    assert several in notes_of(compared, against_paper=False)
    assert several not in notes_of(compared[:1], against_paper=False)
    study = records.simulate(store, specs.study(ARMS, seeds=2, name="asked", **EIGHTH), accuracy)
    asked = notes_of(compare_studies(store, [study], "laplace"), against_paper=False)
    chosen = (
        "The reference is laplace because of --reference. No correction covers a reference that "
        "was chosen after a look at the results."
    )
    assert chosen in asked and chosen not in notes_of(compared, against_paper=False)


@pytest.mark.parametrize(
    "fails, note",
    [
        (lambda c: True, "laplace: every fresh seed failed, so no arm shows fresh seeds."),
        (
            lambda c: c["seed"] == 10_000,
            "laplace on digits (small, fraction 0.2): the figures exclude 1 failed seed.",
        ),
    ],
    ids=["all", "one"],
)
def test_failed_fresh_seeds_are_noted(store, fails, note):
    def diverging(config):
        fresh = config["seed"] >= 10_000 and config["method"] == "smoothing"
        return None if fresh and fails(config) else 90.0 + config["seed"] % 7

    arms = {"sgd": ARMS["sgd"], "laplace": ARMS["laplace"]}
    spec = specs.study(arms, name=f"failing-{len(note)}", seeds=2, confirm=3)
    found = compare_studies(store, [records.simulate(store, spec, diverging)])
    notes = " ".join(notes_of(found, against_paper=False))
    assert note in notes and "confirm = N" not in notes


def test_the_notes_list_deviations_from_the_paper(store):
    other = {**EIGHTH, "epochs": 10, "batch_size": 64}
    spec = specs.study(ARMS, name="other", **other)
    found = compare_studies(store, [records.simulate(store, spec, accuracy)])
    text = notes_of(found, against_paper=True)
    assert (
        "Different from the paper's protocol: batch_size 64 (paper 128), epochs 10 (paper 48)."
        in text
    )
    assert not any("protocol" in note for note in notes_of(found, against_paper=False))


@pytest.mark.parametrize(
    "p, text",
    [(None, "–"), (0.0004, "< 0.001"), (0.0312, "0.031"), (0.0996, "0.100"), (0.42, "0.42")],
)
def test_probabilities_are_rounded(p, text):
    assert verdicts.probability(p) == text


def test_arms_that_changed_their_device_are_named(compared):
    table = compared[0]
    sgd, other = (replace(line.arm, devices=("cpu",)) for line in table.lines[:2])
    moved = replace(other, devices=("NVIDIA A100", "cpu"))

    def notes(arm):
        line = replace(table.lines[1], arm=arm, reference=sgd)
        found = notes_of([replace(table, lines=[line])], against_paper=False)
        return [note for note in found if "trained on" in note]

    assert notes(other) == []
    assert notes(moved) == [f"{moved.label} was trained on several devices: NVIDIA A100, cpu."]
    elsewhere = replace(other, devices=("NVIDIA A100",))
    assert notes(elsewhere) == [f"{other.label} was trained on NVIDIA A100, {sgd.label} on cpu."]
