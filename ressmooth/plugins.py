"""Plug-ins: the user's own data sets, networks, methods and optimizers.

    @ressmooth.model
    def tiny_vit(num_classes: int, in_channels: int, depth: int = 4) -> nn.Module: ...

A plug-in is a Python file. What it provides is read from its source without running it, so that
study files are checked before torch is loaded. Only `load` runs it: in a worker, and once before a
study begins. The source is recorded with the study, and workers run what was recorded.
"""

import ast
import hashlib
import math
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, TypeVar

from ressmooth.errors import ConfigError

Value = int | float | bool | str
# What the trainer passes, by kind. All other parameters are settings of an arm.
GIVEN: dict[str, tuple[str, ...]] = {
    "dataset": ("root",),
    "model": ("num_classes", "in_channels"),
    "method": (),
    "optimizer": ("parameters", "lr", "weight_decay", "momentum"),
}
TYPES: dict[str, Callable[[Any], Value]] = {"int": int, "float": float, "bool": bool, "str": str}
ENTRY_POINTS = "ressmooth.plugins"
VARIABLE = "RESSMOOTH_PLUGINS"  # paths, separated like those of PATH
MAX_BYTES = 2**20

Item = TypeVar("Item", bound=Callable[..., Any])


@dataclass(frozen=True)
class Parameter:
    type: str  # a key of TYPES
    default: Value | None  # None: the study file must set it

    def check(self, value: Any) -> Value:
        """Return the value as the plug-in gets it, or raise a ValueError."""
        if value is None:
            raise ValueError("missing: the plug-in has no default for it")
        if self.type == "float" and type(value) is int:
            value = float(value)
        if type(value) is not TYPES[self.type] or value in (math.inf, -math.inf) or value != value:
            raise ValueError(f"input should be a valid {self.type}")
        return TYPES[self.type](value)


@dataclass(frozen=True)
class Definition:
    """One thing that a plug-in provides."""

    kind: str
    name: str
    given: tuple[str, ...]  # parameters that the trainer passes
    parameters: dict[str, Parameter]  # settings of an arm


@dataclass(frozen=True)
class Plugin:
    file: str  # its name, for messages
    source: str
    definitions: tuple[Definition, ...]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    def to_dict(self) -> dict[str, str]:
        return {"file": self.file, "source": self.source}


@dataclass(frozen=True)
class Plugins:
    """The plug-ins of a study."""

    files: tuple[Plugin, ...] = ()
    parameters: dict[str, Parameter] = field(init=False, repr=False, compare=False)  # of all
    _by_name: dict[tuple[str, str], tuple[Plugin, Definition]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        by_name: dict[tuple[str, str], tuple[Plugin, Definition]] = {}
        parameters: dict[str, Parameter] = {}
        for plugin in self.files:
            for item in plugin.definitions:
                if (item.kind, item.name) in by_name:
                    raise ConfigError(f"{plugin.file}: {item.kind} {item.name!r} is given twice")
                by_name[item.kind, item.name] = plugin, item
                parameters |= item.parameters
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "parameters", parameters)

    def names(self, kind: str) -> list[str]:
        return [name for each, name in self._by_name if each == kind]

    def get(self, kind: str, name: Any) -> Definition | None:
        _, definition = self._by_name.get((kind, str(name)), (None, None))
        return definition

    def used(self, settings: Mapping[str, Any]) -> Iterator[Definition]:
        """Yield what a run with these settings uses of the plug-ins."""
        for kind in GIVEN:
            if (definition := self.get(kind, settings.get(kind))) is not None:
                yield definition

    def providing(self, names: Container[tuple[str, str]], settings: Container[str]) -> "Plugins":
        """Return the files that provide one of these (kind, name), or one of these settings."""
        return Plugins(
            tuple(
                file
                for file in self.files
                if any(
                    (item.kind, item.name) in names or any(p in settings for p in item.parameters)
                    for item in file.definitions
                )
            )
        )

    def parameters_of(self, kind: str) -> dict[str, tuple[str, ...]]:
        """Return the names of the settings of each plug-in of a kind."""
        return {
            name: tuple(definition.parameters)
            for (each, name), (_, definition) in self._by_name.items()
            if each == kind
        }

    def without_settings(self) -> "Plugins":
        """Return plug-ins of the same names, to check a name by itself."""
        return Plugins(
            tuple(
                replace(p, definitions=tuple(replace(d, parameters={}) for d in p.definitions))
                for p in self.files
            )
        )

    def settings(self, values: Mapping[str, Any]) -> dict[str, Value]:
        """Return the settings of the plug-ins that a run uses: given, recorded, or defaults."""
        recorded = values.get("plugin_settings", {})
        found = {}
        for definition in self.used(values):
            for name, parameter in definition.parameters.items():
                value = values.get(name, recorded.get(name, parameter.default))
                try:
                    found[name] = parameter.check(value)
                except ValueError as error:
                    raise ValueError(f"{name} of {definition.name}: {error}") from None
        return found

    def call(self, kind: str, name: str, settings: Mapping[str, Value], **given: Any) -> Any:
        """Run the plug-in that provides this. Return what its function or class returns."""
        plugin, definition = self._by_name[kind, name]
        arguments = {key: given[key] for key in definition.given}
        arguments |= {key: settings[key] for key in definition.parameters}
        return load(plugin.file, plugin.source)[kind, name](**arguments)

    def place(self, error: BaseException, *, innermost: bool = False) -> str:
        """Return the last line of a plug-in that an error passed, as in "mine.py:12", or "".

        With `innermost`, the plug-in itself must have raised it, or have called exit.
        """
        passed = extract_tb(error.__traceback__)
        callers = [frame for frame in passed if "_sitebuiltins" not in frame.filename]  # has exit
        files = {plugin.file for plugin in self.files}
        own = [f for f in (callers[-1:] if innermost else callers) if f.filename in files]
        return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


NO_PLUGINS = Plugins()


def find(paths: Sequence[Path], taken: Iterable[str]) -> Plugins:
    """Return the given plug-ins, those of RESSMOOTH_PLUGINS and those of installed packages.

    `taken` are names of settings that no parameter may have.
    """
    files = dict.fromkeys(paths, "--plugin")
    for path in os.environ.get(VARIABLE, "").split(os.pathsep):
        files |= {Path(path): VARIABLE} if path else {}
    for point in entry_points(group=ENTRY_POINTS):
        files[_installed(point.name, point.module)] = f"entry point {point.name}"
    return Plugins(tuple(read(_source(path, by), path.name, taken) for path, by in files.items()))


def restore(recorded: Iterable[Mapping[str, str]]) -> Plugins:
    """Return recorded plug-ins."""
    return Plugins(tuple(read(each["source"], each["file"]) for each in recorded))


def _installed(name: str, module: str) -> Path:
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ConfigError(f"plug-in {name!r} of an installed package: no module {module!r}")
    return Path(found.origin)


def _source(path: Path, given_by: str) -> str:
    what = f"{given_by} {path}"
    if path.suffix != ".py":
        raise ConfigError(f"{what}: a plug-in is a Python file that ends in .py")
    try:
        content = path.read_bytes()
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{what}: larger than 1 MB")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{what}: {reason}") from None


def read(source: str, file: str, taken: Iterable[str] = ()) -> Plugin:
    """Return what a plug-in's source provides, without running it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}:{getattr(error, 'lineno', 1)}: {error.args[0]}") from None
    decorators = dict(_decorators(tree))
    definitions = [
        _definition(node, kind, file, set(taken))
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        for decorator in node.decorator_list
        if (kind := decorators.get(ast.unparse(decorator))) is not None
    ]
    if not definitions:
        kinds = ", ".join(f"@ressmooth.{kind}" for kind in GIVEN)
        raise ConfigError(f"{file}: provides nothing; decorate a function or class with {kinds}")
    return Plugin(file, source, tuple(definitions))


def _decorators(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield how the module writes each decorator, and its kind."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name == "ressmooth":
                    yield from ((f"{name.asname or name.name}.{kind}", kind) for kind in GIVEN)
        elif isinstance(node, ast.ImportFrom) and node.module == "ressmooth":
            yield from ((n.asname or n.name, n.name) for n in node.names if n.name in GIVEN)


def _definition(
    node: ast.FunctionDef | ast.ClassDef, kind: str, file: str, taken: set[str]
) -> Definition:
    def wrong(argument: ast.arg | ast.AST, reason: str) -> ConfigError:
        line = getattr(argument, "lineno", node.lineno)
        return ConfigError(f"{file}:{line}: {kind} {node.name}: {reason}")

    signature = _signature(node)
    if signature.vararg or signature.kwarg or signature.posonlyargs:
        raise wrong(node, "parameters must have names: no *args, **kwargs or /")
    given, parameters = [], {}
    for argument, default in _arguments(signature, is_class=isinstance(node, ast.ClassDef)):
        if argument.arg in GIVEN[kind]:
            given.append(argument.arg)
            continue
        if argument.arg in taken:
            raise wrong(argument, f"parameter {argument.arg!r} is a setting already; rename it")
        parameter = _parameter(argument, default)
        if parameter is None:
            rule = f"needs a type ({', '.join(TYPES)}), and a default that is such a value or none"
            raise wrong(argument, f"parameter {argument.arg!r} {rule}")
        parameters[argument.arg] = parameter
    return Definition(kind, node.name, tuple(given), parameters)


def _signature(node: ast.FunctionDef | ast.ClassDef) -> ast.arguments:
    """Return the parameters of a function, or of a class's __init__."""
    if isinstance(node, ast.FunctionDef):
        return node.args
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            return statement.args
    return ast.arguments([], [ast.arg("self")], None, [], [], None, [])


def _arguments(
    signature: ast.arguments, *, is_class: bool
) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Yield each parameter with its default, if it has one."""
    positional = signature.args
    missing = [None] * (len(positional) - len(signature.defaults))
    yield from list(zip(positional, [*missing, *signature.defaults], strict=True))[is_class:]
    yield from zip(signature.kwonlyargs, signature.kw_defaults, strict=True)


def _parameter(argument: ast.arg, default: ast.expr | None) -> Parameter | None:
    """Return the type and the default of a parameter, or None if it has no usable type."""
    value: Value | None = None
    if default is not None:
        try:
            value = ast.literal_eval(default)
        except (ValueError, TypeError):
            return None
    name = ast.unparse(argument.annotation) if argument.annotation else type(value).__name__
    if name not in TYPES:
        return None
    if name == "float" and type(value) is int:
        value = float(value)
    is_usable = value is None or type(value) is TYPES[name]
    return Parameter(name, value) if is_usable else None


_registered: list[tuple[str, Any]] = []  # by the plug-in that runs


def _decorator(kind: str) -> Callable[[Item], Item]:
    def register(item: Item) -> Item:
        _registered.append((kind, item))
        return item

    register.__name__ = kind
    register.__doc__ = f"Provide a {kind} to studies that are launched with this plug-in."
    return register


dataset = _decorator("dataset")
model = _decorator("model")
method = _decorator("method")
optimizer = _decorator("optimizer")


@cache
def load(file: str, source: str) -> dict[tuple[str, str], Callable[..., Any]]:
    """Run a plug-in. Return its functions and classes by kind and name."""
    name = f"ressmooth_plugin_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # its classes and functions belong to it
    _registered.clear()
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ConfigError(f"{file}: cannot be loaded: {reason}") from error
    return {(kind, item.__name__): item for kind, item in _registered}
