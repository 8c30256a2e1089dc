"""Write a study's report: a self-contained HTML page, the same in Markdown, and its figures."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape

from ressmooth import __version__, formatting
from ressmooth.formatting import duration, settings
from ressmooth.report import cost, figures, paper, style, tables, verdicts
from ressmooth.report.compare import (
    ArmResult,
    Comparison,
    arm_results,
    by_selecting_statistic,
    compare,
    conditions,
)
from ressmooth.report.figures import Panel
from ressmooth.report.paper_tables import PaperTable, PaperTables
from ressmooth.report.tables import Sheet
from ressmooth.spec import read_stored
from ressmooth.store import EpochRow, PublishedFigure, Store, StudyRow, TrialRow

MAX_WIDTHS = 6  # curves in a picture of the annealing
MAX_NAME = 60  # characters of a panel's name that its file name keeps
PAGES = {"page.html": "index.html", "page.md": "report.md"}  # template -> file


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    panels: list[Panel]


@dataclass(frozen=True)
class DrawnPanel:
    name: str  # of its file
    caption: str
    svg: str


class Report:
    """The contents of a study's report, read from the Store."""

    def __init__(self, store: Store, study: StudyRow) -> None:
        self.study, self.spec = study, read_stored(study.spec)
        self.trials: list[TrialRow] = store.trials(study.id)
        self.arms: list[ArmResult] = arm_results(study, store.winners(study.id))
        trained = [paper.problem(trial.condition) for trial in self.trials]
        self.published: list[PublishedFigure] = store.published_figures(trained)
        self.comparisons: list[Comparison] = compare(self.arms, self.published)
        shown = [run for arm in self.arms for run in arm.runs]
        self.curves: dict[int, list[EpochRow]] = {run: store.curve(run) for run in shown}

    @cached_property
    def has_paper(self) -> bool:
        return any(table.has_paper for table in self.comparisons)

    @property
    def verdicts(self) -> list[str]:
        """Verdicts by the statistic that selects. The other statistics are in the tables."""
        found = verdicts.verdict_sentences(by_selecting_statistic(self.comparisons))
        if found:
            return found
        missing = "other" if any(arm.method == "sgd" for arm in self.arms) else "SGD"
        return [f"Nothing was compared with SGD: no {missing} arm is complete."]

    @property
    def notes(self) -> list[str]:
        return verdicts.notes(self.comparisons, against_paper=self.has_paper)

    @cached_property
    def paper_tables(self) -> list[PaperTable]:
        return PaperTables(self.published, self.arms, self.trials).tables()

    @property
    def sheets(self) -> list[Sheet]:
        return tables.sheets(self.comparisons, against_paper=self.has_paper)

    @cached_property
    def costs(self) -> list[cost.Cost]:
        return cost.costs(self.trials, self.arms, self.curves)

    @property
    def cost_sheet(self) -> Sheet:
        return Sheet("Time and cost per arm", cost.HEAD, [each.row for each in self.costs])

    @property
    def runs_sheet(self) -> Sheet:
        """All runs, so that each number can be traced to its row."""
        head = ("arm", "configuration", "trial", "run", "seed", "state", "max", "mean", "test")
        rows = [
            [
                trial.arm if trial.confirms is None else f"{trial.arm} (confirms {trial.confirms})",
                settings(trial.params) or "–",
                str(trial.id),
                str(run.id),
                str(run.seed),
                run.state,
                *(
                    "–" if accuracy is None else f"{accuracy:.2f}"
                    for accuracy in (run.max_acc, run.mean_acc, run.test_acc)
                ),
                (run.weights_sha256 or "–")[:12],
            ]
            for trial in self.trials
            for run in trial.runs
        ]
        return Sheet("Runs", (*head, "weights"), rows)

    @property
    def provenance(self) -> list[str]:
        """Where, when and with which versions the study was trained."""
        runs = [run for trial in self.trials for run in trial.runs]
        states = Counter(run.state for run in runs)
        seconds = sum(run.seconds or 0.0 for run in runs)
        devices = dict.fromkeys(
            f"{run.device}, {formatting.count(run.threads or 0, 'thread')}"
            for run in runs
            if run.device
        )
        commits = sorted({run.git_commit for run in runs if run.git_commit})
        versions = dict.fromkeys(
            f"{name} {version}" for run in runs for name, version in (run.versions or {}).items()
        )
        fresh = f", {self.spec.confirm} fresh ones for confirmation" if self.spec.confirm else ""
        lines = [
            ", ".join(f"{formatting.count(n, 'run')} {state}" for state, n in states.items()),
            f"{duration(seconds)} of training on {'; '.join(devices) or 'no device yet'}",
            f"{formatting.count(self.spec.seeds, 'seed')} per trial{fresh}",
            ", ".join(versions),
            f"commit {', '.join(commits)}" if commits else "",
            f"started {self.study.created_at:%Y-%m-%d %H:%M} UTC, study {self.study.uid}",
            f"report by ressmooth {__version__}",
        ]
        return [line for line in lines if line]

    def sections(self) -> Iterator[Section]:
        widths = [
            panel
            for table in self.comparisons
            if (panel := figures.accuracy_by_width(table, self.trials, self._numbers))
        ]
        if widths:
            text = "Every configuration of the search, compared with SGD."
            yield Section("Accuracy against the width b", text, widths)
        curves = self._learning_curves()
        if curves:
            yield Section("Learning curves", "The selected configuration of each arm.", curves)
        search = figures.search_panels(self.spec, self.trials)
        if search:
            text = (
                "Importances need at least two parameters that vary and four complete trials with "
                "different accuracies."
            )
            yield Section("The search", text, search)
        if any(each.seconds for each in self.costs):
            text = (
                "Wall-clock time, which includes the effect of other load on the machine. The "
                "paper reports 1.67 times SGD's time for ResNet56 and 1.25 times for DenseNet."
            )
            yield Section("Time and cost", text, figures.cost_panels(self.costs))
        yield Section("The method", "The curves that the arms' parameters control.", self._method())

    def _learning_curves(self) -> list[Panel]:
        panels = []
        for condition in conditions(self.arms):
            arms = [arm for arm in self.arms if arm.condition == condition]
            text = verdicts.condition_text(condition)
            panels += figures.learning_curves(arms, self.curves, text, self._numbers)
        return panels

    @cached_property
    def _numbers(self) -> figures.Numbers:
        return {arm: number for number, arm in enumerate(self.spec.arms)}

    def _method(self) -> list[Panel]:
        residual = "Diffusivity against the normalised residual for several"
        captions = [
            ("sigmoid-1", f"{residual} steepnesses α."),
            ("sigmoid-2", f"{residual} scales s."),
            ("annealing-1", "Scale over training, laplace."),
            ("annealing-2", "Scale over training, logistic."),
        ]
        annealings = figures.annealings(self._widths("laplace"), self._widths("logistic"))
        draws = [*figures.sigmoids(), *annealings]
        return [Panel(*names, draw) for names, draw in zip(captions, draws, strict=True)]

    def _widths(self, distribution: str) -> Sequence[float]:
        """Return the widths that were trained, or the paper's if there are none or too many."""
        configs = [trial.runs[0].config for trial in self.trials]
        kind = ("smoothing", distribution)
        widths = sorted({c["b"] for c in configs if (c["method"], c["distribution"]) == kind})
        return widths if 0 < len(widths) <= MAX_WIDTHS else figures.WIDTHS


def write(report: Report, directory: Path) -> None:
    """Write index.html, report.md, figures/*.png, comparison.csv and comparison.json."""
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    numbers = count(1)
    sections = [
        (section, [_draw(panel, next(numbers), directory) for panel in section.panels])
        for section in report.sections()
    ]
    environment = Environment(
        loader=PackageLoader("ressmooth.report", "."),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["markdown"] = tables.markdown_table
    for template, name in PAGES.items():
        page = environment.get_template(template)
        text = page.render(report=report, sections=sections, paper_runs=paper.SEEDS)
        (directory / name).write_text(text.rstrip() + "\n")
    (directory / "comparison.csv").write_text(tables.as_csv(report.comparisons) + "\n")
    (directory / "comparison.json").write_text(tables.as_json(report.comparisons) + "\n")


def _draw(panel: Panel, number: int, directory: Path) -> DrawnPanel:
    name = f"{number:02d}-{panel.name[:MAX_NAME]}"  # the number keeps cut names apart
    figure = style.picture(panel.draw)
    style.save(figure, directory / "figures" / f"{name}.png")
    return DrawnPanel(name, panel.caption, style.inline_svg(figure, name))
