"""The pages in front of MLflow: the queue, all studies, their reports, and their curves."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from ressmooth import paths
from ressmooth.errors import ConfigError, RessmoothError
from ressmooth.formatting import glue
from ressmooth.report import queue as shown
from ressmooth.report.archive import bundled_archives, read_archive
from ressmooth.report.compare import by_selecting_statistic, compare_studies
from ressmooth.report.page import Report, write
from ressmooth.report.tables import states_text
from ressmooth.report.verdicts import verdict_sentences
from ressmooth.store import Queue, State, Store, StudyRow, default_url, open_store
from ressmooth.store.database import Database
from ressmooth.tracking.front import MLFLOW
from ressmooth.tracking.mirror import Mirror

PER_PAGE = 20  # studies
PACKAGES = ("ressmooth.tracking", "ressmooth.report")
TEMPLATES = Environment(
    loader=ChoiceLoader([PackageLoader(package, ".") for package in PACKAGES]),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["glue"] = glue


@dataclass(frozen=True)
class Progress:
    """What the first page shows of a study."""

    study: StudyRow
    states: Counter[State]  # number of runs by state
    verdicts: list[str]

    @property
    def total(self) -> int:
        return self.states.total()

    @property
    def states_text(self) -> str:
        return states_text(self.states, self.study)

    @property
    def done(self) -> int:
        return sum(number for state, number in self.states.items() if state.is_terminal)


@dataclass(frozen=True)
class Example:
    """A trained study that comes with the package."""

    name: str
    description: str
    verdicts: list[str]


@dataclass(frozen=True)
class Page:
    """Some of the studies, newest first."""

    studies: list[Progress]
    number: int  # from 1
    last: int


class Landing:
    """Answers requests from the Store as it is at that moment."""

    def __init__(self, home: Path, mirror: Mirror, place: str | None = None) -> None:
        self.home, self.mirror = home, mirror
        self.place = str(home) if place is None else place  # shown on top
        self.reports: dict[str, tuple[Any, str]] = {}  # what it shows, and the page
        self.drawing = threading.Lock()  # matplotlib's settings are global

    def routes(self) -> list[Route]:
        """Return the routes. Starlette calls these methods in threads, so MLflow never waits."""
        return [
            Route("/", self.index),
            Route("/queue", self.queue),
            Route("/report/{study}", self.report),
            Route("/curves/{study}", self.curves),
            Route("/example/{study}", self.example),
        ]

    def index(self, request: Request) -> HTMLResponse:
        try:
            asked = request.query_params.get("page", "")
            page = self.page(int(asked) if asked.isdecimal() and len(asked) < 9 else 1)
            examples = [] if page.studies else self.examples()
            return self._page(page=page, studies=page.studies, examples=examples, **self._queue())
        except RessmoothError as error:
            return self._page(problem=error, status=500)

    def queue(self, request: Request) -> HTMLResponse:
        """Answer with the part of the first page that refreshes itself."""
        try:
            text = TEMPLATES.get_template("queue.html").render(home=self.home, **self._queue())
            return _html(text)
        except RessmoothError as error:
            return _html(str(escape(error)), 500)

    def report(self, request: Request) -> HTMLResponse:
        """Answer with the report of a study, drawn when its runs or its file have changed."""
        try:
            with self._study(request) as (store, study), self.drawing:
                runs = [run for trial in store.trials(study.id) for run in trial.runs]
                page = self.reports.get(study.uid)
                shown = (study.spec, runs)
                if page is None or page[0] != shown:
                    page = self.reports[study.uid] = shown, _report(store, study)
                return _html(page[1])
        except RessmoothError as error:
            return self._page(problem=error, status=404)

    def curves(self, request: Request) -> HTMLResponse:
        """Answer with a page that opens MLflow's charts of a study."""
        try:
            with self._study(request) as (_, study):
                charts = self.mirror.charts(study)
            if charts is None:
                command = paths.command(self.home, "sync")
                raise ConfigError(f"{study.name}: not in MLflow yet; deliver it: {command}")
            return self._page(opens=f"{MLFLOW}/{charts}")
        except RessmoothError as error:
            return self._page(problem=error, status=404)

    def example(self, request: Request) -> HTMLResponse:
        """Answer with the report of a study that comes with the package."""
        name = request.path_params["study"]
        for archive in map(read_archive, bundled_archives()):
            if report := archive.report(name):
                return _html(report)
        return self._page(problem=ConfigError(f"no example {name!r} here"), status=404)

    def examples(self) -> list[Example]:
        """Return the studies that come with the package, already trained."""
        archives = map(read_archive, bundled_archives())
        return [
            Example(name, archive.rows(name).study.spec["description"], archive.verdicts(name))
            for archive in archives
            for name in archive.studies
        ]

    def page(self, number: int) -> Page:
        """Return a page of the studies, the nearest one. A home without a database has none."""
        if self._is_new():
            return Page([], 1, 1)
        with self._store() as store:
            studies = store.studies()[::-1]
            last = max(1, -(-len(studies) // PER_PAGE))
            number = min(max(1, number), last)
            chosen = studies[(number - 1) * PER_PAGE : number * PER_PAGE]
            states = store.run_states()
            shown = [_progress(store, study, states.get(study.id, Counter())) for study in chosen]
            return Page(shown, number, last)

    def names(self) -> list[str]:
        """Return the names of the studies, newest first."""
        if self._is_new():
            return []
        with self._store() as store:
            return [study.name for study in reversed(store.studies())]

    def _queue(self) -> dict[str, Any]:
        """Return what the queue's template shows, the same as `ressmooth queue`."""
        queue = Queue(None, [], [], 0)
        if not self._is_new():
            with self._store() as store:
                queue = store.queue(ended=0)
        return {"queue": queue, "active": queue.studies, "shown": shown}

    def _is_new(self) -> bool:
        with closing(Database(default_url(self.home))) as database:
            return database.is_new()

    @contextmanager
    def _store(self) -> Iterator[Store]:
        with closing(open_store(default_url(self.home), create=False)) as store:
            yield store

    @contextmanager
    def _study(self, request: Request) -> Iterator[tuple[Store, StudyRow]]:
        """Open the Store, and find the study that the address names."""
        name = request.path_params["study"]
        with self._store() as store:
            study = store.study(name)
            if study is None:
                raise ConfigError(f"no study {name!r} here")
            yield store, study

    def _page(self, status: int = 200, **values: Any) -> HTMLResponse:
        launch = paths.command(self.home, "study", "quickstart")
        template = TEMPLATES.get_template("landing.html")
        take = paths.command(self.home, "import", "--bundled")
        names = {"mlflow": MLFLOW, "home": self.home, "place": self.place}
        names |= {"launch": launch, "take": take}
        text = template.render(**names, **values)
        return _html(text, status)


def _html(text: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})


def _progress(store: Store, study: StudyRow, states: Counter[State]) -> Progress:
    comparisons = by_selecting_statistic(compare_studies(store, [study]))
    return Progress(study, states, verdict_sentences(comparisons))


def _report(store: Store, study: StudyRow) -> str:
    """Return the page of a study's report."""
    contents = Report(store, study)
    if not contents.arms:
        raise ConfigError(f"{study.name}: nothing to report yet, no trial is complete")
    with TemporaryDirectory() as directory:
        write(contents, Path(directory))
        return (Path(directory) / "index.html").read_text()
