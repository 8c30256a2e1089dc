"""Show the queue and the workers, for `ressmooth queue`, `ressmooth workers` and the first page."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ressmooth import paths
from ressmooth.formatting import count, duration, printable, run_name, terminal_width, wrap
from ressmooth.report.measure import MISSING
from ressmooth.report.sheet import Sheet, as_text
from ressmooth.store import Queue, QueuedStudy, RunningRun, StudyState

NAMES = 3  # interrupted studies of a service that are named
ENDED = 10  # studies that neither wait nor run and are shown
RUNS = 4  # runs of a study that are named
DETAILS = range(1, RUNS + 3)  # columns: who and why, the runs, and how many more there are
HEAD = ("study", *("" for _ in DETAILS), "state", "priority", "runs", "epochs /min", "time left")


def queue_text(queue: Queue, home: Path) -> str:
    """Return the queue for a terminal, as wide as that is."""
    sentences = [*interruptions(queue, home)]
    if queue.hidden:
        command = paths.command(home, "queue", "--all")
        older = count(queue.hidden, "older row")
        sentences.append(f"{older} hidden; show all: {command}")
    rows = [_row(study, queue) for study in queue.studies]
    table = as_text(Sheet("", HEAD, rows, details=DETAILS)) if rows else "No studies yet."
    return "\n\n".join(
        filter(None, [_lines([service_text(queue, home)]), table, _lines(sentences)])
    )


def workers_text(queue: Queue, home: Path) -> str:
    """Return the service's nodes, and the runs that execute there and elsewhere."""
    service = queue.service if queue.has_service else None
    nodes = {str(node["node"]): node for node in (service.nodes if service else [])}
    by_host: dict[str, list[RunningRun]] = defaultdict(list)
    for run in queue.running:
        by_host[run.host or "an unknown node"].append(run)
    parts = [_lines([service_text(queue, home)])]
    for name in [*nodes, *(host for host in by_host if host not in nodes)]:
        node = nodes.get(name)
        parts.append(_node_text([_title(name, node), *_gpu_lines(node)], by_host.get(name, [])))
    return "\n\n".join(parts)


def service_text(queue: Queue, home: Path) -> str:
    """Return who executes submitted studies, or how to start a service."""
    service = queue.service
    if service is not None and service.is_alive:
        since = f"since {service.held_at:%Y-%m-%d %H:%M} UTC"
        workers = service.description.replace("this machine's", "its") or "starting"
        return f"Service {service.holder} {since}: {service.engine} engine, {workers}."
    start = f"start one: {paths.command(home, 'serve')}"
    if service is None:
        return f"No service is running; {start}"
    return f"The service {service.holder} has died; {start}"


def interruptions(queue: Queue, home: Path) -> Iterator[str]:
    """Yield how to resume the interrupted studies."""
    interrupted = [study for study in queue.studies if study.is_interrupted]
    orphans = [study for study in interrupted if study.is_served and not queue.has_service]
    if orphans:
        first = ", ".join(study.name for study in orphans[:NAMES])
        more = f" and {len(orphans) - NAMES} more" if len(orphans) > NAMES else ""
        verb = "go" if len(orphans) > 1 else "goes"
        yield f"{first}{more} {verb} on with the next service: {paths.command(home, 'serve')}"
    for study in interrupted:
        if study not in orphans:
            word = "resume" if queue.has_service else "study"
            resume = paths.command(home, word, study.name)
            yield f"{study.name} was interrupted; resume it: {resume}"


def state_text(study: QueuedStudy) -> str:
    return "interrupted" if study.is_interrupted else str(study.state)


def submission_text(study: QueuedStudy) -> str:
    """Return who submitted a study, and when."""
    when = f"submitted {study.since:%Y-%m-%d %H:%M} UTC"
    return ", ".join(filter(None, (printable(study.owner or ""), when)))


def reason(study: QueuedStudy, queue: Queue) -> str | None:
    """Return why no run of a study executes, if that is known."""
    if study.problem:
        return printable(study.problem.partition("\n")[0])
    if study.state == StudyState.QUEUED:
        return "is being prepared" if queue.has_service else "waits for a service"
    is_executed = study.state == StudyState.RUNNING and not study.is_interrupted
    if is_executed and queue.running and not runs_of(study, queue):
        return "waits for a free worker"
    return None


def time_left(study: QueuedStudy) -> str | None:
    if not study.epochs_per_minute or study.epochs_left is None:
        return None
    return duration(study.epochs_left / study.epochs_per_minute * 60)


def runs_of(study: QueuedStudy, queue: Queue) -> list[RunningRun]:
    return [run for run in queue.running if run.study_id == study.id]


def place(run: RunningRun) -> str:
    """Return where a run executes: its node, and its GPUs or its device."""
    device = f"GPU {run.gpus}" if run.gpus else (run.device or "")
    return " ".join(filter(None, (run.host, device)))


def run_text(run: RunningRun) -> str:
    return f"{place(run)}: {_name(run)}, epoch {run.last_epoch}/{run.epochs}"


def _row(study: QueuedStudy, queue: Queue) -> list[str]:
    running = runs_of(study, queue)
    shown = [run_text(run) for run in running[:RUNS]]
    if len(running) > RUNS:
        shown.append(f"and {len(running) - RUNS} more")
    who = [submission_text(study), reason(study, queue) or ""]
    speed = study.epochs_per_minute
    return [
        study.name,
        "; ".join(filter(None, who)),
        *shown,
        *(MISSING for _ in DETAILS[len(shown) + 1 :]),
        state_text(study),
        str(study.priority),
        f"{study.runs_done}/{study.runs_known}",
        MISSING if speed is None else f"{speed:.3g}",
        time_left(study) or MISSING,
    ]


def _name(run: RunningRun) -> str:
    return printable(run_name(run.arm, run.params, run.seed))


def _title(name: str, node: dict[str, Any] | None) -> str:
    if node is None:
        return f"{name}: not a node of the service"
    gpus = node["gpus"]
    number = len(gpus) if isinstance(gpus, list) else gpus
    shown = f", {number} GPU" + ("" if number == 1 else "s") if number else ", no GPU"
    return f"{name}: {count(float(str(node['workers'])), 'worker')}{shown}"


def _gpu_lines(node: dict[str, Any] | None) -> Iterator[str]:
    """Yield a line for each GPU of a node that NVML describes. Ray's nodes only count theirs."""
    gpus = node["gpus"] if node else []
    for gpu in gpus if isinstance(gpus, list) else []:
        if isinstance(gpu, dict):
            facts = [printable(gpu["name"]), _memory(gpu)]
            facts += [] if gpu["utilization"] is None else [f"{gpu['utilization']:.0f} % busy"]
            yield f"  GPU {gpu['index']}: {', '.join(filter(None, facts))}"


def _memory(gpu: dict[str, Any]) -> str:
    total, used = gpu["memory_total"], gpu["memory_used"]  # MiB
    if total is None:
        return ""
    of = "" if used is None else f"{used / 1024:.1f} of "
    return f"{of}{total / 1024:.1f} GiB" + (" in use" if of else "")


def _node_text(lines: Sequence[str], runs: Iterable[RunningRun]) -> str:
    rows = [
        [
            _name(run),
            run.study,
            f"GPU {run.gpus}" if run.gpus else run.device or MISSING,
            f"{run.last_epoch}/{run.epochs}",
            f"{run.started_at:%Y-%m-%d %H:%M}",
        ]
        for run in runs
    ]
    head = ("run", "study", "device", "epoch", "since (UTC)")
    return "\n".join([*lines, as_text(Sheet("", head, rows)) if rows else "  idle"])


def _lines(sentences: Iterable[str]) -> str:
    width = terminal_width()
    return "\n".join(line for text in sentences for line in wrap(text, width))
