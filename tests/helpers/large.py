"""Studies of thousands of trials, written in bulk as a launcher and its workers record them."""

import json
import math
import random
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

from helpers.specs import study as make_spec
from sqlalchemy import event, insert

from ressmooth.config import METRICS, parse
from ressmooth.store import Event, State
from ressmooth.store.tables import Epoch, Outbox, Run, Trial

SPACE = {"b": {"low": 0.05, "high": 2.0, "log": True}, "lr": {"low": 1e-3, "high": 0.5}}


def large_spec(trials, *, pruner="asha", seeds=1, epochs=9, name="large"):
    """Return a study of two arms with `trials` trials in all."""
    search = {"sampler": "random", "pruner": pruner, "trials": trials // 2}
    arms = {"sgd": {"method": "mse", "lr": SPACE["lr"]}, "laplace": dict(SPACE)}
    return make_spec(arms, search=search, seeds=seeds, epochs=epochs, name=name)


def fill(store, spec, trials, outbox=False):
    """Record complete and pruned trials. Return the study's id."""
    study_id, chance = store.open_study(spec), random.Random(0)
    with store.database.engine.begin() as connection:
        for number in range(0, trials, 1000):
            rows = [
                _trial(spec, study_id, n, chance) for n in range(number, min(number + 1000, trials))
            ]
            for table, index in ((Trial, 0), (Run, 1)):
                connection.execute(insert(table), [row[index] for row in rows])
            connection.execute(insert(Epoch), [epoch for row in rows for epoch in row[2]])
            if outbox:
                event = {"study_id": study_id, "kind": Event.RUN, "created_at": NOW}
                connection.execute(
                    insert(Outbox), [{**event, "run_id": row[1]["id"]} for row in rows]
                )
    return study_id


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _trial(spec, study_id, number, chance):
    branch = spec.branches[number % 2]
    params = {"lr": chance.uniform(1e-3, 0.5)}
    if branch.arm == "laplace":
        params = {"b": math.exp(chance.uniform(math.log(0.05), math.log(2.0))), **params}
    config = parse({"threads": 1, **branch.values, **params, "seed": 0}).model_dump()
    is_pruned = spec.search.pruner != "none" and number % 3 != 0
    last = config["epochs"] // 9 or 1 if is_pruned else config["epochs"]
    best = 50 + 40 * chance.random()
    state = State.PRUNED if is_pruned else State.COMPLETE
    ended = NOW + timedelta(seconds=number)
    trial = {
        "id": number + 1,
        "study_id": study_id,
        "arm": branch.arm,
        "condition": _condition(spec, config),
        "branch": branch.key,
        "number_in_branch": number // 2,
        "params": params,
        "state": state,
        "value": None if is_pruned else best,
        "sampler_state": {},
        "created_at": NOW,
        "finished_at": ended,
    }
    run = {
        "id": number + 1,
        "uid": UUID(int=number).hex,
        "trial_id": number + 1,
        "seed": 0,
        "state": state,
        "attempt": 1,
        "failures": 0,
        "config": config,
        "max_acc": best,
        "mean_acc": best - 1,
        "last_epoch": last,
        "seconds": 1.0 * last,
        "host": "here",
        "device": "cpu",
        "threads": 1,
        "started_at": NOW,
        "finished_at": ended,
    }
    epochs = [
        {
            "run_id": number + 1,
            "epoch": epoch,
            "recorded_at": NOW,
            **dict.fromkeys(METRICS),
            "train_loss": 1 / epoch,
            "train_acc": best,
            "val_loss": 1 / epoch,
            "val_acc": best - (last - epoch),
            "lr": 0.1,
            "scale": 0.5,
            "diffusivity": 0.25,
            "seconds": 1.0,
        }
        for epoch in range(1, last + 1)
    ]
    return trial, run, epochs


def _condition(spec, config):

    return json.dumps(spec.condition(config), sort_keys=True)


@contextmanager
def statements(store):
    """Collect the SQL statements that are executed meanwhile."""
    executed = []

    def add(connection, cursor, statement, *_):
        executed.append(statement)

    event.listen(store.database.engine, "before_cursor_execute", add)
    yield executed
    event.remove(store.database.engine, "before_cursor_execute", add)
