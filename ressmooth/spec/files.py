"""Find study files, and merge them with what they extend and with every --set."""

import os
import stat
from importlib import resources
from pathlib import Path
from typing import Any

from ressmooth.config import RunConfig, is_own
from ressmooth.errors import ConfigError, did_you_mean
from ressmooth.spec.schema import Resources, Search, Study
from ressmooth.spec.toml import (
    Key,
    Sources,
    Tree,
    dotted,
    escape,
    parse,
    parse_key,
    parse_value,
    shorten,
    source_of,
    walk,
)

TABLES = ("search", "grid", "arms", "resources")
TABLE_KEYS = (RunConfig, Study, Search, Resources)
# What lines of a study file begin with, except for the names of arms and the settings of plug-ins.
KEYS = {"extends", "enqueue", *TABLES, *(key for table in TABLE_KEYS for key in table.model_fields)}
MAX_BYTES = 2**20
MAX_FILES = 10  # in a chain of `extends`


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
        raise ConfigError(f"{escape(str(path))}:{line}: not UTF-8") from None


def extend(tree: Tree, sources: Sources, path: Path, files: int = 1) -> tuple[Tree, Sources]:
    """Merge a study file's tree over the file that it extends, if it does.

    Return the merged tree, and where its keys come from. `files` is the position of this file in
    the chain.
    """
    if "extends" not in tree:
        return tree, sources
    base_path = _find_base(tree["extends"], sources[("extends",)], path, files)
    base, base_sources = extend(*parse(read(base_path), base_path, KEYS), base_path, files + 1)
    base.pop("name", None)  # every study has its own
    merged, inherited = merge(base, tree)
    del merged["extends"]
    origins = {key: source_of(key, base_sources) for key in inherited}
    below = {
        key: source
        for key, source in base_sources.items()
        if any(key[:length] in origins for length in range(1, len(key)))
    }
    return merged, origins | below | sources


def resolve_paths(tree: Tree, folder: Path) -> bool:
    """Make paths of data sets absolute; they are relative to the study file. Return if any was."""
    found = [
        (key, value)
        for key, value in walk(tree)
        if "dataset" in key and isinstance(value, str) and is_own(value)
    ]
    is_changed = False
    for key, value in found:
        kind, _, path = value.partition(":")
        absolute = f"{kind}:{(folder / Path(path).expanduser()).absolute()}"
        node: Any = tree
        for part in key[:-1]:
            node = node[part]
        node[key[-1]] = absolute
        is_changed |= absolute != value
    return is_changed


def _find_base(name: Any, source: str, path: Path, files: int) -> Path:
    """Return the file that a study extends: beside it, or as `find` finds it."""
    key = f"{source}: extends"
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
    path = parse_key(name)
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
    node[path[-1]] = parse_value(text)
    return added
