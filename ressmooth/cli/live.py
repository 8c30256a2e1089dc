"""Show a text that changes, on a terminal."""

import time
from collections.abc import Callable
from contextlib import suppress

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

PERIOD = 2.0  # seconds


def show(text: Callable[[], str]) -> None:
    """Refresh a text until Ctrl-C. Without a terminal, print it once."""
    console = Console(highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        click.echo(text())
        return
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(Text(text(), no_wrap=True), refresh=True)
            time.sleep(PERIOD)
