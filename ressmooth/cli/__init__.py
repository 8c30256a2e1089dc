"""`ressmooth`: everything but launching studies. Thin: each command imports what it needs."""

from ressmooth.cli.group import main

__all__ = ["main"]
