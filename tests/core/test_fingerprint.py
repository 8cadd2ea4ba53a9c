"""What changes a fingerprint and what does not: on a small package of its own, and on the real stages."""

import ast

import pytest

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


def test_the_class_of_a_field_that_is_off_counts(package):
    """It may be set, and then the class's defaults and methods decide."""
    off = PACKAGE["record"].replace("str | None = None", "Inner | None = None")
    inner = "\n\nclass Inner(BaseModel):\n    depth: int = {}\n"
    assert package(record=off + inner.format(2)) != package(record=off + inner.format(3))


@pytest.mark.parametrize("kind", ["class Inner(NamedTuple)", "@dataclass(frozen=True)\nclass Inner"])
def test_a_field_that_is_off_counts_where_fields_have_places(package, kind):
    text = "from typing import NamedTuple\nfrom dataclasses import dataclass\n\n\n{}:\n{}    a: int = 1\n\n\n"
    record = PACKAGE["record"].replace("2 * self.size", "2 * Inner(self.size).a")
    new = "    new: int | None = None\n"
    assert package(record=text.format(kind, "") + record) != package(record=text.format(kind, new) + record)


def test_what_a_progress_bar_says_does_not_matter(package):
    """Its title and its steps; that it is there does, as it may go over what is worked on."""
    with_bar = """from tqdm import tqdm


def halved(all):
    with tqdm(all, desc={}) as bar:
        bar.update()
        return all
"""
    assert package(tools=with_bar.format("'a'")) == package(tools=with_bar.format("'b'"))


# What `halved` is, twice: what its body says on the way, and what it says instead.
SAYS = {
    "a printed text": ("print(f'{len(all)} are there')", "print('there are', len(all))"),
    "the text around a call": ("print('a', all.count(1))", "print('b', all.count(1))"),
    "a text on standard error": ("print('a', file=sys.stderr)", "print('b', file=sys.stderr)"),
    "a warning": ("warnings.warn('a')", "warnings.warn('b')"),
    "the text of an exit": ("sys.exit(f'{all} is wrong')", "sys.exit(f'{all} are wrong')"),
    "the title of a bar": ("all = tqdm(all, desc='a')", "all = tqdm(all, desc='b')"),
}
DOES = {
    "what a printed call is given": ("print(counted(1))", "print(counted(2))"),
    "whether something is printed that may do more": ("print(counted(1))", "pass"),
    "a change within a printed text": ("print(all.pop())", "print(all.pop(0))"),
    "a name bound within a printed text": ("print(all := all[1:])", "print(all := all[2:])"),
    "what is printed into a file": ("print('a', file=all)", "print('b', file=all)"),
    "what a function of another name space prints": ("all.print('a')", "all.print('b')"),
    "what a warning calls": ("warnings.warn(counted(1))", "warnings.warn(counted(2))"),
    "a method that is called as a bar's was": ("bar = all\n    bar.append(1)", "bar = all\n    bar.append(2)"),
    "what a bar goes over": ("all = tqdm(iterable=all[1:])", "all = tqdm(iterable=all[2:])"),
    "what a bar is told by a call": (
        "with tqdm(all) as bar:\n        bar.update(counted(1))",
        "with tqdm(all) as bar:\n        bar.update(counted(2))",
    ),
    "what a bar's title calls": ("all = tqdm(all, desc=counted(1))", "all = tqdm(all, desc=counted(2))"),
    "the status of an exit": ("sys.exit(1)", "sys.exit(0)"),
    "a module that a text names": ("all.run('mrt.record.Record')", "all.run('mrt.deep.other')"),
}
HALVED = """import sys, warnings
from tqdm import tqdm


def halved(all):
    with tqdm(all) as bar:
        pass
    return use(all)


def use(all):
    {}
    return all[::2]


def counted(n):
    return str(n)
"""


@pytest.mark.parametrize("what", SAYS)
def test_what_is_only_said_does_not_matter(package, what):
    one, other = (package(tools=HALVED.format(said)) for said in SAYS[what])
    assert one == other


@pytest.mark.parametrize("what", DOES)
def test_what_is_done_while_something_is_said_matters(package, what):
    one, other = (package(tools=HALVED.format(said)) for said in DOES[what])
    assert one != other


@pytest.mark.parametrize("says", ["print(counted(1))", "all.run('mrt.tools.counted')"])
def test_a_function_that_is_called_within_a_text_or_named_by_one_counts(package, says):
    text = HALVED.format(says)
    assert package(tools=text) != package(tools=text.replace("str(n)", "repr(n)"))


def test_a_function_of_ours_that_is_called_print_counts(package):
    text = HALVED.format("print({})") + "\n\ndef print(n):\n    open('file', 'w').write(n)\n"
    assert package(tools=text.replace("{}", "'a'")) != package(tools=text.replace("{}", "'b'"))


# Two modules in place of `tools`, and what is changed in `alone`, which the second one uses in a way hard to see.
HARD = {
    "a module imported for what it does": ("import mrt.alone\n", "import os\nos.nice({})\n"),
    "a module that another one imports": ("from mrt.deep import value\n", "import os\nos.nice({})\n"),
    "a module by its full name": ("import mrt.alone\nUSED = mrt.alone.f\n", "def f():\n    return {}\n"),
    "a module whose name is computed": (
        "from importlib import import_module\n\n\ndef USED(name):\n    return import_module(f'mrt.{name}')\n",
        "def f():\n    return {}\n",
    ),
    "a module that is named as of its package": (
        "from importlib import import_module\n\n\ndef USED(name):\n    return import_module('.alone', 'mrt')\n",
        "def f():\n    return {}\n",
    ),
    "a function that is registered": (
        "from mrt.alone import table\nUSED = table\n",
        "import atexit\ntable = []\n\n\n@atexit.register\ndef f():\n    table.append({})\n",
    ),
    "a name that one method imports and another does not": (
        "from mrt.alone import f\n\n\nclass USED:\n"
        "    def a(self):\n        from mrt.cli import run as f\n\n        f()\n\n"
        "    def b(self):\n        return f()\n",
        "def f():\n    return {}\n",
    ),
}


@pytest.mark.parametrize("what", HARD)
def test_what_is_used_in_a_way_hard_to_see_matters(package, what):
    tools, alone = HARD[what]
    stage = PACKAGE["stage"].replace("tools.halved(found)", "tools.USED" if "USED" in tools else "tools.halved(found)")
    given = {"stage": stage, "tools": PACKAGE["tools"] + tools}
    if "deep" in tools:
        given["deep"] = "import mrt.alone\n" + PACKAGE["deep"]
    assert package(**given, alone=alone.format(1)) != package(**given, alone=alone.format(2))


# A module in place of `tools`, whose `USED` the stage calls, twice: what decides a result is another in each.
EDITS = {
    "an import that may fail": (
        "try:\n    from json import {} as d\nexcept ImportError:\n    d = str\n\n\ndef USED(x):\n    return d(x)\n",
        ("dumps", "loads"),
    ),
    "an import that tells what is installed": (
        "def USED(x):\n    try:\n        import {}\n        return x\n    except ImportError:\n        return 2\n",
        ("json", "absent"),
    ),
    "one of two imports of a name in a function": (
        "def USED(x):\n    if x:\n        from json import load as d\n    else:\n        from json import {} as d\n"
        "    return d(x)\n",
        ("dumps", "loads"),
    ),
    "an import that is replaced": (
        "from json import {} as d\nd = [d]\n\n\ndef USED(x):\n    return d\n",
        ("dumps", "loads"),
    ),
    "what runs where no type checker is": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from json import load as d\nelse:\n    d = {}\n\n\n"
        "def USED(x):\n    return d\n",
        ("1", "2"),
    ),
    "what runs unless a type checker does": (
        "from typing import TYPE_CHECKING\n\nif not TYPE_CHECKING:\n    d = {}\n\n\ndef USED(x):\n    return d\n",
        ("1", "2"),
    ),
    "what runs where the module is no stage": (
        "d = []\nif __name__ != '__main__':\n    d.append({})\n\n\ndef USED(x):\n    return d\n",
        ("1", "2"),
    ),
    "what an assignment calls": ("R = []\n_ = R.append({})\n\n\ndef USED(x):\n    return R\n", ("1", "2")),
    "what the default of an argument calls": (
        "R = []\n\n\ndef other(x=R.append({})):\n    pass\n\n\ndef USED(x):\n    return R\n",
        ("1", "2"),
    ),
    "what a class calls": ("R = []\n\n\nclass A:\n    R.append({})\n\n\ndef USED(x):\n    return R\n", ("1", "2")),
    "what making an object does": (
        "R = []\n\n\nclass A:\n    def __init__(self, x):\n        R.append(x)\n\n\n_ = A({})\n\n\ndef USED(x):\n"
        "    return R\n",
        ("1", "2"),
    ),
    "a subclass that its base registers": (
        "class A:\n    known = []\n\n    def __init_subclass__(cls):\n        A.known.append(cls)\n\n\n"
        "class B(A):\n    x = {}\n\n\ndef USED(x):\n    return A.known[0].x\n",
        ("1", "2"),
    ),
    "a subclass that is looked for": (
        "class A:\n    pass\n\n\nclass B(A):\n    x = {}\n\n\ndef USED(x):\n    return A.__subclasses__()[0].x\n",
        ("1", "2"),
    ),
    "a name that is computed": ("def f():\n    return {}\n\n\ndef USED(x):\n    return globals()['f']()\n", ("1", "2")),
    "when a name is read that is bound twice": (
        "X = 1\n{}\n\n\ndef USED(x):\n    return Y\n",
        ("Y = X\nX = 2", "X = 2\nY = X"),
    ),
    "when a name is read that is changed": (
        "X = [1]\n{}\n\n\ndef USED(x):\n    return Y\n",
        ("Y = [*X]\nX.append(2)", "X.append(2)\nY = [*X]"),
    ),
    "when a name is read that a function changes": (
        "X = [1]\n\n\ndef f():\n    X.append(2)\n\n\n{}\n\n\ndef USED(x):\n    return Y\n",
        ("Y = [*X]\nf()", "f()\nY = [*X]"),
    ),
    "the first of two modules of which all is imported": (
        "from {} import *\nfrom os import *\n\n\ndef USED(x):\n    return exp(x)\n",
        ("math", "cmath"),
    ),
    "an error's text that a caller reads": (
        "def f():\n    raise KeyError({})\n\n\ndef USED(x):\n    try:\n        f()\n    except KeyError as error:\n"
        "        return error.args[0]\n",
        ("'a'", "'b'"),
    ),
    "an error's text that another error passes on": (
        "def f():\n    raise KeyError({})\n\n\ndef g():\n    try:\n        f()\n    except KeyError as error:\n"
        "        raise ValueError(f'{{error}}') from error\n\n\ndef USED(x):\n    try:\n        g()\n"
        "    except ValueError as error:\n        return str(error)\n",
        ("'a'", "'b'"),
    ),
    "what the text of a read error calls": (
        "def t():\n    return {}\n\n\ndef USED(x):\n    try:\n        raise KeyError(t())\n"
        "    except KeyError as error:\n"
        "        return error.args[0]\n",
        ("'a'", "'b'"),
    ),
    "an error's text that a method raises": (
        "class A:\n    def f(self):\n        raise KeyError({})\n\n\ndef USED(x):\n    a = A()\n    try:\n"
        "        a.f()\n"
        "    except KeyError as error:\n        return error.args[0]\n",
        ("'a'", "'b'"),
    ),
    "an error's text that is read where anything is called": (
        "def f():\n    raise KeyError({})\n\n\ndef call(g):\n    try:\n        g()\n    except KeyError as error:\n"
        "        return error.args[0]\n\n\ndef USED(x):\n    return call(f)\n",
        ("'a'", "'b'"),
    ),
    "an error's text that is formatted": (
        "import traceback\n\n\ndef USED(x):\n    try:\n        raise KeyError({})\n    except KeyError:\n"
        "        return traceback.format_exc()\n",
        ("'a'", "'b'"),
    ),
    "the text of an exit that a caller reads": (
        "import sys\n\n\ndef USED(x):\n    try:\n        leave()\n    except SystemExit as end:\n"
        "        return end.code\n"
        "\n\ndef leave():\n    sys.exit({})\n",
        ("'a'", "'b'"),
    ),
    "what is run for the status of an exit": ("import sys\n\n\ndef USED(x):\n    sys.exit(x({}))\n", ("'a'", "'b'")),
    "what ends a generator": ("def USED(x):\n    raise StopIteration({})\n", ("1", "2")),
    "a printed text that is redirected": (
        "import contextlib\n\n\ndef USED(x):\n    with contextlib.redirect_stdout(x):\n        print({})\n",
        ("'a'", "'b'"),
    ),
    "an argument that is called as what prints": ("def USED(x, print):\n    print({})\n", ("1", "2")),
    "what replaces a bar": (
        "from tqdm import tqdm\n\n\ndef USED(x):\n    with tqdm(x) as bar:\n        pass\n    bar = x\n"
        "    bar.append({})\n",
        ("1", "2"),
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_that_is_hard_to_see_matters(package, what):
    text, (one, other) = EDITS[what]
    stage = PACKAGE["stage"].replace("tools.halved(found)", "tools.USED(found)")
    assert package(stage=stage, tools=PACKAGE["tools"] + text.format(one)) != package(
        tools=PACKAGE["tools"] + text.format(other)
    )


# What `USED` says, and what it does not; an iterator is used up by the one, a queue has more, a key is made.
TAKES = ("list(it)", "sum(it)", "','.join(it)", "*it", "[x for x in it]", "1 in it", "q.join(1)", "d['a']", "q and f()")


@pytest.mark.parametrize("says", TAKES)
def test_what_is_taken_while_something_is_printed_matters(package, says):
    text = HALVED.replace("def use(all):", "def use(all, it, q, d, f):")
    assert package(tools=text.format(f"print({says})")) != package(tools=text.format("print()"))
    assert package(tools=text.format(f"print({says})")) == package(tools=text.format(f"print('and', {says}, 'too')"))


@pytest.mark.parametrize(
    "says",
    [("q and f()", "d and f()"), ("f() if q else 1", "f() if d else 1"), ("[f() for _ in q]", "[f() for _ in d]")],
)
def test_when_something_is_done_while_printing_matters(package, says):
    text = HALVED.replace("def use(all):", "def use(all, q, d, f):")
    one, other = (package(tools=text.format(f"print({each})")) for each in says)
    assert one != other


OFF = ("int | None = None", "bool = False", "float | None = None", "str | bool = False")


@pytest.mark.parametrize("reads", ["self.name", "getattr(self, 'name')"])
def test_the_type_of_a_field_that_is_off_counts_where_it_is_read(package, reads):
    """Between None and False too; where nothing reads it, it is as if it were not there."""
    text = PACKAGE["record"].replace("str | None = None", "{}")
    read = text.replace("2 * self.size", f"2 * {reads}")
    assert len({package(record=read.format(field)) for field in OFF}) == len(OFF)
    assert len({package(record=text.format(field)) for field in OFF}) == 1


# What an edit of a module does not do: `text` with each of two edits, in place of `tools`.
STAYS = {
    "the unit of a bar that a function imports": (
        "def halved(all):\n    from tqdm import tqdm\n\n    return list(tqdm(all, unit='{}'))\n",
        ("a", "b"),
    ),
    "a constant beside what runs": ("import os\n\nos.nice(1)\nX = {}\n", ("1", "2")),
    "a compiled pattern that nobody reads": ("import re\n\nX = re.compile('{}')\n", ("1", "2")),
    "an object of a plain class": ("class A(tuple):\n    pass\n\n\nX = A(({},))\n", ("1", "2")),
    "what only type checkers see": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from json import {}\n",
        ("dumps", "loads"),
    ),
    "the text of an error that is only said again": (
        "def f():\n    raise KeyError('{}')\n\n\ndef halved(all):\n    try:\n        f()\n"
        "    except KeyError as error:\n        raise ValueError(f'f: {{error}}') from error\n    return all\n",
        ("a", "b"),
    ),
    "the text of an error of another kind than a read one": (
        "def f():\n    raise KeyError('{}')\n\n\ndef halved(all):\n    try:\n        f()\n"
        "    except OSError as error:\n        return error.errno\n    return all\n",
        ("a", "b"),
    ),
    "the text of an error whose namesake is read": (
        "def f():\n    raise KeyError('{}')\n\n\ndef halved(all):\n    f()\n    try:\n        all()\n"
        "        return int(all)\n"
        "    except KeyError:\n        return 1\n",
        ("a", "b"),
    ),
}


@pytest.mark.parametrize("what", STAYS)
def test_an_edit_that_does_nothing_does_not_matter(package, what):
    text, (one, other) = STAYS[what]
    assert package(tools=PACKAGE["tools"] + "\n\n" + text.format(one)) == package(
        tools=PACKAGE["tools"] + "\n\n" + text.format(other)
    )


def test_a_field_that_turns_off_what_a_base_class_has_counts(package):
    text = PACKAGE["record"] + "\n\nclass Inner(Record):\n    {}\n"
    stage = PACKAGE["stage"].replace("import Record", "import Inner as Record")
    assert package(stage=stage, record=text.format("pass")) != package(record=text.format("size: bool = False"))
    assert package(record=text.format("pass")) == package(record=text.format("other: bool = False"))


def test_an_annotation_that_a_decorator_may_read_counts(package):
    text = "import functools\n\n\n@functools.singledispatch\ndef halved(all: {}):\n    return all\n"
    assert package(tools=text.format("int")) != package(tools=text.format("str"))


def test_functions_that_change_places_far_down_are_seen(package):
    """Two functions of one text, whose namesakes from other modules do what differs, three calls down."""
    deep = "{}\n\n\ndef f():\n    return g()\n"
    g = "def g():\n    return {}\n"
    stage = "from mrt import {}\nwork = [{}.f(), 1, {}.f()]\nif __name__ == '__main__':\n    work()\n"
    modules = {"deep": deep.format("from mrt.lazy import g"), "alone": deep.format("from mrt.tools import g")}
    ours = {**modules, "lazy": g.format(1), "tools": g.format(2)}
    assert package(**ours, stage=stage.format("alone, deep", "alone", "deep")) != package(
        stage=stage.format("alone, deep", "deep", "alone")
    )


HIDES = """from mrt import tools
from mrt.tools import counted

SQUARES = [i * i for i in range(9)]


def work(counted, n=tools.halved):
    return sum(counted) + SQUARES[2]


def other():
    def inner():
        counted = 3
        return counted

    return counted(inner())


if __name__ == "__main__":
    {runs}()
"""


def test_a_name_of_a_function_that_is_one_of_the_module_too_counts_as_both(package):
    """A default is a use; so is what only a nested function hides. The variable of a loop within is no name."""
    halved, counted = changed("tools", "all[::2]", "all[::3]"), changed("tools", "str(n)", "repr(n)")
    stage = HIDES.format(runs="work")
    before = package(stage=stage)
    assert "mrt.stage.i" not in fp.reached("mrt.stage").definitions
    assert package(stage=stage, **halved) != before
    stage = HIDES.format(runs="other")
    assert package(stage=stage, **counted) != package(stage=stage, tools=PACKAGE["tools"])


def test_functions_that_change_places_are_seen(package):
    """Of two functions with one name, from two modules, each called where the other was."""
    calls = "from mrt import alone, tools\nwork = {}.halved({}.halved(1))\nif __name__ == '__main__':\n    work()\n"
    both = {"alone": PACKAGE["tools"].replace("::2", "1::2")}
    assert package(**both, stage=calls.format("alone", "tools")) != package(stage=calls.format("tools", "alone"))


def test_versions_count_where_they_are_used(monkeypatch):
    before = {
        stage: fp.fingerprint(f"mrt.{stage}") for stage in ("sampling.rollouts", "training.sets", "grading.grade")
    }
    fp.fingerprint.cache_clear() if hasattr(fp.fingerprint, "cache_clear") else None
    real = fp.version
    monkeypatch.setattr(fp, "version", lambda name: "0.0" if name.startswith("vllm") else real(name))
    after = {stage: fp.fingerprint(f"mrt.{stage}") for stage in before}
    assert [stage for stage in before if before[stage] != after[stage]] == ["sampling.rollouts"]


STAGES = (
    *("episodes.cut", "grading.grade", "analysis.progress", "training.sets", "sampling.imports", "analysis.evaluate"),
    *("problems.build", "figures.regret", "training.log"),
)


PLUGINS = {"grading.grade": ["mrt.tasks.math:Math"]}


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


# What catches errors of ours, or any, and keeps their text: for an error of its own, or to know a library's by it.
KEEP_A_TEXT = {"mrt.core.hub", "mrt.problems.sources", "mrt.sampling.tokens"}


def test_no_error_text_becomes_a_result():
    """They are in no fingerprint: so what catches an error says it, in an error of its own, and makes no data of it."""
    keep = set()
    for module in fp.modules(""):
        handlers = (
            n for n in ast.walk(ast.Module(scope.body_of(module))) if isinstance(n, ast.ExceptHandler) and n.name
        )
        for handler in handlers if not module.startswith(("mrt.config", "mrt.planning")) else ():
            said = [n for n in ast.walk(handler) if isinstance(n, ast.Raise)]
            said += [n for n in ast.walk(handler) if isinstance(n, ast.Call) and ast.unparse(n.func) == "sys.exit"]
            within = {id(below) for node in said for below in ast.walk(node)}
            names = (n for n in ast.walk(handler) if isinstance(n, ast.Name) and n.id == handler.name)
            kinds = {getattr(n, "id", "") for n in ast.walk(handler.type)}
            ours = kinds & {"Exception", "ValueError", "OSError", "KeyError", "TypeError", "RuntimeError"}
            keep |= {module for name in names if ours and id(name) not in within}
    assert keep == KEEP_A_TEXT


def counts_not(node):
    """Nodes below it that no result is made of, told apart from the module's own way of doing so."""
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield from ast.walk(node)
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in ("print", "warn"):
            yield from ast.walk(node)
        elif name in ("Field", "tqdm"):
            for keyword in node.keywords:
                yield from ast.walk(keyword) if keyword.arg not in ("default_factory", "default") else ()
    elif isinstance(node, ast.FunctionDef):
        for part in (node.returns, *(a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg))):
            yield from ast.walk(part) if part else ()
    elif isinstance(node, ast.AnnAssign):
        yield from ast.walk(node.annotation)
    elif isinstance(node, ast.AugAssign | ast.Expr) and "bar" in {getattr(n, "id", "") for n in ast.walk(node)}:
        yield from ast.walk(node)


OTHER = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod, ast.Mod: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def mutate(node):
    """Change an operator or a constant; what undoes it, or None if the node is neither."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, str, bool):
        value = node.value
        node.value = not value if isinstance(value, bool) else value + ("x" if isinstance(value, str) else 1)
        return lambda: setattr(node, "value", value)
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OTHER:
        operator, node.op = node.op, OTHER[type(node.op)]()
        return lambda: setattr(node, "op", operator)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        operators, node.ops = node.ops, [OTHER[type(node.ops[0])](), *node.ops[1:]]
        return lambda: setattr(node, "ops", operators)
    return None


@pytest.mark.parametrize(
    "stage", ["mrt.training.sft", "mrt.training.rl.stage", "mrt.training.rl.trainer", "mrt.sampling.engine"]
)
def test_each_changed_operator_or_constant_that_a_stage_reaches_changes_its_fingerprint(stage):
    """Of the trainers' and the engine's own modules; one in four of a definition with hundreds."""
    tried, unseen = 0, []
    for name in fp.reached(stage).definitions:
        module, _, name = name.rpartition(".")
        for statement in scope.bound_in(module).get(name, []) if module == stage else []:
            before = fp.defined(statement, module)
            nodes = list(ast.walk(statement))
            spared = {id(below) for node in nodes for below in counts_not(node)}
            counting = [node for node in nodes if id(node) not in spared]
            for node in counting[:: 1 if len(nodes) < 2000 else 4]:
                if undo := mutate(node):
                    tried += 1
                    if fp.defined(statement, module) == before:
                        unseen.append(f"{module}, line {node.lineno}")
                    undo()
    assert not unseen and tried > 30


def test_a_module_or_name_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"there is no module mrt\.absent"):
        fp.fingerprint("mrt.absent")
    with pytest.raises(ValueError, match=r"mrt\.sampling\.engine defines no Absent"):
        fp.fingerprint("mrt.sampling.engine:Absent")
