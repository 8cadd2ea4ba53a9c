"""Edits that change a fingerprint and edits that do not: on a small package, and on the real stages."""

import ast

import pytest
from mutation import changes

from mrt.core import fingerprint as fp
from mrt.core import scope

PACKAGE = {
    "__init__": "",
    "cli": "import time\ndef run(stage):\n    stage()\n",
    "stage": """'Doc.'
from mrt.cli import run
from mrt.deep import value as number
from mrt import tools
from mrt.record import Record

LIMIT: int = 3
UNUSED = 4


def work(size: int, *, strict: bool = False) -> list[int]:
    'Doc.'
    from . import lazy

    found = []
    for one in range(size):
        if one > LIMIT and strict:
            raise ValueError(f"{one} is too many: {tools.counted(one)}")
        found.append(number + lazy.x + one)
    print("done", len(found))
    return tools.halved(found)


def nobody_calls(this):
    return this


if __name__ == "__main__":
    run(work, Record)
""",
    "deep": "import torch\nvalue = torch.ones(1)  # remark\nother = 5\n",
    "lazy": "x = 2\ny = 3\n",
    "tools": "def halved(all):\n    return all[::2]\n\n\ndef counted(n):\n    return str(n)\n",
    "record": """from pydantic import BaseModel, Field


class Record(BaseModel):
    'Doc.'
    size: int = Field(3, ge=1, description="How large.")
    name: str | None = None

    def double(self):
        return 2 * self.size
""",
    "alone": "z = 3\n",
}
CACHED = {found for module in (fp, scope) for found in vars(module).values() if hasattr(found, "cache_clear")}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes a module of a small package, or several, and gives the fingerprint of its stage."""
    folder = tmp_path / "mrt"
    folder.mkdir()
    for name, content in PACKAGE.items():
        (folder / f"{name}.py").write_text(content)
    monkeypatch.setattr(scope, "PACKAGE", folder)

    def write(**changed):
        for name, content in changed.items():
            (folder / f"{name}.py").write_text(content)
        for cached in CACHED:
            cached.cache_clear()
        return fp.fingerprint("mrt.stage", with_versions=False)

    yield write
    for cached in CACHED:
        cached.cache_clear()


def changed(name, old, new, count=1):
    assert PACKAGE[name].count(old) >= 1, f"{name} has no {old!r}"
    return {name: PACKAGE[name].replace(old, new, count)}


def test_names_are_followed_through_imports(package):
    package()
    reached = fp.reached("mrt.stage")
    assert list(reached.definitions) == [
        "mrt.cli.run", "mrt.deep.value", "mrt.lazy.x", "mrt.record.Record", "mrt.stage.(stage)", "mrt.stage.LIMIT",
        "mrt.stage.work", "mrt.tools.halved",
    ]  # fmt: skip
    assert reached.libraries == ("torch",)
    assert list(fp.reached("mrt.stage:nobody_calls").definitions) == ["mrt.stage.nobody_calls"]


NOT = {
    "a docstring": changed("stage", "Doc.", "Other.", 2),
    "a comment": changed("deep", "remark", "another remark"),
    "formatting": changed("stage", "tools.halved(found)", "tools.halved(\n        found\n    )"),
    "what nobody calls": changed("stage", "return this", "return [this]"),
    "a constant that nobody reads": changed("stage", "UNUSED = 4", "UNUSED = 5"),
    "a neighbour in another module": changed("deep", "other = 5", "other = 6"),
    "a new function": {"tools": PACKAGE["tools"] + "\n\ndef new():\n    return 1\n"},
    "a module that nobody imports": {"alone": "z = 4\n"},
    "the text of an error": changed("stage", "is too many", "are too many"),
    "what only the text of an error calls": changed("tools", "str(n)", "repr(n)"),
    "what is printed": changed("stage", '"done"', '"ready"'),
    "annotations of a function": changed(
        "stage", "size: int, *, strict: bool = False) -> list[int]", "size, *, strict=False)"
    ),
    "an annotation of a constant": changed("stage", "LIMIT: int = 3", "LIMIT: float = 3"),
    "the order of definitions": {
        "tools": "\n\n".join(reversed(PACKAGE["tools"].split("\n\n\n"))) + "\n",
    },
    "a field's description": changed("record", "How large.", "The size."),
    "a field's bounds": changed("record", "ge=1", "ge=0, le=9"),
    "a new field that is off": changed("record", "    name:", "    fast: bool = Field(False, gt=0)\n    name:"),
    "another name of an import": changed("stage", "number", "amount", 2),
    "the form of an import": {
        "stage": PACKAGE["stage"]
        .replace("from mrt import tools", "from mrt.tools import counted, halved")
        .replace("tools.", "")
    },
    "where a definition stands": {
        **changed("stage", "from mrt import tools", "from mrt import alone as tools"),
        "alone": PACKAGE["tools"],
    },
}  # fmt: skip


@pytest.mark.parametrize("what", NOT)
def test_what_does_not_matter(package, what):
    before = package()
    assert package(**NOT[what]) == before


MATTERS = {
    "what carries a stage out": changed("cli", "stage()", "return stage()"),
    "a constant": changed("stage", "LIMIT: int = 3", "LIMIT: int = 4"),
    "a constant elsewhere": changed("lazy", "x = 2", "x = 2.0"),
    "a condition": changed("stage", "one > LIMIT", "one >= LIMIT"),
    "another function of the same module": changed("stage", "tools.halved(found)", "tools.counted(found)"),
    "a function that is called": changed("tools", "all[::2]", "all[::3]"),
    "an argument's name": changed("tools", "all", "every", 2),
    "an argument's default": changed("stage", "strict: bool = False", "strict: bool = True"),
    "another kind of error": changed("stage", "raise ValueError", "raise KeyError"),
    "a field's default": changed("record", "Field(3,", "Field(4,"),
    "a field's type": changed("record", "size: int", "size: float"),
    "a field that is no longer off": changed("record", "= None", '= "x"'),
    "a field that is off where it may be unknown": changed("record", "str | None = None", "str | None = False"),
    "a new field that is on": changed("record", "    name:", "    fast: bool = True\n    name:"),
    "what the stage is run with": changed("stage", "run(work, Record)", "run(Record, work)"),
    "the type of a field that is off": {
        "record": PACKAGE["record"].replace("str | None = None", "Inner | None = None")
        + "\n\nclass Inner(BaseModel):\n    depth: int = 2\n",
    },
    "a method": changed("record", "2 * self.size", "3 * self.size"),
    "a local variable that is another": changed("stage", "number + lazy.x + one", "number + lazy.x + size"),
    "what a module does when it is imported": changed("tools", "def halved", "import os\nos.nice(1)\n\ndef halved"),
    "a namesake of another module": {
        **changed("stage", "from mrt import tools", "from mrt import alone as tools"),
        "alone": PACKAGE["tools"].replace("::2", "1::2"),
    },
    "what a whole module holds, where it is passed on": {
        **changed("stage", "tools.halved(found)", "list(map(tools, found))"),
    },
}  # fmt: skip


@pytest.mark.parametrize("what", MATTERS)
def test_what_matters(package, what):
    before = package()
    assert package(**MATTERS[what]) != before


# Bodies of a function that is called: the texts or actions of each, and their replacements.
BODY = """import sys, warnings
from tqdm import tqdm
def USED(all, it=0, q=0, d=0, f=0):
    {}
    return all[::2]
def counted(n): return str(n)
"""
# fmt: off
SAYS = {
    "a printed text": ("print(f'{len(all)} are there')", "print('there are', len(all))"),
    "the text around a call": ("print('a', all.count(1))", "print('b', all.count(1))"),
    "a text on standard error": ("print('a', file=sys.stderr)", "print('b', file=sys.stderr)"),
    "a warning": ("warnings.warn('a')", "warnings.warn('b')"),
    "the text of an exit": ("sys.exit(f'{all} is wrong')", "sys.exit(f'{all} are wrong')"),
    "the title and the unit of a bar": ("all = tqdm(all, desc='a', unit='b')", "all = tqdm(all, desc='b')"),
    "the title of a bar that is opened": ("with tqdm(all, desc='a'): pass", "with tqdm(all, desc='b'): pass"),
    "the unit of a bar that a function imports": (
        "from tqdm import tqdm as t; t(all, unit='a')", "from tqdm import tqdm as t; t(all, unit='b')"
    ),
}
DOES = {
    "what a printed call is given": ("print(counted(1))", "print(counted(2))"),
    "whether something is printed that may do more": ("print(counted(1))", "pass"),
    "a change within a printed text": ("print(all.pop())", "print(all.pop(0))"),
    "a name bound within a printed text": ("print(all := all[1:])", "print(all := all[2:])"),
    "what is printed into a file": ("print('a', file=all)", "print('b', file=all)"),
    "what a function of another name space prints": ("all.print('a')", "all.print('b')"),
    "what a warning calls": ("warnings.warn(counted(1))", "warnings.warn(counted(2))"),
    "what a bar goes over": ("all = tqdm(iterable=all[1:])", "all = tqdm(iterable=all[2:])"),
    "what a bar is told by a call": (
        "with tqdm(all) as bar: bar.update(counted(1))", "with tqdm(all) as bar: bar.update(counted(2))"
    ),
    "what replaces a bar": ("with tqdm(all) as bar: bar = all; bar.append(1)", "with tqdm(all) as bar: bar = all"),
    "what a bar's title calls": ("all = tqdm(all, desc=counted(1))", "all = tqdm(all, desc=counted(2))"),
    "the status of an exit": ("sys.exit(1)", "sys.exit(0)"),
    "what is run for the status of an exit": ("sys.exit(f('a'))", "sys.exit(f('b'))"),
    "a module that a text names": ("all.run('mrt.record.Record')", "all.run('mrt.deep.other')"),
    "when something is done while printing": ("print(q and f())", "print(d and f())"),
    "on what condition something is done": ("print(f() if q else 1)", "print(f() if d else 1)"),
    "how often something is done": ("print([f() for _ in q])", "print([f() for _ in d])"),
    "what ends a generator": ("raise StopIteration(1)", "raise StopIteration(2)"),
    "a redirected text": (
        "import contextlib\n    with contextlib.redirect_stdout(f): print('a')",
        "import contextlib\n    with contextlib.redirect_stdout(f): print('b')",
    ),
    "an argument that is called as what prints": ("(lambda print: print(1))(f)", "(lambda print: print(2))(f)"),
}
# fmt: on


@pytest.fixture
def used(package):
    """Writes a module in place of `tools`, whose `USED` the stage calls, and others."""
    stage = PACKAGE["stage"].replace("tools.halved(found)", "tools.USED(found)")
    return lambda tools, **others: package(**{"stage": stage, "tools": PACKAGE["tools"] + "\n\n" + tools, **others})


@pytest.mark.parametrize("what", [*SAYS, *DOES])
def test_what_is_done_matters_and_what_is_only_said_does_not(used, what):
    one, other = (used(BODY.format(body)) for body in (SAYS | DOES)[what])
    assert (one == other) == (what in SAYS)


# What `USED` says: an iterator is used up by the one, a queue has more, a key is made.
TAKES = ("list(it)", "sum(it)", "','.join(it)", "*it", "[x for x in it]", "1 in it", "q.join(1)", "d['a']", "q and f()")


@pytest.mark.parametrize("says", TAKES)
def test_what_is_taken_while_something_is_printed_matters(used, says):
    assert used(BODY.format(f"print({says})")) != used(BODY.format("print()"))
    assert used(BODY.format(f"print({says})")) == used(BODY.format(f"print('and', {says}, 'too')"))


@pytest.mark.parametrize("says", ["print(counted(1))", "all.run('mrt.tools.counted')"])
def test_a_function_that_is_called_within_a_text_or_named_by_one_counts(used, says):
    text = BODY.format(says)
    assert used(text) != used(text.replace("str(n)", "repr(n)"))


# Two edits of a module whose `USED` the stage calls; what decides a result is another in each.
RAISES = "def f(): raise KeyError({})\n"
READS = "def USED(x):\n  try: {}\n  except KeyError as error: return error.args[0]\n"
READ = READS.format
# fmt: off
EDITS = {
    "an import that may fail": (
        "try: from json import {} as d\nexcept ImportError: d = str\ndef USED(x): return d(x)", "dumps", "loads"
    ),
    "an import that tells what is installed": (
        "def USED(x):\n  try:\n    import {}\n    return x\n  except ImportError: return 2", "json", "absent"
    ),
    "one of two imports of a name in a function": (
        "def USED(x):\n  if x: from json import load as d\n  else: from json import {} as d\n  return d(x)",
        "dumps", "loads",
    ),
    "an import that is replaced": ("from json import {} as d\nd = [d]\ndef USED(x): return d", "dumps", "loads"),
    "what runs where no type checker is": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING: from json import load as d\nelse: d = {}\n"
        "def USED(x): return d", "1", "2",
    ),
    "what runs unless a type checker does": (
        "from typing import TYPE_CHECKING\nif not TYPE_CHECKING: d = {}\ndef USED(x): return d", "1", "2"
    ),
    "what runs where the module is no stage": (
        "d = []\nif __name__ != '__main__': d.append({})\ndef USED(x): return d", "1", "2"
    ),
    "what an assignment calls": ("R = []\n_ = R.append({})\ndef USED(x): return R", "1", "2"),
    "what the default of an argument calls": (
        "R = []\ndef other(x=R.append({})): pass\ndef USED(x): return R", "1", "2"
    ),
    "what a class calls": ("R = []\nclass A: R.append({})\ndef USED(x): return R", "1", "2"),
    "what making an object does": (
        "R = []\nclass A:\n  def __init__(self, x): R.append(x)\n_ = A({})\ndef USED(x): return R", "1", "2"
    ),
    "a subclass that its base registers": (
        "class A:\n  known = []\n  def __init_subclass__(cls): A.known.append(cls)\n"
        "class B(A): x = {}\ndef USED(x): return A.known[0].x", "1", "2",
    ),
    "a subclass that is looked for": (
        "class A: pass\nclass B(A): x = {}\ndef USED(x): return A.__subclasses__()[0].x", "1", "2"
    ),
    "a name that is computed": ("def f(): return {}\ndef USED(x): return globals()['f']()", "1", "2"),
    "when a name is read that is bound twice": (
        "X = 1\n{}\ndef USED(x): return Y", "Y = X\nX = 2", "X = 2\nY = X"
    ),
    "when a name is read that is changed": (
        "X = [1]\n{}\ndef USED(x): return Y", "Y = [*X]\nX.append(2)", "X.append(2)\nY = [*X]"
    ),
    "when a name is read that a function changes": (
        "X = [1]\ndef f(): X.append(2)\n{}\ndef USED(x): return Y", "Y = [*X]\nf()", "f()\nY = [*X]"
    ),
    "the first of two modules of which all is imported": (
        "from {} import *\nfrom os import *\ndef USED(x): return exp(x)", "math", "cmath"
    ),
    "an error's text that a caller reads": (RAISES + READ("f()"), "'a'", "'b'"),
    "an error's text that another error passes on": (
        RAISES + "def g():\n  try: f()\n  except KeyError as error: raise ValueError(f'{{error}}') from error\n"
        + "def USED(x):\n  try: g()\n  except ValueError as error: return str(error)", "'a'", "'b'",
    ),
    "an error's text that a handler of all errors reads": (
        RAISES + "def USED(x):\n  try: f()\n  except Exception as error: return str(error)", "'a'", "'b'"
    ),
    "what the text of a read error calls": ("def t(): return {}\n" + READ("raise KeyError(t())"), "1", "2"),
    "an error's text that a method raises": (
        "class A:\n  def f(self): raise KeyError({})\n" + READ("A().f()"), "'a'", "'b'"
    ),
    "an error's text that a property raises": (
        "class A:\n  @property\n  def f(self): raise KeyError({})\na = A()\n" + READ("a.f"), "'a'", "'b'"
    ),
    "an error's text that is read where anything is called": (
        RAISES + READ("x()") + "USED(f)", "'a'", "'b'"
    ),
    "an error's text that is formatted": (
        RAISES + "import traceback\ndef USED(x):\n  try: f()\n  except KeyError: return traceback.format_exc()",
        "'a'", "'b'",
    ),
    "the text of an exit that a caller reads": (
        "import sys\ndef leave(): sys.exit({})\n"
        "def USED(x):\n  try: leave()\n  except SystemExit as end: return end.code",
        "'a'", "'b'",
    ),
    "what our own print does": ("def print(n): open('file', 'w').write(n)\ndef USED(x): print({})", "'a'", "'b'"),
    "an annotation that a decorator may read": (
        "import functools\n@functools.singledispatch\ndef USED(x: {}): return x", "int", "str"
    ),
    "what another module does": ("import os, mrt.alone\nos.nice({})\nUSED = mrt.alone", "1", "2"),
}
STAYS = {
    "a constant beside what runs": ("import os\nos.nice(1)\nX = {}", "1", "2"),
    "a compiled pattern that nobody reads": ("import re\nX = re.compile('{}')", "a", "b"),
    "an object of a plain class": ("class A(tuple): pass\nX = A(({},))", "1", "2"),
    "what only type checkers see": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING: from json import {}", "dumps", "loads"
    ),
    "the text of an error that is only said again": (
        RAISES + "def USED(x):\n  try: f()\n  except KeyError as error: raise ValueError(f'{{error}}') from error",
        "'a'", "'b'",
    ),
    "the text of an error of another kind than a read one": (
        RAISES + "def USED(x):\n  try: f()\n  except OSError as error: return error.errno", "'a'", "'b'"
    ),
    "the text of an error where only a library's are read": (
        RAISES + "import json\ndef USED(x):\n  f()\n  try: json.loads(x)\n" +
        "  except Exception as error: return str(error)",
        "'a'", "'b'",
    ),
}
# fmt: on
PLAIN = "def USED(x): return x\n"


@pytest.mark.parametrize("what", [*EDITS, *STAYS])
def test_an_edit_that_is_hard_to_see_matters_and_one_that_does_nothing_does_not(used, what):
    text, *edits = (EDITS | STAYS)[what]
    before, after = (used(("" if "USED" in text else PLAIN) + text.format(edit)) for edit in edits)
    assert (before == after) == (what in STAYS)


# A module in place of `tools`, and the change in `alone`, which the first one uses in a way hard to see.
# fmt: off
HARD = {
    "a module imported for what it does": ("import mrt.alone\n" + PLAIN, "import os\nos.nice({})"),
    "a module that another one imports": ("from mrt.record import Record\n" + PLAIN, "import os\nos.nice({})"),
    "a module by its full name": ("import mrt.alone\ndef USED(x): return mrt.alone.f", "def f(): return {}"),
    "a module whose name is computed": (
        "from importlib import import_module\ndef USED(x): return import_module(f'mrt.{x}')", "def f(): return {}"
    ),
    "a module that is named as of its package": (
        "from importlib import import_module\ndef USED(x): return import_module('.alone', 'mrt')", "def f(): return {}"
    ),
    "a function that is registered": (
        "from mrt.alone import table\ndef USED(x): return table",
        "import atexit\ntable = []\n@atexit.register\ndef f(): table.append({})",
    ),
    "a name that one method imports and another does not": (
        "from mrt.alone import f\nclass USED:\n  def a(self):\n    from mrt.cli import run as f\n    f()\n"
        "  def b(self): return f()", "def f(): return {}",
    ),
    "a name that only a nested function hides": (
        "from mrt.alone import f\ndef USED(x):\n  def inner():\n    f = 3\n    return f\n  return f(inner())",
        "def f(): return {}",
    ),
    "the default of an argument": ("from mrt.alone import f\ndef USED(x, f=f): return f(x)", "def f(): return {}"),
}
# fmt: on


@pytest.mark.parametrize("what", HARD)
def test_what_is_used_in_a_way_hard_to_see_matters(used, what):
    tools, alone = HARD[what]
    record = "import mrt.alone\n" + PACKAGE["record"]
    one, two = (used(tools, alone=alone.format(number), record=record) for number in (1, 2))
    assert one != two


def test_the_variable_of_a_loop_within_a_constant_is_no_name(used):
    used("SQUARES = [i * i for i in range(9)]\ndef USED(i): return SQUARES[i]")
    definitions = fp.reached("mrt.stage").definitions
    assert "mrt.tools.SQUARES" in definitions and "mrt.tools.i" not in definitions


@pytest.mark.parametrize("kind", ["class Inner(NamedTuple)", "@dataclass(frozen=True)\nclass Inner"])
def test_a_field_that_is_off_counts_where_fields_have_places(package, kind):
    text = "from typing import NamedTuple\nfrom dataclasses import dataclass\n{}:\n{}    a: int = 1\n"
    record = PACKAGE["record"].replace("2 * self.size", "2 * Inner(self.size).a")
    new = "    new: int | None = None\n"
    assert package(record=text.format(kind, "") + record) != package(record=text.format(kind, new) + record)


OFF = ("int | None = None", "bool = False", "float | None = None", "str | bool = False")


@pytest.mark.parametrize("reads", ["self.name", "getattr(self, 'name')"])
def test_the_type_of_a_field_that_is_off_counts_where_it_is_read(package, reads):
    """Between None and False too; where nothing reads it, it is as if it were not there."""
    text = PACKAGE["record"].replace("str | None = None", "{}")
    read = text.replace("2 * self.size", f"2 * {reads}")
    assert len({package(record=read.format(field)) for field in OFF}) == len(OFF)
    assert len({package(record=text.format(field)) for field in OFF}) == 1


def test_the_class_of_a_field_that_is_off_counts(package):
    """It may be set, and then the class's defaults and methods decide."""
    off = PACKAGE["record"].replace("str | None = None", "Inner | None = None")
    inner = "\n\nclass Inner(BaseModel):\n    depth: int = {}\n"
    assert package(record=off + inner.format(2)) != package(record=off + inner.format(3))


def test_a_field_that_turns_off_what_a_base_class_has_counts(package):
    text = PACKAGE["record"] + "\n\nclass Inner(Record):\n    {}\n"
    stage = PACKAGE["stage"].replace("import Record", "import Inner as Record")
    assert package(stage=stage, record=text.format("pass")) != package(record=text.format("size: bool = False"))
    assert package(record=text.format("pass")) == package(record=text.format("other: bool = False"))


@pytest.mark.parametrize("calls", ["{0}.f({1}.f(1))", "[{0}.f(), 1, {1}.f()]"])
def test_functions_of_one_name_that_change_places_are_seen(package, calls):
    """What differs is in their namesakes, three calls down."""
    deep, g = "from mrt.{} import g\ndef f(x=0): return g()\n", "def g(): return {}\n"
    stage = "from mrt import alone, deep\nwork = {}\nif __name__ == '__main__':\n    work()\n"
    ours = {"deep": deep.format("lazy"), "alone": deep.format("tools"), "lazy": g.format(1), "tools": g.format(2)}
    one, other = (calls.format(*names) for names in (("alone", "deep"), ("deep", "alone")))
    assert package(**ours, stage=stage.format(one)) != package(stage=stage.format(other))


def test_versions_count_where_they_are_used(monkeypatch):
    before = {
        stage: fp.fingerprint(f"mrt.{stage}") for stage in ("sampling.rollouts", "training.sets", "grading.grade")
    }
    fp.fingerprint.cache_clear() if hasattr(fp.fingerprint, "cache_clear") else None
    real = fp.version
    monkeypatch.setattr(fp, "version", lambda name: "0.0" if name.startswith("vllm") else real(name))
    after = {stage: fp.fingerprint(f"mrt.{stage}") for stage in before}
    assert [stage for stage in before if before[stage] != after[stage]] == ["sampling.rollouts"]


@pytest.mark.parametrize("library", ["trl", "peft", "accelerate", "bitsandbytes"])
def test_a_training_depends_on_what_trains_beside_trl(monkeypatch, library):
    stages = ("training.sft", "training.rl", "sampling.rollouts")
    before, real = {stage: fp.fingerprint(f"mrt.{stage}") for stage in stages}, fp.version
    monkeypatch.setattr(fp, "version", lambda name: "0.0" if name == library else real(name))
    changed = [stage for stage in stages if fp.fingerprint(f"mrt.{stage}") != before[stage]]
    assert changed == ["training.sft", "training.rl"]


STAGES = (
    *("episodes.cut", "grading.grade", "analysis.progress", "training.sets", "sampling.imports", "analysis.evaluate"),
    *("problems.build", "figures.regret", "training.log"),
)


PLUGINS = {
    "grading.grade": ["mrt.tasks.math:Math"],
    "analysis.evaluate": ["mrt.analysis.measures.accuracy:accuracy"],
}


@pytest.mark.parametrize("stage", STAGES)
def test_stages_that_sample_nothing_do_not_depend_on_the_engine(stage):
    reached = fp.reached(f"mrt.{stage}", *PLUGINS.get(stage, ()))
    assert not [name for name in reached.definitions if name.startswith("mrt.sampling.engine.Engine.")]
    assert not {"vllm", "torch"} & set(reached.libraries)


@pytest.mark.parametrize(("stage", "names"), [
    ("sampling.rollouts", ["core.hub.tokenizer_of", "core.accelerator.join", "sampling.cache.draw", "core.cli.Stage"]),
    ("training.sft", ["core.hub.tokenizer_of", "training.stage.EndsOnce", "core.storage.write_table"]),
    ("training.prompts", ["core.hub.tokenizer_of"]),
    ("grading.grade", ["core.artifacts.GRADES", "core.storage.read_table", "grading.preloaded.(import)"]),
])  # fmt: skip
def test_what_carries_results_counts_too(stage, names):
    reached = fp.reached(f"mrt.{stage}", *PLUGINS.get(stage, ()))
    assert {f"mrt.{name}" for name in names} <= set(reached.definitions)


SAID = {
    "description",
    "desc",
    "unit",
    "total",
    "mininterval",
    "leave",
    "ge",
    "le",
    "gt",
    "lt",
    "min_length",
    "max_length",
    "pattern",
}


def spared(node):
    """Whether no result is made of a node and its children, decided in another way than the module does."""
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return True
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", getattr(node.func, "attr", "")) in ("print", "warn", "exit")
    return isinstance(node, ast.keyword) and node.arg in SAID


def counting(node):
    """The nodes below that count, but annotations of functions."""
    if spared(node):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("returns", "annotation"):
            for child in value if isinstance(value, list) else [value]:
                yield from counting(child) if isinstance(child, ast.AST) else ()


@pytest.mark.parametrize(
    "stage", ["mrt.training.sft", "mrt.training.rl.stage", "mrt.training.rl.trainer", "mrt.sampling.engine"]
)
def test_each_changed_operator_or_constant_that_a_stage_reaches_changes_its_fingerprint(stage):
    """Of the trainers' and the engine's own modules; one in four of a definition with hundreds."""
    tried, unseen = 0, []
    for name in fp.reached(stage).definitions:
        module, _, name = name.rpartition(".")
        for statement in scope.bound_in(module).get(name, []) if module == stage else []:
            before, nodes = fp.defined(statement, module), list(counting(statement))
            for node in nodes[:: 1 if len(nodes) < 1500 else 4]:
                for what, field, value in changes(node):
                    if what in ("constant", "operator", "comparison"):
                        tried, kept = tried + 1, getattr(node, field)
                        setattr(node, field, value)
                        if fp.defined(statement, module) == before:
                            unseen.append(f"{module}, line {node.lineno}")
                        setattr(node, field, kept)
    assert not unseen and tried > 25


def test_a_module_or_name_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"there is no module mrt\.absent"):
        fp.fingerprint("mrt.absent")
    with pytest.raises(ValueError, match=r"mrt\.sampling\.engine defines no Absent"):
        fp.fingerprint("mrt.sampling.engine:Absent")
