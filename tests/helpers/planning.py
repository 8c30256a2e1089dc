"""End the runs of a planner without training them."""

ENVIRONMENT = {"host": "h", "device": "cpu", "threads": 1, "versions": {}, "git_commit": None}


def finish(planner, run, state="complete", accuracy=90.0):
    attempt = planner.store.claim(run.id, ENVIRONMENT)
    planner.store.finish_run(attempt, state, max_acc=accuracy, mean_acc=accuracy - 1)
    planner.run_ended(run)


def drain(planner, state="complete"):
    count = 0
    while (run := planner.next()) is not None:
        finish(planner, run, state, accuracy=80.0 + count)
        count += 1
    return count
