"""Tests of programs as datasets have them, brought into one form; and outputs of programs, compared.

The form is `{"checks": [code]}`, Python code with `assert`; or `{"pairs": [[input, output]]}` of a script, texts; or
that with `"function"`, whose arguments and value the pairs are.
"""

import ast
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Cases = Mapping[str, Any]


def tests_of(cases: Cases) -> Sequence[Any]:
    """The tests, one by one."""
    each: Sequence[Any] = cases.get("checks") or cases["pairs"]
    return each


def function_named(value: Any) -> str | None:
    """The name of a function, bare or in JSON; None without one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = json.loads(value)
    if isinstance(value, Mapping):
        value = value.get("fn_name") or value.get("func_name")
    return str(value) if value else None


def cases_of(values: Sequence[Any], function: str | None) -> Cases:
    """The tests in the cells of a row, in one form.

    Raises ValueError without tests, for tests of several kinds, and for those that no program could pass, or fail.
    """
    each = [test for value in values for test in tests_in(value, function)]
    if not each:
        raise ValueError("it has no tests")
    names = {"assert" if isinstance(test, str) else test[0] or "a script" for test in each}
    if len(names) > 1:
        raise ValueError(f"its tests are of several kinds: {', '.join(sorted(names))}")
    if isinstance(each[0], str):
        return {"checks": checks_of(each, function)}
    pairs = [test[1:] for test in each]
    if each[0][0] is None:
        return {"pairs": [[script_text(given), script_text(expected)] for given, expected in pairs]}
    # LiveCodeBench has a line of JSON for each argument; APPS has lists, with the values in lists of one or bare
    is_text = all(isinstance(given, str) and isinstance(expected, str) for given, expected in pairs)
    if is_text:
        pairs = [[[parsed(line) for line in given.splitlines() if line.strip()], parsed(out)] for given, out in pairs]
    for given, _ in pairs:
        if not isinstance(given, list):
            raise ValueError(f"the arguments of {names.pop()} are a list, or lines of JSON; not {given!r}")
    wrapped = not is_text and all(isinstance(expected, list) and len(expected) == 1 for _, expected in pairs)
    form = {"function": each[0][0], "pairs": [list(pair) for pair in pairs]}
    return {**form, "wrapped": True} if wrapped else form


def tests_in(value: Any, function: str | None) -> Iterator[Any]:
    """Code as text, or (function, input, output), of whatever holds them."""
    if isinstance(value, str):
        try:
            content = json.loads(value)
        except ValueError:
            content = None
        if isinstance(content, list | dict):
            yield from tests_in(content, function)
        elif value.strip():
            yield value
    elif isinstance(value, Mapping):
        kind = value.get("testtype")
        name = None if kind == "stdin" else function_named(value) or function
        if kind == "functional" and not name:
            raise ValueError("its tests call a function; `function` names the column of its name")
        sides = [value.get(f"{side}s", value.get(side, value)) for side in ("input", "output")]
        if not all(isinstance(side, list) for side in sides):
            sides = [[side] for side in sides]
        if value in (sides[0] or [value]) + sides[1] or len(sides[0]) != len(sides[1]):
            raise ValueError(f"its tests need an output for each input, and one at least: {str(value)[:200]}")
        yield from ((name, given, expected) for given, expected in zip(*sides, strict=True))
    elif isinstance(value, list):
        for test in value:
            yield from tests_in(test, function)
    else:
        raise ValueError(f"a test is Python code, or an input with its output; {str(value)[:200]!r} is neither")


def checks_of(texts: Sequence[str], function: str | None) -> list[str]:
    """Tests with `assert`; what precedes one, such as imports, is a part of it. HumanEval's `check` is called.

    So are functions `test_...` without parameters. Raises ValueError for code that cannot be read or tests nothing.
    """
    checks, waiting = list[str](), ""
    for text in texts:
        waiting += f"{text}\n"
        try:
            module = ast.parse(waiting)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"its tests are no Python code: {error}") from error
        if not any(isinstance(node, ast.Assert) for node in ast.walk(module)):
            continue
        called = {
            node.func.id for node in ast.walk(module) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and node.name not in called:
                if node.name == "check" and function:
                    waiting += f"check({function})\n"
                elif node.name.startswith("test") and not node.args.args:
                    waiting += f"{node.name}()\n"
        passive = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign
        if all(isinstance(node, passive) for node in ast.parse(waiting).body):
            raise ValueError("its tests define functions and call none; `function` names the column of what they check")
        checks.append(waiting)
        waiting = ""
    if not checks:
        raise ValueError("its tests have no `assert`, so that every program would pass them")
    return checks


def script_text(value: Any) -> str:
    """The input or output of a script as text; a list has its lines."""
    if isinstance(value, list) and not any(isinstance(line, list | dict) for line in value):
        return "\n".join(map(str, value))
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"a script reads and writes text, or a list of lines; not {value!r}")


def parsed(text: str) -> Any:
    """A value in JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"arguments and values of a function are JSON, a line each; {text[:200]!r} is none") from error


def shown(cases: Cases, count: int) -> list[str]:
    """The first tests, as paragraphs of the problem."""
    tests = tests_of(cases)[:count]
    if not tests:
        return []
    if "checks" in cases:
        return ["These tests have to pass:\n```python\n{}```".format("".join(tests))]
    if "function" in cases:
        values = [expected[0] if cases.get("wrapped") else expected for _, expected in tests]
        calls = [f"{cases['function']}({', '.join(map(repr, given))})" for given, _ in tests]
        return ["Examples:", *(f"{call} -> {value!r}" for call, value in zip(calls, values, strict=True))]
    return [f"Input:\n{given}\nOutput:\n{expected}" for given, expected in tests]


def request(cases: Cases, function: str | None) -> list[str]:
    """The request below a problem, in one paragraph."""
    name = cases.get("function") or function
    what = f"the function `{name}`" if name else "the code" if "checks" in cases else "a program"
    reads = "" if name or "checks" in cases else ", which reads standard input and writes standard output"
    return [f"Write {what} in Python{reads}. Put all of it in one block that begins with ```python."]


def lines_of(text: str) -> list[str]:
    """The lines of an output, without white space at their ends, nor empty lines before and after."""
    return [line.strip() for line in text.strip().splitlines()]


def equal_texts(output: str, expected: str, tolerance: float) -> bool:
    """Whether outputs are equal, line by line and word by word; of decimal numbers expected, within a tolerance."""
    ours, theirs = ([line.split() for line in lines_of(text)] for text in (output, expected))
    return ours == theirs or (
        bool(tolerance)
        and [*map(len, ours)] == [*map(len, theirs)]
        and all(
            equal_words(*pair, tolerance)
            for line, other in zip(ours, theirs, strict=True)
            for pair in zip(line, other, strict=True)
        )
    )


def equal_words(word: str, expected: str, tolerance: float) -> bool:
    """Whether words are equal, or numbers of which the expected one is a decimal."""
    try:
        is_decimal = bool({*".eE"} & {*expected})
        return word == expected or (is_decimal and equal_values(float(word), float(expected), tolerance))
    except ValueError:
        return False


def plain(value: Any) -> Any:
    """A value as JSON has it: tuples as lists, keys as text."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else json.dumps(key): plain(item) for key, item in value.items()}
    return [*map(plain, value)] if isinstance(value, list | tuple) else value


def equal_values(value: Any, expected: Any, tolerance: float) -> bool:
    """Whether values are equal; floats expected, within a tolerance."""
    if isinstance(expected, list) and isinstance(value, list):
        pairs = list(zip(value, expected, strict=False))
        return len(value) == len(expected) and all(equal_values(*pair, tolerance) for pair in pairs)
    if isinstance(expected, dict) and isinstance(value, dict):
        return value.keys() == expected.keys() and all(
            equal_values(value[key], expected[key], tolerance) for key in value
        )
    if isinstance(expected, float) and isinstance(value, int | float) and tolerance:
        return math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    return bool(value == expected)
