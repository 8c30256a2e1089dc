"""A study's report: a page that needs nothing else, the same in Markdown, and its figures."""

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
from ressmooth.report.compare import Arm, Comparison, arms_of, compare, conditions, leading, problem
from ressmooth.report.figures import Panel
from ressmooth.report.paper_tables import Layout, PaperTable
from ressmooth.report.tables import Sheet
from ressmooth.spec import read_stored
from ressmooth.store import EpochRow, PublishedFigure, RunRow, Store, StudyRow, TrialRow

MOST_WIDTHS = 6  # curves in the picture of the annealing


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    panels: list[Panel]


@dataclass(frozen=True)
class Drawn:
    name: str  # of its file
    caption: str
    svg: str


class Report:
    """What is shown of a study, read from the Store."""

    def __init__(self, store: Store, study: StudyRow) -> None:
        self.study, self.spec = study, read_stored(study.spec)
        self.trials: list[TrialRow] = store.trials(study.id)
        self.arms: list[Arm] = arms_of(study, store.winners(study.id))
        trained = [problem(trial.condition) for trial in self.trials]
        self.published: list[PublishedFigure] = store.published_figures(trained)
        self.comparisons: list[Comparison] = compare(self.arms, self.published)
        shown = [run for arm in self.arms for run in arm.runs]
        self.curves: dict[int, list[EpochRow]] = {run: store.curve(run) for run in shown}

    @cached_property
    def has_paper(self) -> bool:
        return any(table.has_paper for table in self.comparisons)

    @property
    def verdicts(self) -> list[str]:
        """By the statistic that selects; the others are in the tables."""
        found = tables.said(leading(self.comparisons))
        if found:
            return found
        has_sgd = any(arm.method == "sgd" for arm in self.arms)
        missing = "no other arm is complete beside it" if has_sgd else "no SGD arm is complete"
        return [f"Nothing was compared with SGD: {missing}."]

    @property
    def notes(self) -> list[str]:
        return verdicts.notes(self.comparisons, against_paper=self.has_paper)

    @cached_property
    def paper_tables(self) -> list[PaperTable]:
        return list(Layout(self.published, self.arms, self.trials).tables())

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
        """Every run, so that each number can be followed to its row."""
        head = ("arm", "configuration", "trial", "run", "seed", "state", "max", "mean", "test")
        rows = [
            [
                trial.arm if trial.confirms is None else f"{trial.arm} (confirms {trial.confirms})",
                settings(trial.params) or "–",
                str(trial.id),
                str(run.id),
                str(run.seed),
                run.state,
                *("–" if v is None else f"{v:.2f}" for v in _accuracies(run)),
                (run.weights_sha256 or "–")[:12],
            ]
            for trial in self.trials
            for run in trial.runs
        ]
        return Sheet("Runs", (*head, "weights"), rows)

    @property
    def facts(self) -> list[str]:
        """Where, when and with what."""
        runs = [run for trial in self.trials for run in trial.runs]
        states = Counter(run.state for run in runs)
        trained = sum(run.seconds or 0.0 for run in runs)
        used = [(run.device, run.threads or 0) for run in runs if run.device]
        where = Counter(
            f"{device}, {formatting.count(threads, 'thread')}" for device, threads in used
        )
        commits = sorted({run.git_commit for run in runs if run.git_commit})
        versions = dict.fromkeys(
            f"{name} {version}" for run in runs for name, version in (run.versions or {}).items()
        )
        facts = [
            ", ".join(f"{number} runs {state}" for state, number in states.items()),
            f"{duration(trained)} of training on {'; '.join(where) or 'nothing yet'}",
            f"{formatting.count(self.spec.seeds, 'seed')} per trial"
            + (f", {self.spec.confirm} fresh ones to confirm" if self.spec.confirm else ""),
            ", ".join(versions),
            f"code {', '.join(commits)}" if commits else "",
            f"begun {self.study.created_at:%Y-%m-%d %H:%M} UTC, study {self.study.uid}",
            f"reported by ressmooth {__version__}",
        ]
        return [fact for fact in facts if fact]

    def sections(self) -> Iterator[Section]:
        numbers = self._numbers
        widths = [figures.accuracy_by_width(t, self.trials, numbers) for t in self.comparisons]
        found = [panel for panel in widths if panel is not None]
        if found:
            text = "Each configuration of the search, against the baseline."
            yield Section("Accuracy against the width b", text, found)
        curves = [panel for group in self._groups() for panel in group]
        if curves:
            text = "The selected configuration of each arm."
            yield Section("Learning curves", text, curves)
        searched = figures.search(self.spec, self.trials)
        if searched:
            text = (
                "Importances need several parameters that vary and more than three complete trials."
            )
            yield Section("The search", text, searched)
        if any(each.seconds for each in self.costs):
            text = (
                "Wall-clock time: what else the machine did counts too. The paper's own cost is "
                "1.67 times SGD's for ResNet56 and 1.25 times for DenseNet."
            )
            yield Section("Time and cost", text, figures.costs(self.costs))
        yield Section("The method", "What the arms' parameters mean.", self._method())

    def _groups(self) -> Iterator[list[Panel]]:
        for condition in conditions(self.arms):
            chosen = [arm for arm in self.arms if arm.condition == condition]
            where = verdicts.problem(condition)
            yield figures.learning_curves(chosen, self.curves, where, self._numbers)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """By which an arm has the same colour on the whole page."""
        return {arm: number for number, arm in enumerate(self.spec.arms)}

    def _tried(self, distribution: str) -> Sequence[float]:
        """The widths of the smoothing that was trained, or the paper's."""
        configs = [trial.runs[0].config for trial in self.trials]
        like = [
            c for c in configs if (c["method"], c["distribution"]) == ("smoothing", distribution)
        ]
        tried = sorted({config["b"] for config in like})
        return tried if 0 < len(tried) <= MOST_WIDTHS else figures.WIDTHS

    def _method(self) -> list[Panel]:
        sigmoids = [
            "Diffusivity against the normalised residual for several steepnesses α.",
            "The same for several scales s.",
        ]
        drawn = figures.annealings(self._tried("laplace"), self._tried("logistic"))
        annealings = [f"Scale over training, {kind}." for kind in ("laplace", "logistic")]
        return [
            *_panels("sigmoid", sigmoids, figures.sigmoids()),
            *_panels("annealing", annealings, drawn),
        ]


def _panels(name: str, captions: Sequence[str], draws: Sequence[style.Draw]) -> list[Panel]:
    return [
        Panel(f"{name}-{number}", caption, draw)
        for number, (caption, draw) in enumerate(zip(captions, draws, strict=True), start=1)
    ]


def _accuracies(run: RunRow) -> tuple[float | None, ...]:
    return run.max_acc, run.mean_acc, run.test_acc


def _draw(panel: Panel, number: int, directory: Path) -> Drawn:
    name = f"{number:02d}-{panel.name[:60]}"  # names of arms may be long, and much alike
    figure = style.picture(panel.draw)
    style.save(figure, directory / "figures" / f"{name}.png")
    return Drawn(name, panel.caption, style.inline_svg(figure, name))


def write(report: Report, directory: Path) -> None:
    """index.html, report.md, figures/*.png, comparison.csv and .json."""
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    numbers = count(1)
    sections = [
        (section, [_draw(panel, next(numbers), directory) for panel in section.panels])
        for section in report.sections()
    ]
    pages = Environment(
        loader=PackageLoader("ressmooth.report", "."),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["markdown"] = tables.markdown_table
    for template, name in (("page.html", "index.html"), ("page.md", "report.md")):
        page = pages.get_template(template)
        text = page.render(report=report, sections=sections, paper_runs=paper.SEEDS)
        (directory / name).write_text(text.rstrip() + "\n")
    (directory / "comparison.csv").write_text(tables.as_csv(report.comparisons) + "\n")
    (directory / "comparison.json").write_text(tables.as_json(report.comparisons) + "\n")
