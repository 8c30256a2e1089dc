"""Run a command in this process."""

from click.testing import CliRunner

from ressmooth.cli import main


def run(*arguments, home):
    return CliRunner().invoke(main, [*arguments, "--home", str(home)])
