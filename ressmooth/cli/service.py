"""Commands of the service: run it, and see, stop and resume the studies that it runs."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ressmooth.cli import check_same_build, find_study, main, open_home, with_home
from ressmooth.errors import ConfigError
from ressmooth.paths import command, only_submits, serve_command

if TYPE_CHECKING:
    from ressmooth.spec import Resources
    from ressmooth.store import Store
    from ressmooth.tracking.prometheus import MetricsServer

NO_SERVICE = 4  # exit code


@main.command()
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="worker processes on this machine, or the Ray cluster at RAY_ADDRESS",
)
@click.option("--workers", default="auto", metavar="N|auto", help="concurrent runs")
@click.option("--gpus-per-run", default="auto", metavar="N|auto", help="GPUs of a run")
@click.option("--cpus-per-run", default=1.0, type=float, metavar="N", help="CPUs of a run")
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="serve /metrics for Prometheus, on 127.0.0.1 or RESSMOOTH_METRICS_HOST [default: not]",
)
@click.option("--check", is_flag=True, help="only tell whether a service is alive, for monitors")
@with_home
def serve(
    engine_name: str,
    workers: str,
    gpus_per_run: str,
    cpus_per_run: float,
    metrics_port: int | None,
    check: bool,
    home: Path,
) -> None:
    """Run the submitted studies of this home until stopped.

    Studies share the workers. `ressmooth study` submits to a service that is running.
    """
    if check:
        sys.exit(_check(home))
    from ressmooth.engines import new_engine, number_of_workers
    from ressmooth.engines.service import Service

    resources = _resources(gpus_per_run, cpus_per_run)
    make = partial(new_engine, engine_name, resources, number_of_workers(workers), home)
    code = Service(engine_name, make, home, _metrics(metrics_port, home)).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a normal exit would abort while the relay still draws a figure


@main.command()
@click.argument("study")
@with_home
def watch(study: str, home: Path) -> None:
    """Show STUDY live, wherever it runs. Ctrl-C leaves the view, and STUDY goes on."""
    from ressmooth.engines.watching import watch

    store = open_home(home)
    row = find_study(store, study)
    if row.state == "queued":
        _say_if_nobody_serves(store, study, home)
    sys.exit(watch(store, row, home))


@main.command()
@click.argument("study")
@click.option("--follow", "-f", is_flag=True, help="go on until STUDY ends")
@with_home
def logs(study: str, follow: bool, home: Path) -> None:
    """Print a line for each run of STUDY that has ended."""
    from ressmooth.engines import watching

    store = open_home(home)
    watching.follow(store, find_study(store, study), follows=follow)


@main.command()
@click.argument("study")
@with_home
def stop(study: str, home: Path) -> None:
    """Stop STUDY after the current epochs. Nothing is lost."""
    store = open_home(home)
    state = store.stop_study(find_study(store, study).id)
    resume = command(home, "resume", study)
    messages = {
        "stopping": f"{study} stops after its current epochs; resume with: {resume}",
        "stopped": f"{study} is stopped; resume with: {resume}",
    }
    click.echo(messages.get(state, f"{study} has {state} already"))


@main.command()
@click.argument("study")
@with_home
def resume(study: str, home: Path) -> None:
    """Put STUDY back into the queue of the service."""
    store = open_home(home)
    check_same_build(store.service(), home)
    row = find_study(store, study)
    if row.state == "ended" and all(trial.state.is_terminal for trial in store.trials(row.id)):
        click.echo(f"{study} has ended already")
        return
    state = store.resume_study(row.id)
    click.echo(f"{study} is {state}")
    if state == "queued":
        _say_if_nobody_serves(store, study, home)


def _say_if_nobody_serves(store: "Store", study: str, home: Path) -> None:
    service = store.service()
    if not (service and service.is_alive):
        here = "" if only_submits() else f"; or run it here: {command(home, 'study', study)}"
        message = f"no service is running; start one: {serve_command(home)}{here}"
        click.echo(message, err=True)


@main.command()
@click.argument("study")
@click.argument("priority", type=click.Choice(["low", "normal", "high"]))
@with_home
def priority(study: str, priority: str, home: Path) -> None:
    """Change the share of STUDY: low 1, normal 4, high 16."""
    from ressmooth.store import Priority

    store = open_home(home)
    store.set_priority(find_study(store, study).id, Priority(priority))
    click.echo(f"{study} has {priority} priority")


def _metrics(port: int | None, home: Path) -> "MetricsServer | None":
    """Listen for Prometheus, before the service waits for its turn."""
    if port is None:
        return None
    from ressmooth.store import default_url
    from ressmooth.tracking.prometheus import MetricsServer, metrics_host

    return MetricsServer(default_url(home), port, metrics_host())


def _check(home: Path) -> int:
    """Tell whether the service has sent its heartbeat in time. Return the exit code."""
    service = open_home(home).service()
    if service is None:
        click.echo(f"no service is running; start one: {serve_command(home)}", err=True)
        return NO_SERVICE
    silent = f"{service.holder} sent its last heartbeat {service.silent:.0f} s ago"
    click.echo(silent, err=not service.is_alive)
    return 0 if service.is_alive else NO_SERVICE


def _resources(gpus_per_run: str, cpus_per_run: float) -> "Resources":
    from pydantic import ValidationError

    from ressmooth.spec import Resources

    try:
        gpus: Any = gpus_per_run if gpus_per_run == "auto" else float(gpus_per_run)
        return Resources(gpus_per_run=gpus, cpus_per_run=cpus_per_run)
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise ConfigError(f"--{option} {first['input']}: {first['msg']}") from None
    except ValueError:
        raise ConfigError(f"--gpus-per-run {gpus_per_run}: a number, or auto") from None
