"""A package imports only from the lines below it: the layers of the README."""

import ast
from pathlib import Path

import pytest

import ressmooth

PACKAGE = Path(ressmooth.__file__).parent
LAYERS = """
    api
    study
    cli
    bench
    engines
    tracking
    report
    search
    training
    store
    spec
    smoothing
    prefix
    config
    plugins
    build paths formatting evidence
    errors __init__
"""
LEVEL = {name: level for level, line in enumerate(LAYERS.split("\n")) for name in line.split()}
ROOMS = {  # third parties and the packages that may import them
    "sqlalchemy": {"store", "bench"},
    "alembic": {"store"},
    "mlflow": {"tracking", "bench"},
    "optuna": {"search", "report", "tracking", "bench"},
    "ray": {"engines", "bench"},
    "prometheus_client": {"tracking"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def package(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path):
    """Yield the modules that a file imports, except those for type annotations."""
    tree = ast.parse(path.read_text())
    annotations = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in annotations:
            continue
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def upward_imports(path):
    ours = [name.split(".")[1] for name in imports(path) if name.startswith("ressmooth.")]
    ours = [name if name in LEVEL else "__init__" for name in ours]
    own = package(path)
    return [name for name in ours if LEVEL[name] <= LEVEL[own] and name != own]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    assert upward_imports(path) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_third_parties_stay_in_their_rooms(path):
    outside = [
        name
        for name in imports(path)
        if (room := ROOMS.get(name.split(".")[0])) is not None and package(path) not in room
    ]
    assert outside == []


def test_migrations_import_nothing_of_ours():
    for path in (PACKAGE / "store/migrations/versions").glob("0*.py"):
        assert [name for name in imports(path) if name.startswith("ressmooth")] == []


def test_modules_are_short():
    assert [str(path) for path in FILES if len(path.read_text().splitlines()) > 350] == []
