"""`python -m ressmooth.study`: launch a study, or resume it."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ressmooth import paths
from ressmooth.cli import HELP_OPTIONS, Command
from ressmooth.engines import Engine
from ressmooth.errors import ConfigError

if TYPE_CHECKING:
    from ressmooth.spec import Resources, StudySpec

ENGINES = {"local": "local", "ray": "ray", "optuna": "local"}  # optuna: the old name of local


@click.command(cls=Command, context_settings=HELP_OPTIONS)
@click.argument("study")
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
@click.option("--dry-run", is_flag=True, help="show the plan and create nothing")
@click.option("--quiet", is_flag=True, help="print only the comparison")
def main(
    study: str,
    home: Path | None,
    engine_name: str,
    workers: str,
    overrides: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
) -> None:
    """Run STUDY, a TOML file or the name of a bundled study. Run it again to resume.

    \b
    python -m ressmooth.study quickstart
    python -m ressmooth.study my.toml --workers 4 --set epochs=10 --set search.trials=50
    """
    from ressmooth.spec import load

    spec = load(study, overrides)
    directory = paths.home(home)
    engine = _engine(ENGINES[engine_name], spec, workers, directory)
    if dry_run:
        from ressmooth.engines.plan import plan

        click.echo(plan(spec, engine, directory))
        return
    from ressmooth.engines.launcher import Launcher

    options = ["--home", str(home)] if home else []
    options += ["--engine", engine_name] if ENGINES[engine_name] != "local" else []
    options += [part for override in overrides for part in ("--set", override)]
    resume_command = shlex.join(["python", "-m", "ressmooth.study", study, *options])
    code = Launcher(spec, engine, directory, resume_command, quiet).launch()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a normal exit would abort while the relay still draws a figure


def _engine(name: str, spec: "StudySpec", workers: str, home: Path) -> Engine:
    """Return the engine, and warn if it leaves GPUs idle. Ray's asks the cluster for its nodes."""
    if workers != "auto" and not (workers.isdecimal() and 0 < int(workers) <= 1024):
        raise ConfigError(f"--workers {workers}: a number from 1 to 1024, or auto")
    devices = {branch.values.get("device", "auto") for branch in spec.branches}
    if "cuda" in devices and not spec.resources.gpus_per_run:
        raise ConfigError("device = 'cuda': set resources.gpus_per_run to 1, or to a fraction")
    number = spec.resources.workers if workers == "auto" else int(workers)
    engine = _new_engine(name, spec.resources, number, home)
    if engine.idle_gpus and "auto" in devices:
        click.echo(
            f"warning: resources.gpus_per_run = 0 trains on CPUs; {engine.idle_gpus:g} GPUs stay "
            "idle. Use --set resources.gpus_per_run=1, or a fraction",
            err=True,
        )
    return engine


def _new_engine(name: str, resources: "Resources", workers: int | None, home: Path) -> Engine:
    if name == "local":
        from ressmooth.engines.local import LocalEngine

        return LocalEngine(resources, workers)
    from ressmooth.store import default_url

    try:
        from ressmooth.engines.ray import RayEngine
    except ImportError as error:
        raise ConfigError("--engine ray: Ray is missing; pip install 'ressmooth[ray]'") from error
    return RayEngine(resources, workers, default_url(home))


if __name__ == "__main__":
    main(prog_name="python -m ressmooth.study")
