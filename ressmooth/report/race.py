"""Show a race of seeds: who was dropped when and why, and which verdicts it decided."""

from collections.abc import Mapping, Sequence

from ressmooth.formatting import settings
from ressmooth.report.measure import MISSING
from ressmooth.report.sheet import Sheet
from ressmooth.report.verdicts import condition_text
from ressmooth.store import Placing, RaceResult, TrialRow

HEAD = ("arm", "configuration", "result", "seeds", "against", "why")


def race_sheet(trials: Sequence[TrialRow], placings: Sequence[Placing]) -> Sheet | None:
    """Return the race as a table, with those who are still in it. None without a race."""
    if not placings:
        return None
    placed = {placing.trial_id: placing for placing in placings}
    by_id = {trial.id: trial for trial in trials}
    searched = [t for t in trials if t.confirms is None and (t.value is not None or t.id in placed)]
    has_conditions = len({str(trial.condition) for trial in searched}) > 1
    rows = []
    for trial in searched:
        row = _row(trial, placed.get(trial.id), by_id)
        rows.append([condition_text(trial.condition), *row] if has_conditions else row)
    is_over = all(trial.id in placed for trial in searched)
    title = "The race of seeds" + ("" if is_over else ", which is not over yet")
    return Sheet(title, ("condition", *HEAD) if has_conditions else HEAD, rows, details=(1,))


def _row(trial: TrialRow, placing: Placing | None, by_id: Mapping[int, TrialRow]) -> list[str]:
    name = [trial.arm, settings(trial.params) or MISSING]
    if placing is None:
        return [*name, "in the race", str(len(trial.runs)), MISSING, MISSING]
    rival = by_id.get(placing.rival_id or 0)
    against = f"{rival.arm} {settings(rival.params)}".rstrip() if rival else MISSING
    return [*name, placing.result, str(placing.seeds), against, _reason(placing)]


def _reason(placing: Placing) -> str:
    """Say why the race ended for a configuration."""
    percent = 100 * (placing.chance or 0.0)
    chance = f"{percent:.1f} %" if percent >= 0.05 else "under 0.1 %"
    match placing.result:
        case RaceResult.DROPPED:
            return f"{chance} chance to pass it"
        case RaceResult.BEHIND:
            return "worse on average, after the last seed"
        case RaceResult.UNDECIDED if not placing.chance:
            return "not decided by the last seed"
        case RaceResult.UNDECIDED:
            return f"{chance} chance that more seeds decide"
        case RaceResult.REFERENCE:
            return "best of its arm"
    return f"evidence {placing.e_value or 0.0:.3g} : 1"
