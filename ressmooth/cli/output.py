"""The rule for --out: what ressmooth did not write is never replaced without --force."""

from pathlib import Path

import click

from ressmooth.errors import ConfigError

HOME_DIRECTORIES = ("runs", "artifacts", "data", "reports")
HOME_DATABASES = ("results.db", "mlflow.db", "mlflow.lock")  # with their journals and backups

with_force = click.option(
    "--force", is_flag=True, help="replace files that ressmooth did not write"
)


def check_replaceable(path: Path, home: Path, is_ours: bool, force: bool) -> None:
    """Refuse to replace a file that ressmooth did not write, and files of the home always."""
    if _is_of_home(path.resolve(), home.resolve()):
        raise ConfigError(f"--out {path}: belongs to the home {home}; choose another path")
    if path.exists() and not is_ours and not force:
        reason = "exists and was not written by ressmooth"
        raise ConfigError(f"--out {path}: {reason}; choose another path, or add --force")


def check_directory(path: Path) -> None:
    """Refuse a file, or a path below one, where a directory is needed."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise ConfigError(f"--out {path}: {place} is a file; choose another path")


def _is_of_home(place: Path, home: Path) -> bool:
    if not place.is_relative_to(home) or place == home:
        return False
    name = place.relative_to(home).parts[0]
    return name in HOME_DIRECTORIES or name.startswith(HOME_DATABASES)
