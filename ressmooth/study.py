"""`python -m ressmooth.study`: launch a study, or resume it."""

import os
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ressmooth import paths
from ressmooth.cli import HELP_OPTIONS, Command, check_same_build
from ressmooth.engines import Engine, check_fits, new_engine, number_of_workers
from ressmooth.errors import ConfigError, SchemaError, StoreUnreachable, did_you_mean

if TYPE_CHECKING:
    from ressmooth.engines.plan import Workers
    from ressmooth.spec import StudySpec
    from ressmooth.store import ServiceRow, StudyRow

ENGINES = {"local": "local", "ray": "ray", "optuna": "local"}  # optuna: the old name of local


def _show_list(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value:
        from ressmooth.engines.catalogue import catalogue

        click.echo(catalogue())
        context.exit()


@click.command(cls=Command, context_settings=HELP_OPTIONS)
@click.argument("study")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_list,
    help="list the bundled studies, with their runs and epochs",
)
@click.option("--home", type=click.Path(path_type=Path), help="where results are kept")
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(list(ENGINES)),
    metavar="[local|ray]",
    default="local",
    help="worker processes on this machine, or the Ray cluster at RAY_ADDRESS",
)
@click.option("--workers", default="auto", metavar="N|auto", help="concurrent runs")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="change a setting")
@click.option(
    "--plugin",
    "plugin_files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="run this Python file: your own data sets, networks, methods, optimizers",
)
@click.option("--dry-run", is_flag=True, help="show the plan and create nothing")
@click.option("--time", "measures", is_flag=True, help="with --dry-run: measure how long it takes")
@click.option("--detach", is_flag=True, help="submit to the service and return at once")
@click.option(
    "--priority",
    type=click.Choice(["low", "normal", "high"]),
    help="share of the service's workers: 1, 4 or 16 [default: normal]",
)
@click.option("--quiet", is_flag=True, help="print only the comparison")
def main(
    study: str,
    home: Path | None,
    engine_name: str,
    workers: str,
    overrides: tuple[str, ...],
    plugin_files: tuple[Path, ...],
    dry_run: bool,
    measures: bool,
    detach: bool,
    priority: str | None,
    quiet: bool,
) -> None:
    """Run STUDY: a TOML file, a bundled study or a recorded one. Run it again to resume.

    If a service runs the studies of this home (`ressmooth serve`), STUDY is submitted to it.

    \b
    python -m ressmooth.study quickstart
    python -m ressmooth.study my.toml --workers 4 --set epochs=10 --set search.trials=50
    """
    directory = paths.home(home)
    words = ["study", study]
    words += ["--engine", engine_name] if ENGINES[engine_name] != "local" else []
    words += ["--workers", workers] if workers != "auto" else []
    words += [part for override in overrides for part in ("--set", override)]
    words += [part for file in plugin_files for part in ("--plugin", str(file))]
    time_command = paths.command(directory, *words, "--dry-run", "--time")
    if measures and not dry_run:
        raise ConfigError(f"--time: only with --dry-run; run: {time_command}")
    spec = _read(study, overrides, plugin_files, directory)
    service = _service(directory)
    serve = paths.serve_command(directory)
    if dry_run and (service or paths.only_submits()):
        if service is None:
            raise ConfigError(f"--dry-run: no service is running; start one: {serve}")
        _show_plan(spec, service, directory, measures, time_command)
        return
    if not dry_run and (detach or service or paths.only_submits()):
        check_same_build(service, directory)
        _check_same_engine(service, ENGINES[engine_name], workers)
        sys.exit(_submit(spec, directory, priority, detach, quiet))
    if priority:
        raise ConfigError(f"--priority {priority}: needs a service; start one: {serve}")
    engine = _engine(ENGINES[engine_name], spec, workers, directory)
    if dry_run:
        _show_plan(spec, engine, directory, measures, time_command)
        return
    from ressmooth.engines import machine, preflight
    from ressmooth.engines.launcher import Launcher

    machine.check_free("study", study)
    hashes = preflight.check(spec, directory)
    resume_command = paths.command(directory, *words)
    code = Launcher(spec, engine, directory, resume_command, quiet, hashes).launch()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a normal exit would abort while the relay still draws a figure


def _service(home: Path) -> "ServiceRow | None":
    """Return the living service of the home. Do not create a home."""
    from ressmooth.store import Store, default_url

    try:
        with closing(Store(default_url(home))) as store:
            service = store.service()
    except (StoreUnreachable, SchemaError):
        return None
    return service if service and service.is_alive else None


def _check_same_engine(service: "ServiceRow | None", engine_name: str, workers: str) -> None:
    """Refuse options that only the service can choose."""
    if service is None:
        return
    chosen = [f"--workers {workers}"] if workers != "auto" else []
    chosen += [f"--engine {engine_name}"] if engine_name not in ("local", service.engine) else []
    if chosen:
        raise ConfigError(
            f"{' '.join(chosen)}: the service {service.holder} runs the studies of this home, with "
            f"{service.description}; leave the option out"
        )


def _submit(spec: "StudySpec", home: Path, priority: str | None, detach: bool, quiet: bool) -> int:
    """Submit a study to the service and show it. Return the exit code."""
    from ressmooth.engines import preflight
    from ressmooth.engines.watching import watch
    from ressmooth.store import Priority, default_url, open_store

    preflight.check(spec, home)
    paths.make_home(home)
    with closing(open_store(default_url(home))) as store:
        store.submit(spec, paths.user(), Priority(priority) if priority else None)
        study = store.study(spec.name)
        if _service(home) is None:
            serve = paths.serve_command(home)
            click.echo(
                f"{spec.name} waits, because no service is running; start one: {serve}", err=True
            )
        if study and not detach:
            return watch(store, study, home, quiet=quiet)
    click.echo(f"submitted {spec.name}; see it with: {paths.command(home, 'watch', spec.name)}")
    return 0


def _show_plan(
    spec: "StudySpec", engine: "Workers", home: Path, measures: bool, time_command: str
) -> None:
    from ressmooth.engines.plan import plan
    from ressmooth.engines.timing import measured_seconds

    measure = partial(measured_seconds, spec, home) if measures else None
    click.echo(plan(spec, engine, home, measure, time_command))


def _read(
    study: str, overrides: tuple[str, ...], plugin_files: tuple[Path, ...], home: Path
) -> "StudySpec":
    """Read a study file, a bundled study, or a study that is recorded in the home."""
    from ressmooth.plugins import restore
    from ressmooth.spec import bundled, differences, find_plugins, load, load_recorded

    if os.path.isfile(study):
        return load(study, overrides, find_plugins(plugin_files))
    recorded = {row.name: row for row in _recorded(home)}
    row = recorded.get(study)
    if study in bundled():
        spec = load(study, overrides, find_plugins(plugin_files))
        if overrides or row is None or not (lines := differences(row.spec, spec)):
            return spec
        new = paths.command(home, "study", study, "--set", f"name={study}-2")
        click.echo(f"resuming {study} as recorded ({lines[0]}); the bundled study: {new}", err=True)
    if row is not None:
        recorded_plugins = restore(row.spec.get("plugins", ()))
        plugins = find_plugins(plugin_files) if plugin_files else recorded_plugins
        return load_recorded(study, row.file_text, overrides, plugins)
    if os.path.lexists(study):
        return load(study, overrides)  # tells what it is instead of a file
    hint = did_you_mean(study[:64], [*bundled(), *recorded])
    known = f"bundled: {', '.join(bundled())}; recorded in {home}: {', '.join(recorded) or 'none'}"
    raise ConfigError(f"{study[:80]!r}: neither a file nor a known study{hint}; {known}")


def _recorded(home: Path) -> "list[StudyRow]":
    """Return the studies of the home. Do not create it."""
    from ressmooth.store import Store, default_url

    try:
        with closing(Store(default_url(home))) as store:
            return store.studies()
    except StoreUnreachable:
        return []


def _engine(name: str, spec: "StudySpec", workers: str, home: Path) -> Engine:
    """Return the engine, and warn if it leaves GPUs idle. Ray's asks the cluster for its nodes."""
    number = number_of_workers(workers) or spec.resources.workers
    devices, resources = spec.devices, spec.resources
    if resources.gpus_per_run == "auto" and devices == {"cpu"}:  # GPUs do not limit its concurrency
        resources = resources.model_copy(update={"gpus_per_run": 0.0})
    engine = new_engine(name, resources, number, home)
    check_fits(spec, engine)
    if engine.gpus and not engine.gpus_per_run and "auto" in devices:
        click.echo(
            f"warning: resources.gpus_per_run = 0 trains on CPUs; {engine.gpus:g} GPUs stay idle. "
            "Use --set resources.gpus_per_run=1, a fraction, or auto",
            err=True,
        )
    return engine


if __name__ == "__main__":
    main(prog_name="python -m ressmooth.study")
