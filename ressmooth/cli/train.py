"""`ressmooth train` and `ressmooth bench`: one run, and its cost."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ressmooth.cli import main
from ressmooth.cli.output import check_directory, check_replaceable, with_force
from ressmooth.config import PROTOCOL, RunConfig, choices
from ressmooth.errors import ConfigError, Diverged
from ressmooth.paths import command, home


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add one option per setting of a run. Omitted settings follow the paper's protocol."""
    of_protocol = {"lr", *next(iter(PROTOCOL.values()))}
    for name, field in reversed(RunConfig.model_fields.items()):
        if name == "plugin_settings":  # plug-ins are for studies
            continue
        flag = f"--{name.replace('_', '-')}"
        default = "the paper's" if name in of_protocol else field.default
        names = choices(field.annotation)
        kind: Any = click.Choice(names) if names else field.annotation
        if field.annotation is bool:
            flag = f"{flag}/--no-{name.replace('_', '-')}"
            default = "on" if field.default else "off"
        text = f"{field.description} [default: {default}]"
        command = click.option(flag, name, type=kind, default=None, help=text)(command)
    return command


@main.command()
@click.option("--out", type=click.Path(path_type=Path), help="directory for the run's files")
@click.option("--resume", is_flag=True, help="resume the run in --out")
@with_force
@click.option("--data", type=click.Path(path_type=Path), help="data directory")
@run_options
def train(out: Path | None, resume: bool, force: bool, data: Path | None, **options: Any) -> None:
    """Train one run.

    \b
    ressmooth train --dataset digits --method smoothing --distribution laplace --b 0.5
    ressmooth train --dataset fashion_mnist --fraction 0.125 --model resnet20 --out run
    """
    from ressmooth.engines.output import survive_broken_output
    from ressmooth.engines.progress import EpochBar
    from ressmooth.training import single_run

    survive_broken_output()

    values = {name: value for name, value in options.items() if value is not None}
    if out is not None:
        _check_out(out, resume or single_run.is_run(out), force)
    config = single_run.configure(values, out, resume)
    if out is None:
        click.echo("nothing is kept: no --out given", err=True)
    bar = EpochBar(config.epochs)
    try:
        with bar.progress:
            state = single_run.load_state(out) if out and resume else None
            if state and config.threads not in (0, state["threads"]):
                click.echo(
                    f"warning: resumed with {config.threads} threads (was {state['threads']}): "
                    "results may not be bit-identical",
                    err=True,
                )
            bar.start(len(state["curve"]) if state else 0)
            place = data or home() / "data"
            result = single_run.run(config, bar.advance, data=place, out=out, state=state)
    except KeyboardInterrupt:
        hint = f"; resume with: {_resume_command(out, data)}" if out else ""
        click.echo(f"stopped after epoch {bar.done}{hint}", err=True)
        sys.exit(130)
    if result.diverged_at is not None:
        raise Diverged(
            f"{result.outcome}: the loss is nan or inf; try a lower --lr (was {config.lr})"
        )
    click.echo(
        f"max accuracy {result.max_acc:.2f} %   mean of last {config.window} "
        f"{result.mean_acc:.2f} %   ({result.device}, {result.threads} threads)"
    )
    if config.selection == "holdout":
        click.echo(f"test accuracy {result.test_acc:.2f} %")
    if out is not None:
        click.echo(f"wrote {out}/: config.json, curves.csv, curves.png and a checkpoint")


def _check_out(out: Path, is_ours: bool, force: bool) -> None:
    """Refuse to replace what is not a run's. `configure` refuses to replace a run."""
    check_directory(out)
    for name in ("config.json", "curves.csv", "curves.png"):
        check_replaceable(out / name, home(), is_ours, force)


def _resume_command(out: Path, data: Path | None) -> str:
    options = ["--data", str(data)] if data else []
    return command(home(), "train", "--out", str(out), "--resume", *options)


@main.command()
@click.option("--quick", is_flag=True, help="about a minute, less precise")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--threads", type=click.IntRange(1), default=1, help="CPU threads [default: 1]")
@click.option("--study", is_flag=True, help="measure the overhead of a study instead")
@click.option("--verdict", is_flag=True, help="replay recorded runs: race / full grid instead")
@click.option("--format", "output_format", type=click.Choice(["table", "json"]), default="table")
def bench(
    quick: bool, device: str, threads: int, study: bool, verdict: bool, output_format: str
) -> None:
    """Measure what the method and the trainer cost here, as ratios."""
    if study and verdict:
        raise ConfigError("--study and --verdict: give one of them")
    from ressmooth.bench import timing

    if verdict:
        from ressmooth.bench.prefixes import measure as measure_prefixes
        from ressmooth.bench.verdict import measure as measure_verdict

        rows = [*measure_verdict(quick=quick), *measure_prefixes(quick=quick)]
    elif study:
        from ressmooth.bench.study import measure as measure_study

        rows = measure_study(quick=quick)
    else:
        from ressmooth.bench.training import measure as measure_training

        rows = measure_training(quick=quick, device=device, threads=threads)
    on = "cpu" if study or verdict else device
    show = timing.as_json if output_format == "json" else timing.as_table
    click.echo(show(rows, on))
