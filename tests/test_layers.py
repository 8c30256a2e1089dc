"""A module imports only from lines below it (the drawing in the README)."""

import ast
from pathlib import Path

import pytest

import ressmooth

PACKAGE = Path(ressmooth.__file__).parent
LAYERS = [
    {"cli"},
    {"bench"},
    {"solo", "timing", "progress"},
    {"curves"},
    {"train"},
    {"methods"},
    {"smoothing", "models", "data", "checkpoint"},
    {"config"},
    {"errors", "__init__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path):
    """Modules of ours that a file imports, apart from those only needed for type annotations."""
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
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ressmooth"):
            inner = node.module.removeprefix("ressmooth").removeprefix(".")
            yield from [inner] if inner else [a.name for a in node.names if a.name in LEVEL]


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_imports_point_downwards(path):
    upward = [name for name in imports(path) if LEVEL[name] <= LEVEL[path.stem]]
    assert upward == []
