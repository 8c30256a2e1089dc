"""How both commands fail: our errors become a line each and their exit code, never a traceback."""

from typing import Any

import click

from ressmooth.errors import RessmoothError
from ressmooth.phrases import printable

SETTINGS = {"help_option_names": ["-h", "--help"]}


class ReportsErrors(click.Command):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RessmoothError as error:
            for line in str(error).split("\n"):
                click.echo(f"error: {printable(line)}", err=True)
            ctx.exit(error.exit_code)


class Group(ReportsErrors, click.Group):
    pass
