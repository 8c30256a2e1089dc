"""Find study files and read them into plain tables. Knows TOML, not studies."""

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from ressmooth.errors import ConfigError, did_you_mean

TABLES = ("search", "grid", "arms", "resources")
MAX_BYTES = 2**20
MAX_FILES = 10  # in a chain of `extends`
MAX_DEPTH = 20  # levels of nested tables and lists
TOO_DEEP = f"nested too deeply: at most {MAX_DEPTH} levels"
# tomllib takes quadratic time over a key of many dotted parts.
DOTTED = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+)" f"{{{MAX_DEPTH}}}")

Tree = dict[str, Any]  # the tables of a study file
Key = tuple[str | int, ...]  # a position in a tree: table names and list indices
Sources = dict[Key, str]  # the origin of a key and of all below it, if not the file itself


def bundled() -> list[str]:
    """Return the names of the studies that come with the package."""
    return sorted(_bundled_files())


def _bundled_files() -> dict[str, Path]:
    files = [Path(str(entry)) for entry in resources.files("ressmooth.studies").iterdir()]
    return {file.stem: file for file in files if file.suffix == ".toml"}


def find(path_or_name: str) -> Path:
    """Return the study file with that path, or else the bundled study with that name."""
    studies = _bundled_files()
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
    """Return the text of a study file. Never block on a pipe or a device."""
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
    """Return the tables of a study file, or raise a ConfigError that names the line."""
    source = escape(str(path))
    if DOTTED.search(text):
        raise ConfigError(f"{source}: {TOO_DEEP}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{source}: {TOO_DEEP}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: {_with_line(str(error), text)}") from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise ConfigError(f"{source}: {str(error).partition(';')[0]}") from None


def _with_line(message: str, text: str) -> str:
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message)
    if found is None:
        return escape(message)
    number = int(found[2] or len(text.rstrip().split("\n")))
    line = text.split("\n")[number - 1].strip()
    problem = found[1][0].lower() + found[1][1:]
    if problem.startswith("cannot"):  # overwrite a value, declare a table twice, ...
        problem += " (is this key given twice?)"
    return f"line {number}, {shorten(line)}: {escape(problem)}"


def extend(tree: Tree, path: Path, files: int = 1) -> tuple[Tree, Sources]:
    """Merge a study file's tree over the file that it extends, if it does.

    Return the merged tree, and for each inherited key the file that it comes from. `files` is the
    position of this file in the chain.
    """
    if "extends" not in tree:
        return tree, {}
    base_path = _find_base(tree["extends"], path, files)
    base, sources = extend(parse(read(base_path), base_path), base_path, files + 1)
    base.pop("name", None)  # every study has its own
    merged, inherited = merge(base, tree)
    del merged["extends"]
    origins = {key: source_of(key, sources) or escape(str(base_path)) for key in inherited}
    below = {key: source for key, source in sources.items() if source_of(key, origins)}
    return merged, origins | below


def _find_base(name: Any, path: Path, files: int) -> Path:
    """Return the file that a study extends: beside it, or as `find` finds it."""
    key = f"{escape(str(path))}: extends"
    if not isinstance(name, str):
        raise ConfigError(f"{key} = {shorten(name)}: input should be a path or a bundled study")
    if files == MAX_FILES:
        raise ConfigError(f"{key} = {shorten(name)}: at most {MAX_FILES} files, without a cycle")
    beside = path.parent / name
    if os.path.isfile(beside):
        return beside
    try:
        return find(name)
    except ConfigError as error:
        raise ConfigError(f"{key} = {error}") from None


def source_of(key: Key, sources: Sources) -> str | None:
    """Return where a key comes from, or None for the file itself."""
    prefixes = (key[:length] for length in range(len(key), 0, -1))
    return next((sources[prefix] for prefix in prefixes if prefix in sources), None)


def merge(base: Tree, tree: Tree, path: Key = ()) -> tuple[Tree, list[Key]]:
    """Return `base` with the values of `tree` over it, and the keys that only `base` has.

    Tables merge key by key, arms setting by setting. Any other value replaces the base's.
    """
    merged: Tree = {}
    inherited: list[Key] = []
    for key in {**base, **tree}:
        here = (*path, key)
        if key not in tree:
            merged[key] = base[key]
            inherited.append(here)
        elif _is_table(here) and isinstance(base.get(key), dict) and isinstance(tree[key], dict):
            merged[key], below = merge(base[key], tree[key], here)
            inherited += below
        else:
            merged[key] = tree[key]
    return merged, inherited


def _is_table(key: Key) -> bool:
    return key[0] in TABLES and (len(key) == 1 or (key[0] == "arms" and len(key) == 2))


def override(tree: Tree, setting: str) -> Key:
    """Put "key.path=value" into the tree. The value is TOML, or else a string.

    Return the shortest key that is in the tree only because of this.
    """
    name, sign, text = setting.partition("=")
    path = _parse_key(name)
    if path is None or not sign:
        raise ConfigError(f"--set {shorten(setting)}: write key=value, as in search.trials=50")
    if path[0] == "extends":  # the base has been read already
        raise ConfigError(f"--set {shorten(setting)}: write extends into the study file")
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
    node[path[-1]] = _parse_value(text)
    return added


def _parse_key(name: str) -> tuple[str, ...] | None:
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


def _parse_value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if list(found) == ["value"] else text


def walk(tree: Any) -> Iterator[tuple[Key, Any]]:
    """Yield every key of a tree with its value, in the order of the file."""
    stack: list[tuple[Key, Any]] = [((), tree)]
    while stack:
        key, value = stack.pop()
        yield key, value
        items: Iterable[tuple[str | int, Any]] = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, list):
            items = enumerate(value)
        stack.extend(reversed([((*key, name), item) for name, item in items]))


def escape(text: str) -> str:
    return text if text.isprintable() else repr(text)


def shorten(value: Any) -> str:
    """Return the value's repr in at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        text = hex(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def dotted(key: Key) -> str:
    """Return a key as TOML writes it, with list indices in brackets."""
    parts = ""
    for part in key:
        if isinstance(part, int):
            parts += f"[{part}]"
        else:
            parts += "." + (part if re.fullmatch(r"[\w-]{1,64}", part) else shorten(part))
    return parts.removeprefix(".")
