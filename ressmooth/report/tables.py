"""Show studies and comparisons: as sheets with sentences, and as CSV and JSON records."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ressmooth.formatting import (
    count,
    csv_text,
    duration,
    last_line,
    printable,
    settings,
    terminal_width,
    wrap,
)
from ressmooth.report.compare import (
    ArmResult,
    Comparison,
    Line,
    arm_results,
    by_selecting_statistic,
    compare_studies,
)
from ressmooth.report.measure import MEASURES, MISSING, Measure
from ressmooth.report.notes import notes
from ressmooth.report.race import race_sheet
from ressmooth.report.reference import reference_name
from ressmooth.report.sheet import Sheet, as_latex, as_markdown, as_text
from ressmooth.report.verdicts import condition_text, probability, verdict_sentences
from ressmooth.store import RunRow, State, Store, StudyRow, TrialRow

TRIALS_PER_PAGE = 100


def sheets(comparisons: Iterable[Comparison], *, against_paper: bool) -> Iterator[Sheet]:
    for comparison in comparisons:
        yield comparison_sheet(comparison)
        if against_paper and comparison.has_paper:
            yield paper_sheet(comparison)


def comparison_sheet(comparison: Comparison) -> Sheet:
    """Show each arm's selected configuration, its figures, and its difference to the reference."""
    studies = " + ".join(dict.fromkeys(line.arm.study for line in comparison.lines))
    measure, statistic = comparison.measure, comparison.statistic
    title = f"{studies}: {measure.title(statistic)}, {condition_text(comparison.condition)}"
    head = ["arm", "configuration", "trials", "n", measure.word(statistic), "95 % interval"]
    head += [_minus_reference(comparison), "95 % interval", "p"]
    rows = [
        [
            line.arm.label,
            settings(line.arm.searched) or MISSING,
            _trials(line.arm),
            str(line.sample.n),
            measure.mean_and_sd(line.sample),
            measure.interval(line.sample.interval),
            *_difference(line),
        ]
        for line in comparison.lines
    ]
    return Sheet(title, head, rows, _best(comparison), details=(1, 2))


def _minus_reference(comparison: Comparison) -> str:
    return f"− {reference_name(comparison.lines).removeprefix('the ')}"


def _trials(arm: ArmResult) -> str:
    """Return how many trials the arm had and how they ended: 10 trials (3 complete, 7 pruned)"""
    ends = ", ".join(f"{number} {state}" for state, number in arm.trials.items())
    return f"{count(sum(arm.trials.values()), 'trial')} ({ends})"


def paper_sheet(comparison: Comparison) -> Sheet:
    """Show the paper's figures, how far ours are from them, and whether its ordering holds."""
    measure, statistic = comparison.measure, comparison.statistic
    title = f"{measure.title(statistic)}, compared with the paper"
    head = ["arm", statistic, "paper", "ours − paper", _minus_reference(comparison)]
    rows = [
        [
            line.arm.label,
            measure.mean_and_sd(line.sample),
            measure.number(line.paper),
            measure.signed(line.from_paper),
            measure.signed(line.difference.mean if line.difference else None),
            measure.signed(line.paper_difference),
            line.ordering or MISSING,
        ]
        for line in comparison.lines
    ]
    return Sheet(title, [*head, "paper's − SGD", "paper's ordering"], rows, _best(comparison))


def _difference(line: Line) -> list[str]:
    tested = line.difference
    if tested is None:
        return [MISSING] * 3
    measure = line.arm.measure
    interval = measure.interval(tested.interval, signs=True)
    return [measure.signed(tested.mean), interval, probability(tested.p)]


def _best(comparison: Comparison) -> int | None:
    """Return the line with the best mean. None in a tie."""
    means = [line.sample.mean for line in comparison.lines]
    best = max(means, key=comparison.measure.score)
    return means.index(best) if means.count(best) == 1 else None


def comparison_text(comparisons: Sequence[Comparison], *, against_paper: bool) -> str:
    """Return the comparison for a terminal, as wide as that is."""
    parts = [as_text(sheet) for sheet in sheets(comparisons, against_paper=against_paper)]
    return "\n\n".join([*parts, prose(_sentences(comparisons, against_paper))])


def prose(sentences: Iterable[str]) -> str:
    """Return sentences for a terminal, wrapped at spaces."""
    width = terminal_width()
    return "\n".join(line for text in sentences for line in wrap(text, width))


def markdown(comparisons: Sequence[Comparison], *, against_paper: bool) -> str:
    parts = [
        f"**{sheet.title}**\n\n{as_markdown(sheet)}"
        for sheet in sheets(comparisons, against_paper=against_paper)
    ]
    return "\n".join(parts + [f"- {each}" for each in _sentences(comparisons, against_paper)])


def _sentences(comparisons: Sequence[Comparison], against_paper: bool) -> list[str]:
    return verdict_sentences(comparisons) + notes(comparisons, against_paper=against_paper)


def latex(comparisons: Sequence[Comparison], *, against_paper: bool) -> str:
    """Return tables for the booktabs package, after the notes as comments."""
    comments = [f"% {note}" for note in notes(comparisons, against_paper=against_paper)]
    tables = map(as_latex, sheets(comparisons, against_paper=against_paper))
    return "\n".join([*comments, *tables])


def as_csv(comparisons: Iterable[Comparison]) -> str:
    texts = ("configuration", "trials")
    rows = [{**row, **{k: settings(row[k]) for k in texts}} for row in records(comparisons)]
    return csv_text(rows).rstrip("\n")


def as_json(comparisons: Iterable[Comparison]) -> str:
    return json.dumps(records(comparisons), indent=1, ensure_ascii=False)


def records(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """Return a record per line of the comparisons."""
    return [_record(line, table) for table in comparisons for line in table.lines]


def _record(line: Line, comparison: Comparison) -> dict[str, Any]:
    arm, tested = line.arm, line.difference
    low, high = line.sample.interval or (None, None)
    difference_low, difference_high = (tested and tested.interval) or (None, None)
    evidence, fixed_n = tested and tested.evidence, tested and tested.fixed_n
    fixed_n_low, fixed_n_high = fixed_n.interval if fixed_n else (None, None)
    return {
        "study": arm.study,
        **comparison.condition,
        "arm": arm.name,
        "metric": comparison.measure.name,
        "statistic": comparison.statistic,
        "configuration": arm.params,
        "tried": arm.tried,
        "trials": arm.trials,
        "fresh": arm.is_fresh,
        "trial": arm.trial,
        "runs": list(arm.runs),
        "values": line.sample.values,
        "n": line.sample.n,
        "failed": arm.failed,
        "mean": line.sample.mean,
        "sd": line.sample.sd,
        "low": low,
        "high": high,
        "baseline": line.reference.name if line.reference else None,
        "difference": tested.mean if tested else None,
        "difference_low": difference_low,
        "difference_high": difference_high,
        "p": tested.p if tested else None,
        "test": tested.test if tested else None,
        "pairs": tested.n if tested and tested.is_paired else None,
        "evidence": evidence.e_value if evidence else None,
        "decided_after": evidence.decided_after if evidence else None,
        "more_seeds": tested.more_seeds if tested else None,
        "fixed_n_p": fixed_n.p if fixed_n else None,
        "fixed_n_low": fixed_n_low,
        "fixed_n_high": fixed_n_high,
        "paper": line.paper,
        "from_paper": line.from_paper,
        "paper_difference": line.paper_difference,
        "ordering": line.ordering,
    }


def overview(store: Store) -> str:
    """Return the studies of a store for a terminal."""
    rows = []
    run_states = store.run_states()
    for study in store.studies():
        states = run_states.get(study.id, Counter())
        common = study.spec["settings"]
        facts = [
            f"{common.get('dataset', 'digits')} ({common.get('model', 'small')})",
            states_text(states, study),
            _best_arm(arm_results(study, store.winners(study.id))),
            f"held by {study.held_by}" if study.held_by else "",
        ]
        since = f"{study.created_at:%Y-%m-%d %H:%M}"
        rows.append([study.name, "; ".join(filter(None, facts)), str(states.total()), since])
    return as_text(Sheet("", ("study", "facts", "runs", "since"), rows, details=(1,)))


def states_text(states: Mapping[State, int], study: StudyRow) -> str:
    """Return how many runs are in which state: 2 complete, 1 waiting"""
    return ", ".join(f"{number} {_state_text(state, study)}" for state, number in states.items())


def _state_text(state: str, study: StudyRow) -> str:
    """Return a run's state. What a dead launcher was running is interrupted."""
    is_interrupted = state == State.RUNNING and study.held_by is None
    return "interrupted" if is_interrupted else state


def _best_arm(arms: Sequence[ArmResult]) -> str:
    if not arms:
        return ""
    measure = arms[0].measure
    best = max((arm.selecting_sample.mean for arm in arms), key=measure.score)
    names = [arm.name for arm in arms if arm.selecting_sample.mean == best]
    figure = measure.amount(best) + ("" if measure.name == "accuracy" else f" {measure.label}")
    return f"{len(names)} arms tie at {figure}" if len(names) > 1 else f"best: {names[0]} {figure}"


def details(store: Store, study: StudyRow, page: int = 1) -> str:
    """Return a page of a study's trials with their runs, then the comparison, for a terminal."""
    trials = store.trials_page(study.id, page, TRIALS_PER_PAGE)
    measure = MEASURES[study.spec["settings"].get("metric", "accuracy")]
    head = ("arm", "configuration", "value", "run", "seed", "epochs", "state", measure.word("max"))
    rows = [row for trial in trials for row in _run_rows(trial, study, measure)]
    errors = [
        f"run {run.id} ({trial.arm}, seed {run.seed}): {last_line(run.error)}"
        for trial in trials
        for run in trial.runs
        if run.error
    ]
    comparisons = by_selecting_statistic(compare_studies(store, [study]))
    placings = store.race(study.id)
    race = race_sheet(store.trials(study.id), placings) if placings else None
    parts = [
        _submission(study),
        as_text(Sheet(study.name, (*head, "mean", "time"), rows, details=(1,))),
        prose(errors),
        as_text(race) if race else "",
        comparison_text(comparisons, against_paper=False),
    ]
    return "\n\n".join(filter(None, parts))


def _submission(study: StudyRow) -> str:
    """Return who submitted or launched a study last, and when."""
    owner = f"owner: {printable(study.owner)}" if study.owner else ""
    when = f"submitted {study.submitted_at:%Y-%m-%d %H:%M} UTC" if study.submitted_at else ""
    return ", ".join(filter(None, (owner, when)))


def _epochs(run: RunRow) -> str:
    """Return the epochs that are recorded, and those that another run has trained."""
    if run.forked_at is None:
        return f"{run.last_epoch}/{run.config['epochs']}"
    return f"{run.last_epoch}/{run.config['epochs']}, {run.forked_at} of run {run.forked_from}"


def _run_rows(trial: TrialRow, study: StudyRow, measure: Measure) -> Iterator[list[str]]:
    arm = trial.arm if trial.confirms is None else f"{trial.arm} (fresh seeds)"
    value = measure.number(trial.value, "")
    for run in trial.runs:
        yield [
            arm,
            settings(trial.params) or MISSING,
            value,
            str(run.id),
            str(run.seed),
            _epochs(run),
            _state_text(run.state, study),
            *(measure.number(run.result(measure.name, each), "") for each in ("max", "mean")),
            duration(run.seconds) if run.seconds is not None else "",
        ]
        value = ""
