"""A study's curves as one flat table, for whatever people use to look at tables."""

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, TextIO

from ressmooth.store import Store, StudyRow


def write(store: Store, study: StudyRow, form: str, out: TextIO) -> None:
    rows = list(_rows(store, study))
    if form == "json":
        json.dump(rows, out, indent=1)
        out.write("\n")
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _rows(store: Store, study: StudyRow) -> Iterator[dict[str, Any]]:
    for trial in store.trials(study.id):
        for run in trial.runs:
            head = {
                "study": study.name,
                "arm": trial.arm,
                "trial": trial.id,
                "run": run.id,
                "seed": run.seed,
                "state": run.state,
                **{f"param.{key}": value for key, value in trial.params.items()},
            }
            for epoch in store.curve(run.id):
                row = {**head, **asdict(epoch), "recorded_at": epoch.recorded_at.isoformat()}
                del row["checkpoint_sha256"]
                yield row
