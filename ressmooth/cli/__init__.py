"""The `ressmooth` command: everything except launching studies.

`--help` must be fast, so each command imports what it needs when it runs.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ressmooth import __version__, paths
from ressmooth.build import build
from ressmooth.errors import ConfigError, RessmoothError, did_you_mean
from ressmooth.formatting import printable

if TYPE_CHECKING:
    from ressmooth.store import ServiceRow, Store, StudyRow

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
COMMANDS = {  # by module of ressmooth.cli
    "train": ("train", "bench"),
    "studies": ("list", "show", "compare", "report", "plot", "export", "retry", "rerun"),
    "manage": ("rename", "delete", "clean"),
    "archives": ("import",),
    "queue": ("queue", "workers"),
    "service": ("serve", "watch", "logs", "stop", "resume", "priority"),
    "admin": ("fetch", "sync", "ui", "db", "doctor", "schema"),
}
MODULES = {name: module for module, names in COMMANDS.items() for name in names}


class Command(click.Command):
    """Prints a RessmoothError as "error: ..." lines and exits with its exit code.

    Where nothing else handles Ctrl-C, it ends the command with exit code 130, as in a shell.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RessmoothError as error:
            for line in str(error).split("\n"):
                click.echo(f"error: {printable(line)}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
            ctx.exit(130)


class Commands(Command, click.Group):
    """Imports the module of a command when that command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["study", *MODULES]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name == "study":  # the same as python -m ressmooth.study
            command: click.Command = import_module("ressmooth.study").main
            return command
        if name in MODULES:
            import_module(f"ressmooth.cli.{MODULES[name]}")
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = did_you_mean(args[0], self.list_commands(ctx))
            raise click.UsageError(f"{error.message.rstrip('.')}{hint}.", ctx) from None


@click.group(cls=Commands, context_settings=HELP_OPTIONS)
@click.version_option(__version__)
def main() -> None:
    """Test whether residual smoothing regularises: train, search, track and compare."""


with_home = click.option(
    "--home",
    type=click.Path(path_type=Path),
    callback=lambda context, option, value: paths.home(value),
    help="where results are kept [default: RESSMOOTH_HOME or ~/.ressmooth]",
)


def open_home(home: Path) -> "Store":
    """Open the Store of a home directory. Do not create one: only a launch does."""
    from ressmooth.store import default_url, open_store

    store = open_store(default_url(home), create=False)
    if warning := _another_build(store.service(), home):
        click.echo(f"warning: {warning}", err=True)
    return store


def check_same_build(service: "ServiceRow | None", home: Path) -> None:
    """Refuse to give work to a service of another build."""
    if message := _another_build(service, home):
        raise ConfigError(message)


def _another_build(service: "ServiceRow | None", home: Path) -> str | None:
    if service is None or not service.is_alive or service.build == build():
        return None
    return (
        f"this is ressmooth {build()}, but the service {service.holder} is ressmooth "
        f"{service.build}; restart it with the same one: {paths.serve_command(home)}"
    )


def find_study(store: "Store", name: str) -> "StudyRow":
    study = store.study(name)
    if study is None:
        known = [row.name for row in store.studies()]
        hint = did_you_mean(name[:64], known)
        raise ConfigError(f"no study {name!r} here{hint}; known: {', '.join(known) or 'none yet'}")
    return study
