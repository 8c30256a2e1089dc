"""`ressmooth`: everything but launching studies. Thin: each command imports what it needs."""

from ressmooth.cli import studies, training, upkeep
from ressmooth.cli.group import main

__all__ = ["main", "studies", "training", "upkeep"]
