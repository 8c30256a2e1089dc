"""Write a study's report: a self-contained HTML page, the same in Markdown, and its figures."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape

from ressmooth import __version__
from ressmooth.formatting import count, duration, glue, plain_markdown, settings
from ressmooth.report import cost, figures, paper, pictures, style, tables, verdicts
from ressmooth.report.compare import arm_results, by_selecting_statistic, compare_arms, conditions
from ressmooth.report.measure import MEASURES, capitalised
from ressmooth.report.notes import notes
from ressmooth.report.paper_tables import PaperTables
from ressmooth.report.parallel import Panel
from ressmooth.report.race import race_sheet
from ressmooth.report.reference import reference_name
from ressmooth.report.sheet import Sheet, as_markdown
from ressmooth.report.tree import saved
from ressmooth.spec import read_stored
from ressmooth.store import RunRow, Store, StudyRow, TrialRow

MAX_WIDTHS = 6  # curves in a picture of the annealing
MAX_RUNS = 1000  # rows of the table of runs
MAX_NAME = 60  # characters of a panel's name that its file name keeps
PAPER_COST = " The paper reports 1.67 times SGD's time for ResNet56 and 1.25 times for DenseNet."
PAGES = {"page.html": "index.html", "page.md": "report.md"}  # template -> file

Section = tuple[str, str, list[Panel]]  # title, text, panels
TITLE_END = " · ressmooth</title>".encode()  # of every page that was ever written


class Report:
    """The contents of a study's report, read from the Store."""

    def __init__(self, store: Store, study: StudyRow) -> None:
        self.study, self.spec = study, read_stored(study.spec)
        self.trials = store.trials(study.id)
        self.race_sheet = race_sheet(self.trials, store.race(study.id))
        self.arms = arm_results(study, store.winners(study.id))
        self.comparisons = compare_arms(store, self.arms)
        has_paper = any(table.has_paper for table in self.comparisons)
        self.notes = notes(self.comparisons, against_paper=has_paper)
        self.sheets = list(tables.sheets(self.comparisons, against_paper=has_paper))
        published = store.published_figures(paper.problem(trial.condition) for trial in self.trials)
        self.measure = MEASURES[self.spec.metric]
        is_published = self.measure.name == "accuracy"
        self.paper_tables = (
            PaperTables(published, self.arms, self.trials).tables() if is_published else []
        )
        self.curves = {run: store.curve(run) for arm in self.arms for run in arm.runs}
        self.costs = cost.costs(self.trials, self.arms, self.curves)
        rows = [each.row for each in self.costs]
        self.reference = reference_name(line for table in self.comparisons for line in table.lines)
        head = (*cost.HEAD, f"ratio to {self.reference}")
        self.cost_sheet = Sheet("Time and cost per arm", head, rows, details=(1,))
        self._numbers = {arm: number for number, arm in enumerate(self.spec.arms)}

    @property
    def verdicts(self) -> list[str]:
        """Verdicts by the statistic that selects. The other statistics are in the tables."""
        if found := verdicts.verdict_sentences(by_selecting_statistic(self.comparisons)):
            return found
        named, names = self.spec.reference, [arm.name for arm in self.arms]
        if named and named not in names:
            return [f"Nothing was compared with {named}: no trial of it is complete."]
        first = "SGD" if any(arm.method == "sgd" for arm in self.arms) else names[0]
        return [f"Nothing was compared with {named or first}: no other arm is complete."]

    @property
    def shown_runs(self) -> list[tuple[TrialRow, RunRow]]:
        runs = ((trial, run) for trial in self.trials for run in trial.runs)
        return list(itertools.islice(runs, MAX_RUNS))

    @property
    def hidden_runs(self) -> str:
        """Return a sentence about the runs that are left out, or nothing."""
        number = sum(len(trial.runs) for trial in self.trials) - MAX_RUNS
        export = f"ressmooth export {self.study.name} --table runs"
        return (
            f"{number:,} more runs are in the database; print all: {export}" if number > 0 else ""
        )

    @property
    def runs_sheet(self) -> Sheet:
        """All runs, so that each number can be traced to its row."""
        statistics = ("max", "mean", "test")
        head = ("arm", "configuration", "trial", "run", "seed", "state")
        figures = tuple(map(self.measure.word, statistics))
        rows = [
            [
                trial.arm if trial.confirms is None else f"{trial.arm} (confirms {trial.confirms})",
                settings(trial.params) or "–",
                str(trial.id),
                str(run.id),
                str(run.seed),
                run.state,
                *(self.measure.number(run.result(self.measure.name, s)) for s in statistics),
                (run.weights_sha256 or "–")[:12],
            ]
            for trial, run in self.shown_runs
        ]
        return Sheet("Runs", (*head, *figures, "weights"), rows, details=(1,))

    @property
    def provenance(self) -> list[str]:
        runs = [run for trial in self.trials for run in trial.runs]
        states = Counter(run.state for run in runs)
        seconds = sum(run.seconds or 0.0 for run in runs)
        devices = dict.fromkeys(
            f"{run.device}, {count(run.threads or 0, 'thread')}" for run in runs if run.device
        )
        commits = sorted({run.git_commit for run in runs if run.git_commit})
        versions = dict.fromkeys(
            f"{name} {version}" for run in runs for name, version in (run.versions or {}).items()
        )
        plugins = self.spec.plugins.files
        hashed = [run for run in runs if run.data_sha256]
        data = dict.fromkeys((run.config["dataset"], run.data_sha256) for run in hashed)
        fresh = f", {self.spec.confirm} fresh ones for confirmation" if self.spec.confirm else ""
        lines = [
            ", ".join(f"{count(n, 'run')} {state}" for state, n in states.items()),
            f"{duration(seconds)} of training on {'; '.join(devices) or 'no device yet'}",
            f"{self._seeds} per trial{fresh}",
            saved(self.trials),
            ", ".join(versions),
            f"commit {', '.join(commits)}" if commits else "",
            *(f"plug-in {plugin.file}, SHA-256 {plugin.sha256}" for plugin in plugins),
            *(f"{name}, SHA-256 {sha256}" for name, sha256 in data),
            f"owner {self.study.owner}" if self.study.owner else "",
            f"started {self.study.created_at:%Y-%m-%d %H:%M} UTC, study {self.study.uid}",
            f"report by ressmooth {__version__}",
        ]
        return [line for line in lines if line]

    @property
    def _seeds(self) -> str:
        if self.spec.is_race:
            return f"{self.spec.seeds} to {self.spec.at_most} racing seeds"
        return count(self.spec.seeds, "seed")

    @property
    def sections(self) -> list[Section]:
        widths = [
            figures.metric_by_width(table, self.trials, self._numbers) for table in self.comparisons
        ]
        sections: list[Section] = [
            (
                f"{capitalised(self.measure.label)} against the width b",
                f"Every configuration of the search, compared with {self.reference}.",
                list(filter(None, widths)),
            ),
            ("Learning curves", "The selected configuration of each arm.", self._learning_curves()),
            (
                "The search",
                "Importances need at least two parameters that vary and "
                f"{figures.MIN_TRIALS} complete trials with different values.",
                figures.search_panels(self.spec, self.trials, self._numbers),
            ),
            (
                "Time and cost",
                "Wall-clock time, which includes the effect of other load on the machine."
                + (PAPER_COST if self.reference == "SGD" else ""),
                figures.cost_panels(self.costs),
            ),
            ("The method", "The curves that the arms' parameters control.", self._method()),
        ]
        return [section for section in sections if section[-1]]

    def _learning_curves(self) -> list[Panel]:
        panels = []
        for condition in conditions(self.arms):
            arms = [arm for arm in self.arms if arm.condition == condition]
            text = verdicts.condition_text(condition)
            panels += figures.learning_curves(arms, self.curves, text, self._numbers)
        return panels

    def _method(self) -> list[Panel]:
        residual = "Diffusivity against the normalised residual for several"
        captions = [
            ("sigmoid-1", f"{residual} steepnesses α."),
            ("sigmoid-2", f"{residual} scales s."),
            ("annealing-1", "Scale over training, laplace."),
            ("annealing-2", "Scale over training, logistic."),
        ]
        annealings = pictures.annealings(self._widths("laplace"), self._widths("logistic"))
        draws = [*pictures.sigmoids(), *annealings]
        return [Panel(*names, draw) for names, draw in zip(captions, draws, strict=True)]

    def _widths(self, distribution: str) -> Sequence[float]:
        """Return the widths that were trained, or the paper's if there are none or too many."""
        configs = [trial.runs[0].config for trial in self.trials]
        kind = ("smoothing", distribution)
        widths = sorted({c["b"] for c in configs if (c["method"], c["distribution"]) == kind})
        return widths if 0 < len(widths) <= MAX_WIDTHS else pictures.WIDTHS


def is_report(path: Path) -> bool:
    """Tell whether a file is the page of a report."""
    return path.is_file() and TITLE_END in path.read_bytes()[:1000]


def write(report: Report, directory: Path) -> None:
    """Write index.html, report.md, figures/*.svg, comparison.csv and comparison.json."""
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    numbers = itertools.count(1)
    sections = [
        (title, text, [_draw(panel, next(numbers), directory) for panel in panels])
        for title, text, panels in report.sections
    ]
    loader = PackageLoader("ressmooth.report", ".")
    environment = Environment(
        loader=loader, autoescape=select_autoescape(), trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"markdown": as_markdown, "glue": glue}
    for template, name in PAGES.items():
        is_markdown = template.endswith(".md")
        pages = environment.overlay(finalize=_plain) if is_markdown else environment
        page = pages.get_template(template)
        text = page.render(report=report, sections=sections, paper_runs=paper.SEEDS)
        (directory / name).write_text(text.rstrip() + "\n")
    (directory / "comparison.csv").write_text(tables.as_csv(report.comparisons) + "\n")
    (directory / "comparison.json").write_text(tables.as_json(report.comparisons) + "\n")


def _plain(value: object) -> object:
    return plain_markdown(value) if isinstance(value, str) else value


def _draw(panel: Panel, number: int, directory: Path) -> dict[str, str]:
    """Save a panel as SVG. Return what the pages show of it."""
    name = f"{number:02d}-{panel.name[:MAX_NAME]}"  # the number keeps cut names apart
    svg = style.svg(style.picture(panel.draw), name)
    (directory / "figures" / f"{name}.svg").write_text(style.on_white(svg))
    return {"name": name, "caption": panel.caption, "svg": style.in_page(svg)}
