"""Prepare MLflow's page of a study: the curves of the arms as charts, and a table to go with them.

MLflow keeps shared views as JSON in tags of an experiment. An address names the one to open.
"""

import json
from collections.abc import Iterable, Sequence
from math import ceil, floor
from typing import Any

from ressmooth.config import values_of
from ressmooth.report.measure import MEASURES, Measure
from ressmooth.spec import StudySpec
from ressmooth.store import EpochRow
from ressmooth.tracking.artifacts import UNITS, VALIDATION_SET, figure_name

TAG = "mlflow.sharedViewState.ressmooth"
COMPARED_TAG = "in_comparison"  # yes: the comparison shows figures of this run
CHARTS = ("scale", "train_loss", "val_loss")  # besides the study's metric
LAYOUT = {"columns": 2, "cardHeight": 300}  # pixels


def address(experiment_id: str, tags: Iterable[str]) -> str:
    """Return the address of an experiment's charts, relative to MLflow's own page."""
    shared = "&viewStateShareKey=ressmooth" if TAG in tags else ""
    mode = "workflowType=machine_learning&compareRunsMode=CHART"
    return f"#/experiments/{experiment_id}/runs?{mode}{shared}"


def prepare(spec: StudySpec, compared: Sequence[Sequence[EpochRow]] = ()) -> str:
    """Return the view of a study: of its runs in the comparison, or of all if there are none.

    `compared` has the curves of the former.
    """
    searched = [*spec.grid, *(key for arm in spec.arms.values() for key in (*arm.grid, *arm.space))]
    groups = [("tag", "arm"), *(("param", key) for key in spec.grid)]
    selections = {branch.values.get("selection", "paper") for branch in spec.branches}
    validated = " or ".join(VALIDATION_SET[selection] for selection in sorted(selections))
    title = f"By epoch, validated on {validated}"
    measure = MEASURES[spec.metric]
    figures = [figure_name(measure, statistic) for statistic in ("max", "mean", "test")]
    column = UNITS.get(measure.metric.column, measure.metric.column)
    view = {
        "searchFilter": f"tags.{COMPARED_TAG} = 'yes'" if compared else "tags.arm LIKE '%'",
        "orderByAsc": True,
        "selectedColumns": [
            *(f"tags.`{name}`" for name in ("arm", "state", "validation_set")),
            *(f"metrics.`{name}`" for name in figures),
            *(f"params.`{name}`" for name in dict.fromkeys(searched)),
        ],
        "groupBy": {
            "aggregateFunction": "average",
            "groupByKeys": [{"mode": mode, "groupByData": name} for mode, name in groups],
        },
        "compareRunCharts": [
            _chart(column, _range(measure, compared)),
            *(_chart(name, {}) for name in CHARTS),
        ],
        "compareRunSections": [
            {**_section("curves", title), "display": True, "isGenerated": False, **LAYOUT},
            *(_section(name, name) for name in ("Model metrics", *figures)),  # closed
        ],
        "isAccordionReordered": True,  # keeps MLflow from sorting the sections
        "runsHiddenMode": "SHOW_ALL",
    }
    return json.dumps(view, separators=(",", ":"))


def _section(uuid: str, name: str) -> dict[str, Any]:
    return {"uuid": uuid, "name": name, "display": False, "deleted": False, "isGenerated": True}


def _chart(metric: str, shown: dict[str, int]) -> dict[str, Any]:
    """Return a chart of a metric by epoch. Fields that MLflow can do without are left out."""
    return {
        "uuid": metric,
        "type": "LINE",
        "metricSectionId": "curves",
        "deleted": False,
        "metricKey": metric,
        "range": shown,
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _range(measure: Measure, curves: Sequence[Sequence[EpochRow]]) -> dict[str, int]:
    """Return the range of a metric in % in the second half of training, where arms differ."""
    late = [epoch for curve in curves for epoch in curve[len(curve) // 2 :]]
    shown = values_of(late, measure.name)
    if not shown or not measure.unit:
        return {}
    return {"yMin": max(floor(min(shown)) - 1, 0), "yMax": min(ceil(max(shown)) + 1, 100)}
