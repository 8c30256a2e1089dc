"""Collect every error of a study file, one line each: place, key, value, and what is allowed."""

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ressmooth.config import reason
from ressmooth.errors import ConfigError, did_you_mean
from ressmooth.spec import toml
from ressmooth.spec.toml import Key, Sources, Tree, dotted, walk

MAX_LINES = 100  # errors shown

M = TypeVar("M", bound=BaseModel)


class ErrorCollector:
    """Collects the errors of a tree, one per key, and raises them in the order of the file."""

    def __init__(self, tree: Tree, sources: Sources) -> None:
        self.tree, self.sources = tree, sources
        self.lines: dict[Key, str] = {}

    def add(self, key: Key, allowed: str) -> None:
        if key not in self.lines:
            self.lines[key] = f"{self._source(key)}: {self._value(key)}{allowed}"

    def _source(self, key: Key) -> str:
        return toml.source_of(key, self.sources)

    def _value(self, key: Key) -> str:
        """Return the key with its value, if the file sets one."""
        if not key:
            return ""
        value: Any = self.tree
        for part in key:
            if isinstance(part, str) and part not in value:
                return f"{dotted(key)}: "
            value = value[part]
        return f"{dotted(key)} = {toml.shorten(value)}: "

    def add_unknown(self, key: Key, known: Iterable[str]) -> None:
        """Add a key without its value, because the file may not be a study but have secrets."""
        hint = did_you_mean(str(key[-1])[:64], known) if len(self.lines) < MAX_LINES else ""
        line = f"{self._source(key)}: {dotted(key)}: unknown key{hint}"
        self.lines.setdefault(key, line)

    def validate(self, kind: type[M], key: Key, table: Tree) -> M | None:
        """Return the table as a model, or None after adding its errors."""
        try:
            return kind.model_validate(table)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                path = (*key, *detail["loc"][:1])  # the rest names a member of a union
                if detail["type"] == "extra_forbidden":
                    self.add_unknown(path, kind.model_fields)
                else:
                    self.add(path, reason(detail))
            return None

    def check_shape(self) -> None:
        """Refuse deep nesting and huge integers, which later code could not even print."""
        for key, value in walk(self.tree):
            if len(key) > toml.MAX_DEPTH:
                raise ConfigError(f"{self._source(key)}: {dotted(key[:2])}: {toml.TOO_DEEP}")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                self.add(key, "input should be an integer of at most 64 bits")
        self.check()

    def check(self) -> None:
        """Raise a ConfigError if there are errors."""
        if not self.lines:
            return
        order = {key: n for n, (key, _) in enumerate(walk(self.tree))}

        def position(key: Key) -> int:
            while key not in order:  # a missing key stands where its table does
                key = key[:-1]
            return order[key]

        lines = [self.lines[key] for key in sorted(self.lines, key=position)]
        if len(lines) > MAX_LINES:
            lines[MAX_LINES:] = [f"{self._source(())}: and {len(lines) - MAX_LINES:,} more errors"]
        raise ConfigError(*lines)
