"""Commands that show the queue of studies and the workers."""

from pathlib import Path

import click

from ressmooth.cli import main, open_home, with_home


@main.command()
@click.option("--watch", is_flag=True, help="refresh every two seconds until Ctrl-C")
@click.option("--all", "shows_all", is_flag=True, help="also every study that ended long ago")
@with_home
def queue(watch: bool, shows_all: bool, home: Path) -> None:
    """Show every study: its owner, progress, place and time left."""
    from ressmooth.report.queue import ENDED, queue_text

    store = open_home(home)

    def text() -> str:
        return queue_text(store.queue(None if shows_all else ENDED), home)

    if watch:
        from ressmooth.cli.live import show

        show(text)
    else:
        click.echo(text())


@main.command()
@with_home
def workers(home: Path) -> None:
    """Show the service's nodes and what runs there."""
    from ressmooth.report.queue import workers_text

    click.echo(workers_text(open_home(home).queue(0), home))
