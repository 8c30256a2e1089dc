"""Which build of ressmooth this is, so that two of them never work together unnoticed."""

import os

from ressmooth import __version__


def build() -> str:
    """Return the version, with the hash of the source in an image that sets RESSMOOTH_BUILD."""
    source = os.environ.get("RESSMOOTH_BUILD")
    return f"{__version__}+{source}" if source else __version__


def build_resource() -> str | None:
    """Return the Ray resource of nodes with this build, or None outside of images."""
    return f"ressmooth-{build()}" if os.environ.get("RESSMOOTH_BUILD") else None
