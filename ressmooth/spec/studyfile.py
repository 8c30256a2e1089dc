"""Finds study files and reads them into plain tables. Knows TOML, not studies."""

import os
import re
import stat
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from ressmooth.errors import ConfigError, did_you_mean
from ressmooth.mistakes import MAX_DEPTH, TOO_DEEP, Key, Tree, dotted, escape, shorten

MAX_BYTES = 2**20
# tomllib takes quadratic time over a key of many dotted parts.
DOTTED = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+)" f"{{{MAX_DEPTH}}}")


def bundled() -> list[str]:
    """The names of the studies that come with the package."""
    return sorted(_bundled())


def _bundled() -> dict[str, Path]:
    try:
        folder = resources.files("ressmooth.studies")
    except ModuleNotFoundError:  # a checkout
        folder = Path(__file__).parents[2] / "studies"
    files = [Path(str(entry)) for entry in folder.iterdir()]
    return {file.stem: file for file in files if file.suffix == ".toml"}


def find(path_or_name: str) -> Path:
    """The study file of that path, else the bundled study of that name."""
    studies = _bundled()
    if path_or_name in studies and not os.path.isfile(path_or_name):
        return studies[path_or_name]
    if os.path.lexists(path_or_name):
        return Path(path_or_name)
    hint = did_you_mean(path_or_name[:64], studies)
    raise ConfigError(
        f"{shorten(path_or_name)}: neither a file nor a bundled study{hint}; "
        f"bundled: {', '.join(sorted(studies))}"
    )


def read(path: Path) -> str:
    """The text of a study file; never waits on a pipe or a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{escape(str(path))}: not a regular file")
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise ConfigError(f"{escape(str(path))}: a directory, not a study file") from None
    except OSError as error:
        raise ConfigError(f"{escape(str(path))}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{escape(str(path))}: larger than 1 MB")
    if data.startswith(b"\xef\xbb\xbf"):
        raise ConfigError(f"{escape(str(path))}: begins with a byte order mark: save it without")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{escape(str(path))}: line {line}: not UTF-8") from None


def parse(text: str, path: Path) -> Tree:
    source = escape(str(path))
    if DOTTED.search(text):
        raise ConfigError(f"{source}: {TOO_DEEP}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{source}: {TOO_DEEP}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: {_place(str(error), text)}") from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise ConfigError(f"{source}: {str(error).partition(';')[0]}") from None


def _place(message: str, text: str) -> str:
    """tomllib's message, with the line itself."""
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message)
    if found is None:
        return escape(message)
    lines = text.split("\n")
    number = int(found[2] or len(text.rstrip().split("\n")))
    problem = found[1][0].lower() + found[1][1:]
    if problem.startswith("cannot"):  # overwrite a value, declare a table twice, ...
        problem += " (is this key given twice?)"
    return f"line {number}, {shorten(lines[number - 1].strip())}: {escape(problem)}"


def override(tree: Tree, setting: str) -> Key:
    """Put "key.path=value" into the tree; the value is TOML, else a string.

    Returns the key of what is in the tree only by this.
    """
    name, sign, text = setting.partition("=")
    path = _path(name)
    if path is None or not sign:
        raise ConfigError(f"--set {shorten(setting)}: write key=value, as in search.trials=50")
    arms = tree.get("arms")
    if path[0] == "arms" and len(path) > 2 and isinstance(arms, dict) and path[1] not in arms:
        raise ConfigError(
            f"--set {shorten(setting)}: no such arm{did_you_mean(path[1][:64], arms)}; "
            f"arms: {shorten(', '.join(arms))}"
        )
    node, added = tree, path
    for n, part in enumerate(path[:-1], start=1):
        if part not in node and len(added) > n:
            added = path[:n]
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(
                f"--set {shorten(setting)}: {dotted(path[:n])} = {shorten(node)} is not a table"
            )
    node[path[-1]] = _value(text)
    return added


def _path(name: str) -> tuple[str, ...] | None:
    if DOTTED.search(name):
        return None
    try:
        node: Any = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        return None
    path = []
    while isinstance(node, dict) and len(node) == 1:
        [(part, node)] = node.items()
        path.append(part)
    return tuple(path) if node == 0 else None


def _value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if list(found) == ["value"] else text
