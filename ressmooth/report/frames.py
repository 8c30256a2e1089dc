"""A study as four tables: runs, epochs, trials and the comparison of its arms.

Each is a pandas data frame for Python, and CSV, JSON or Parquet for `ressmooth export`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ressmooth import formatting
from ressmooth.config import METRIC, METRICS
from ressmooth.report.compare import compare_studies
from ressmooth.report.tables import records
from ressmooth.store import RunRow, State, Store, StudyRow, TrialRow

if TYPE_CHECKING:
    import pandas

Record = dict[str, Any]
RESULTS = {  # column -> metric and statistic: max_acc, mean_acc, test_acc, best_nll ...
    f"{word}_{metric.column.removeprefix('val_')}": (name, statistic)
    for name, metric in METRIC.items()
    for statistic, word in (
        ("max", "max" if name == "accuracy" else "best"),  # of the best epoch
        ("mean", "mean"),
        ("test", "test"),
    )
}
CONDITION = ("dataset", "model", "fraction")
RUN = ("study", "arm", "trial", "run", "seed", "state")
RUN_DETAILS = (
    "last_epoch",
    "forked_from",
    "forked_at",
    "seconds",
    "started_at",
    "finished_at",
    "error",
    "failures",
    "host",
    "device",
    "threads",
    "git_commit",
    "weights_sha256",
    "data_sha256",
    "uid",
)
TRIAL = ("study", "arm", "trial", "state", "confirms", "selected", *CONDITION, "value", "runs")
COMPARED = ("sd", "low", "high", "difference", "difference_low", "difference_high", "p", "evidence")
FIXED_N = ("fixed_n_p", "fixed_n_low", "fixed_n_high")  # of the t-test, for one look only
PAPER = ("paper", "from_paper", "paper_difference")
FLOATS = {
    *METRICS,
    *RESULTS,
    *COMPARED,
    *FIXED_N,
    *PAPER,
    "value",
}  # also where all values are missing
INTEGERS = {  # with missing values
    *("confirms", "threads", "pairs", "decided_after", "more_seeds"),
    *("forked_from", "forked_at"),
}
MARK = "ressmooth"  # in the metadata of the Parquet files that we write


@dataclass(frozen=True)
class Table:
    """Records, and columns that are there even without any record."""

    each: Callable[[], Iterable[Record]]  # read as they are needed: there may be millions
    examples: Sequence[Record]  # with every key of the records
    fixed: tuple[str, ...] = ()

    @cached_property
    def records(self) -> list[Record]:
        return list(self.each())

    @property
    def columns(self) -> list[str]:
        return formatting.columns(self.examples, self.fixed)

    def csv(self) -> Iterator[str]:
        return formatting.csv_lines(self.each(), self.columns)

    def json(self) -> Iterator[str]:
        before = "[\n "
        for record in self.each():
            text = json.dumps(record, indent=1, default=datetime.isoformat)
            yield before + text.replace("\n", "\n ")  # a newline in a value is escaped
            before = ",\n "
        yield "[]\n" if before == "[\n " else "\n]\n"

    def frame(self) -> "pandas.DataFrame":
        """Return a data frame. Times have a time zone; missing numbers are NaN or NA."""
        import pandas

        found = pandas.DataFrame(self.records, columns=self.columns)
        for name in found.columns:
            if name.endswith("_at"):
                found[name] = pandas.to_datetime(found[name], utc=True)
            elif name in FLOATS:
                found[name] = found[name].astype(float)
            elif name in INTEGERS:
                found[name] = found[name].astype("Int64")
        return found

    def write_parquet(self, path: Path) -> None:
        from pandas.api.types import infer_dtype

        frame = self.frame()
        for name in frame.columns:  # Parquet has one type per column
            if infer_dtype(frame[name], skipna=True).startswith("mixed") and name[:6] == "param.":
                frame[name] = frame[name].map(str, na_action="ignore")
        frame.attrs[MARK] = True
        frame.to_parquet(path)


def is_parquet_export(path: Path) -> bool:
    """Tell whether a file is one that `write_parquet` has written."""
    import pyarrow
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(path).metadata or {}
    except (OSError, pyarrow.ArrowException):
        return False
    return MARK in json.loads(metadata.get(b"PANDAS_ATTRS", b"{}"))


def runs(store: Store, study: StudyRow) -> Table:
    """Return a row per run, with its results: figures of accuracy, ECE and macro F1 in %."""

    def records(trials: Iterable[TrialRow]) -> Iterator[Record]:
        for trial in trials:
            for run in trial.runs:
                yield {
                    **_run(study, trial, run),
                    **{name: run.config[name] for name in CONDITION},
                    **_params(trial.params),
                    **_results([run]),
                    "epochs": run.config["epochs"],
                    **{name: getattr(run, name) for name in RUN_DETAILS},
                }

    examples = list(records(store.first_trials(study.id)))
    fixed = (*RUN, *CONDITION, *RESULTS, "epochs", *RUN_DETAILS)
    return Table(lambda: records(store.each_trial(study.id)), examples, fixed)


def epochs(store: Store, study: StudyRow) -> Table:
    """Return a row per epoch of every run."""

    def records() -> Iterator[Record]:
        for page in store.trial_pages(study.id):
            curves = store.curves([run.id for trial in page for run in trial.runs])
            for trial in page:
                for run in trial.runs:
                    head = {**_run(study, trial, run), **_params(trial.params)}
                    for epoch in curves.get(run.id, ()):
                        row = {**head, **asdict(epoch)}
                        del row["checkpoint_sha256"]
                        yield row

    columns = ("epoch", *METRICS, "recorded_at")
    examples = [
        {**_run(study, trial, trial.runs[0]), **_params(trial.params), **dict.fromkeys(columns)}
        for trial in store.first_trials(study.id)
    ]
    return Table(records, examples, (*RUN, *columns))


def trials(store: Store, study: StudyRow) -> Table:
    """Return a row per trial. Its results are means over its complete runs."""
    selected = {winner.trial.id for winner in store.winners(study.id)}

    def records(trials: Iterable[TrialRow]) -> Iterator[Record]:
        for trial in trials:
            yield {
                "study": study.name,
                "arm": trial.arm,
                "trial": trial.id,
                "state": str(trial.state),
                "confirms": trial.confirms,
                "selected": trial.id in selected,
                **{name: trial.condition.get(name) for name in CONDITION},
                **_params(trial.params),
                "value": trial.value,
                "runs": len(trial.runs),
                **_results(run for run in trial.runs if run.state == State.COMPLETE),
                "created_at": trial.created_at,
                "finished_at": trial.finished_at,
            }

    examples = list(records(store.first_trials(study.id)))
    fixed = (*TRIAL, *RESULTS, "created_at", "finished_at")
    return Table(lambda: records(store.each_trial(study.id)), examples, fixed)


def comparison(store: Store, study: StudyRow) -> Table:
    """Return a row per arm, condition and statistic, with its difference to the reference."""
    found = records(compare_studies(store, [study]))
    rows = [_flat(row) for row in found]
    return Table(lambda: rows, rows)


def _flat(record: Record) -> Record:
    """Return a record with a column KEY.NAME for each entry of a dict."""
    flat: Record = {}
    for key, value in record.items():
        if isinstance(value, dict):
            key = "param" if key == "configuration" else key
            flat |= {f"{key}.{name}": each for name, each in value.items()}
        else:
            flat[key] = str(value) if isinstance(value, StrEnum) else value
    return flat


def _run(study: StudyRow, trial: TrialRow, run: RunRow) -> Record:
    return {
        "study": study.name,
        "arm": trial.arm,
        "trial": trial.id,
        "run": run.id,
        "seed": run.seed,
        "state": str(run.state),
    }


def _params(params: Record) -> Record:
    return {f"param.{key}": value for key, value in params.items()}


def _results(rows: Iterable[RunRow]) -> dict[str, float | None]:
    """Return the means over runs of all metrics and statistics."""
    rows = list(rows)
    values = {
        column: [v for run in rows if (v := run.result(*which)) is not None]
        for column, which in RESULTS.items()
    }
    return {column: fmean(found) if found else None for column, found in values.items()}


TABLES: dict[str, Callable[[Store, StudyRow], Table]] = {
    "epochs": epochs,
    "runs": runs,
    "trials": trials,
    "comparison": comparison,
}
