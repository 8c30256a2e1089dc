"""A module imports only from lines below it (the drawing in the README)."""

import ast
from pathlib import Path

import pytest

import ressmooth

PACKAGE = Path(ressmooth.__file__).parent
LAYERS = """
    cli study
    bench
    engines doctor
    tracking plan view
    report export rerun
    dispatch compare
    search run solo arms
    progress train
    store
    spec placement methods shell paper inference
    smoothing models data curves
    mapped
    checkpoint
    config
    mistakes places phrases
    errors __init__
"""
LEVEL = {name: level for level, line in enumerate(LAYERS.split("\n")) for name in line.split()}
ROOMS = {  # a third party stays in its room
    "sqlalchemy": {"store", "bench"},
    "alembic": {"store"},
    "mlflow": {"tracking", "bench"},
    "optuna": {"search", "report", "tracking", "bench"},
    "ray": {"engines", "bench"},
}


def module(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path):
    """Modules that a file imports, apart from those only needed for type annotations."""
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


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    ours = [name.split(".")[1] for name in imports(path) if name.startswith("ressmooth.")]
    ours = [name if name in LEVEL else "__init__" for name in ours]
    upward = [name for name in ours if LEVEL[name] <= LEVEL[module(path)] and name != module(path)]
    assert upward == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_third_parties_stay_in_their_rooms(path):
    outside = [
        name
        for name in imports(path)
        if (room := ROOMS.get(name.split(".")[0])) is not None and module(path) not in room
    ]
    assert outside == []


def test_files_are_short():
    assert [str(path) for path in FILES if len(path.read_text().splitlines()) > 320] == []
