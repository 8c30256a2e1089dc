"""What is wrong with a study file, one line per mistake: file, key, value, what is allowed."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ressmooth.errors import ConfigError, did_you_mean

MAX_DEPTH = 20  # of tables and lists in each other
MAX_LINES = 100  # of mistakes shown
TOO_DEEP = f"nested too deeply: at most {MAX_DEPTH} levels"

Tree = dict[str, Any]  # the tables of a study file
Key = tuple[str | int, ...]  # where in a tree: names of tables, positions in lists
M = TypeVar("M", bound=BaseModel)


class Mistakes:
    """What is wrong with a tree: one line per key, shown in the order of the file."""

    def __init__(self, source: str, tree: Tree, overridden: Sequence[Key] = ()) -> None:
        self.source, self.tree, self.overridden = escape(source), tree, overridden
        self.lines: dict[Key, str] = {}

    def add(self, key: Key, allowed: str) -> None:
        if key in self.lines:
            return
        source = self.source
        if any(key[: len(path)] == path for path in self.overridden):
            source = "--set"
        self.lines[key] = f"{source}: {self._given(key)}{allowed}"

    def _given(self, key: Key) -> str:
        """The key with the value that the file gives it, if it does."""
        if not key:
            return ""
        value: Any = self.tree
        for part in key:
            if isinstance(part, str) and part not in value:
                return f"{dotted(key)}: "
            value = value[part]
        return f"{dotted(key)} = {shorten(value)}: "

    def add_unknown(self, key: Key, known: Iterable[str]) -> None:
        hint = did_you_mean(str(key[-1])[:64], known) if len(self.lines) < MAX_LINES else ""
        self.add(key, f"unknown key{hint}")

    def validate(self, kind: type[M], key: Key, table: Tree) -> M | None:
        """The table as a model, or None with its mistakes noted."""
        try:
            return kind.model_validate(table)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                where = (*key, *detail["loc"])
                if detail["type"] == "extra_forbidden":
                    self.add_unknown(where, kind.model_fields)
                else:
                    self.add(where, reason(detail))
            return None

    def check_shape(self) -> None:
        """Refuse what later code could not even print: deep nesting, endless integers."""
        for key, value in walk(self.tree):
            if len(key) > MAX_DEPTH:
                raise ConfigError(f"{self.source}: {dotted(key[:2])}: {TOO_DEEP}")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                self.add(key, "input should be an integer of at most 64 bits")
        self.check()

    def check(self) -> None:
        """Raise what was found, if anything was."""
        if not self.lines:
            return
        order = {key: n for n, (key, _) in enumerate(walk(self.tree))}

        def position(key: Key) -> int:
            while key not in order:  # a key that is missing stands where its table does
                key = key[:-1]
            return order[key]

        lines = [self.lines[key] for key in sorted(self.lines, key=position)]
        if len(lines) > MAX_LINES:
            lines[MAX_LINES:] = [f"{self.source}: and {len(lines) - MAX_LINES:,} more mistakes"]
        raise ConfigError(*lines)


def walk(tree: Any) -> Iterator[tuple[Key, Any]]:
    """Every key of a tree with its value, in the order of the file."""
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


def reason(detail: ErrorDetails) -> str:
    if detail["type"] == "missing":
        return "missing"
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    return detail["msg"][0].lower() + detail["msg"][1:]


def escape(text: str) -> str:
    return text if text.isprintable() else repr(text)


def shorten(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        text = hex(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def dotted(key: Key) -> str:
    """A key as TOML writes it; positions in lists in brackets."""
    parts = ""
    for part in key:
        if isinstance(part, int):
            parts += f"[{part}]"
        else:
            parts += "." + (part if re.fullmatch(r"[\w-]{1,64}", part) else shorten(part))
    return parts.removeprefix(".")
