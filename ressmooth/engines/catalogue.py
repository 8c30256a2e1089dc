"""List the bundled studies, for `--list`. Free of torch."""

from textwrap import TextWrapper

from ressmooth.config import RunConfig
from ressmooth.spec import StudySpec, bundled, load

INDENTED = TextWrapper(80, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
HEAD = ("study", "runs", "epochs")


def catalogue() -> str:
    """Return what each bundled study asks, with its runs and epochs, the shortest first."""
    lines = [_line(*HEAD)]
    for spec in sorted(map(load, bundled()), key=planned_epochs):
        runs = sum(number for _, number in planned_runs(spec))
        lines.append(_line(spec.name, f"{runs:,}", f"{planned_epochs(spec):,}"))
        lines += INDENTED.wrap(spec.description)
    return "\n".join(lines)


def _line(study: str, runs: str, epochs: str) -> str:
    return f"{study:32}{runs:>8}{epochs:>10}"


def planned_epochs(spec: StudySpec) -> int:
    return sum(config.epochs * number for config, number in planned_runs(spec))


def planned_runs(spec: StudySpec) -> list[tuple[RunConfig, int]]:
    """Return an example of each kind of run, and how many runs of it are planned."""
    runs = [(b.example(), spec.planned_trials(b) * spec.seeds) for b in spec.branches]
    return runs + [(example, spec.confirm) for example in spec.confirming]
