"""Identifiers name their content: numbers of words that do not, and of long functions, are limited."""

import ast
from collections import Counter

import pytest
from conftest import ROOT

WORDS = {"own", "found", "told", "asked", "there", "begun", "drawn"}
LEFT = 6  # uses of identifiers with one of these words, split at `_`; it may only shrink
LONG = 60  # lines of a function without its docstring and the functions within it
LONG_LEFT: set[str] = set()  # may only shrink
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def trees():
    files = sorted(path for folder in ("mrt", "workflow") for path in (ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


def test_identifiers_are_nouns_that_say_what_they_hold(trees):
    uses = Counter(
        (file, name)
        for file, tree in trees.items()
        for node in ast.walk(tree)
        for kind in ("id", "attr", "arg", "name")
        if isinstance(name := getattr(node, kind, None), str) and WORDS & set(name.lower().split("_"))
    )
    assert uses.total() <= LEFT, f"say what it holds: {uses}"
    assert uses.total() == LEFT, f"lower LEFT to {uses.total()}"


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    inner = [node for node in ast.walk(function) if isinstance(node, FUNCTION | ast.ClassDef) and node is not function]
    nested = {line for node in inner for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    if ast.get_docstring(function):
        nested |= set(range(function.body[0].lineno, (function.body[0].end_lineno or 0) + 1))
    return len(set(range(function.lineno, (function.end_lineno or 0) + 1)) - nested)


def test_functions_are_short(trees):
    """Complexity is ruff's (C901 in pyproject.toml)."""
    long = {
        f"{file}: {node.name}"
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTION) and lines_of(node) > LONG
    }
    assert long == LONG_LEFT
