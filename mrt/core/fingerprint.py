"""Fingerprints of stages: hashes of the code that determines a result, and of nothing else.

    python -m mrt.core.fingerprint mrt.sampling.rollouts     prints the definitions that the stage can reach

The fingerprint of a stage hashes the definitions that it can reach: functions, classes, constants, and statements that
a module runs when it is imported. The search starts at the block `if __name__ == "__main__"` of the stage's module, or
of a user's file, and follows the names that each definition uses (`mrt.core.scope`). A text that is the name of a
module, such as "mrt.sampling.worker.Worker", counts as its use. A whole module counts only where the name used cannot
be determined: where the module itself is passed on, or imported with `*`. An object that a stage loads by a name of the
configuration (`mrt.core.plugins`) is a further start of its search. Rules carry fingerprints in their params: Snakemake
does not see edits of imported modules, but it sees changed params.

No module is exempt. Within a definition everything counts but docstrings, comments, formatting, its module, annotations
in functions without a decorator, and parts that change no result unless something reads them:

- the text of a builtin error, unless a handler of its kind reads an error of ours
- printed texts and warnings, unless they are redirected; calls within them count
- descriptions and bounds of fields, texts of progress bars
- a field that is None or False unless it is set, if nothing reached names it

In doubt it counts. tests/core/test_mutations.py looks for edits that change an artifact and no fingerprint. Versions of
decisive libraries (those that affect results) count too, if a reached definition uses the library.
"""

import ast
import builtins
import copy
import re
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from mrt.core import scope
from mrt.core.digest import digest
from mrt.core.scope import AT_IMPORT, STAGE, Name, Scope, binds, evaluated, file_of, last_name, statements_of

# Libraries whose version may change a result.
DECISIVE = {"vllm", "transformers", "tokenizers", "trl", "torch", "math_verify", "datasets", "deepspeed", "sympy"}
DECISIVE |= {"latex2sympy2_extended"}
BESIDE_TRL = ("accelerate", "bitsandbytes", "peft", "torchao")  # a training has them through TRL and transformers
# Calls that only tell something, and the names by which a definition may hear of it.
TELLS = {
    "print": {"redirect_stdout", "redirect_stderr"},
    "warnings.warn": {"catch_warnings", "filterwarnings", "simplefilter"},
}
TRACEBACKS = {"exc_info", "format_exc", "format_exception"}
PURE = {"len", "str", "repr", "round", "abs", "int", "float"}
EFFECTS = ast.Call | ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom | ast.Subscript | ast.Starred
EFFECTS |= ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
TEXTS = {  # arguments that only say or check something
    "pydantic.Field": {"description", "ge", "le", "gt", "lt", "min_length", "max_length", "pattern"},
    "tqdm.tqdm": {"desc", "unit", "total", "mininterval", "leave"},
}
IMPORTERS = {"import_module", "__import__", "run_module", "run_path", "spec_from_file_location"}
LOADERS = {f"{scope.PACKAGE.name}.core.{name}" for name in ("plugins", "user_file")}
FINDERS = {"globals", "eval", "exec", "vars", "locals"}  # may find any name of their module
DEFERRED = {"result", "exception"}  # of futures: raise errors of calls made elsewhere
OPEN = ast.Yield | ast.YieldFrom | ast.Await


class Definition(NamedTuple):
    """The digest of a statement, the names that it uses, and the parts left out unless a definition reads them."""

    digest: str
    uses: tuple[Name, ...] = ()  # in order
    runs: frozenset[Name] = frozenset()  # statements that its imports run
    libraries: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()  # names and texts that may name parts left out
    left: frozenset[str] = frozenset()  # names by which it may be read
    defines: frozenset[str] = frozenset()  # names of functions and classes


class State(NamedTuple):
    """Where the visitor is."""

    annotations: bool = False  # where they count: in a class, and in a function with a decorator
    settings: bool = False  # where fields that are off are left out


class Normal(ast.NodeVisitor):
    """The normal form of a statement, as a list of tokens, with what `Definition` has.

    Names are replaced by the definitions that they refer to where these are certain. Parts named in `heard` count.
    """

    def __init__(self, statement: ast.stmt, module: str, heard: frozenset[str]) -> None:
        self.statement, self.module, self.heard = statement, module, heard
        self.scope = Scope(statement, module)
        self.tokens, self.uses, self.runs = list[str](), list[Name](), set[Name]()
        self.libraries, self.reads, self.left, self.defines = set[str](), set[str](), set[str](), set[str]()
        self.state = State()
        self.tries = list[list[ast.stmt]]()  # bodies of the `try` that the visitor is in
        self.visit(statement)

    def definition(self) -> Definition:
        names = (self.runs, self.libraries & set(DECISIVE), self.reads, self.left, self.defines)
        return Definition(digest("\0".join(self.tokens)), (*self.uses,), *map(frozenset, names))  # type: ignore[arg-type]

    def show(self, value: Any) -> None:
        """Add a node, a list or a value to the tokens."""
        if isinstance(value, ast.AST):
            self.visit(value)
        elif isinstance(value, list):
            self.tokens.append("[")
            for each in value:
                self.show(each)
            self.tokens.append("]")
        else:
            self.tokens.append(repr(value))

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, scope.FUNCTION | ast.ClassDef):
            self.defines.add(node.name)
        if isinstance(node, ast.Pass):
            return
        skipped = ("ctx", "kind", "type_comment", *(() if self.state.annotations else ("annotation", "returns")))
        self.tokens.append(f"({type(node).__name__}")
        for name, value in ast.iter_fields(node):
            if name not in skipped:
                self.show(value)
        self.tokens.append(")")

    # ---- the definitions that names refer to ----

    def refer(self, what: Name) -> None:
        """Add a name by the definition, module or library that it refers to."""
        self.reads.add(what.name.rpartition(".")[2])
        self.tokens.append(f"@{what.name}")
        if what.module:
            self.uses.append(what)
        else:
            self.libraries.add(what.name.split(".")[0])

    def visit_Name(self, node: ast.Name) -> None:
        what = self.scope.what(node)
        if not what:
            self.tokens.append(f"={node.id}")
        for each in [what] if what else sorted(self.scope.whats(node.id)) if isinstance(node.ctx, ast.Load) else ():
            self.refer(each)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.reads.add(node.attr)
        if node.attr == "__subclasses__":  # those of any module
            self.uses += [Name(module, "") for module in scope.modules(self.module)]
        if what := self.scope.what(node):
            self.refer(what)
        else:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        self.tokens.append(repr(node.value))
        if not isinstance(node.value, str) or not re.fullmatch(r"\w+(\.\w+)*", node.value):
            return
        self.reads.add(f".{node.value}")
        module = scope.absolute(node.value, self.module)  # which may be imported by its name
        above, _, name = module.rpartition(".")
        if file_of(module) and node.value not in {scope.PACKAGE.name, *LOADERS}:
            self.uses.append(Name(module, ""))
        elif above != scope.PACKAGE.name and name and file_of(above):
            self.uses.append(scope.follow(above, name))

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Imports are left out, as names are resolved where they are used; not one that may fail, or is one of many."""
        brought = list(scope.imported(node, self.module))
        self.runs |= {Name(module, AT_IMPORT) for _, _, run in brought for module in run}
        if node is self.statement or {name for name, _, _ in brought} & self.scope.unsure:
            self.generic_visit(node)
            for _, what, _ in brought:
                self.refer(what)

    visit_ImportFrom = visit_Import

    # ---- parts left out ----

    def leave(self, *names: str) -> bool:
        """Whether to leave something out, which counts if a definition reads one of these names."""
        self.left |= {*names}
        return not self.heard & {*names}

    def acts(self, node: ast.AST) -> bool:
        """Whether a part of an expression may do more than give a value: it calls, binds, or takes from an iterator."""
        return any(
            any(isinstance(operator, ast.In | ast.NotIn) for operator in each.ops)
            if isinstance(each, ast.Compare)
            else isinstance(each, EFFECTS) and self.scope.origin(getattr(each, "func", None)) not in PURE
            for each in ast.walk(node)
        )

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value
        called = self.scope.origin(value.func) if isinstance(value, ast.Call) else ""
        if isinstance(value, ast.Constant):
            return
        if isinstance(value, ast.Call) and called in TELLS and self.leave(*TELLS[called]):
            files = [self.scope.origin(each.value) for each in value.keywords if each.arg in ("file", None)]
            if not set(files) - {"sys.stderr"}:
                parts = [*value.args, *(each.value for each in value.keywords)]
                printed = [
                    each for part in parts for each in (part.values if isinstance(part, ast.JoinedStr) else [part])
                ]
                self.show(effects) if (effects := [each for each in printed if self.acts(each)]) else None
                return
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        kind = getattr(builtins, self.scope.origin(node.exc.func), None) if isinstance(node.exc, ast.Call) else None
        is_error = isinstance(kind, type) and not issubclass(kind, SystemExit | StopIteration)
        if is_error and self.leave(*(f"except {each.__name__}" for each in kind.__mro__), *TRACEBACKS):  # type: ignore[union-attr]
            node = ast.Raise(node.exc.func, None)  # type: ignore[union-attr]
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called, name, of = self.scope.origin(node.func), last_name(node.func), node.args[0] if node.args else None
        texts = TEXTS.get(called, set())
        kept = copy.copy(node)
        kept.keywords = [each for each in node.keywords if each.arg not in texts or self.acts(each.value)]
        text = getattr(of, "left", of)
        is_text = isinstance(text, ast.JoinedStr) or isinstance(getattr(text, "value", None), str)
        if called == "sys.exit" and is_text and self.leave("except SystemExit", "except BaseException"):
            kept.args = []
        is_known = isinstance(of, ast.Constant) and not str(of.value).startswith(".")
        if name in IMPORTERS and not is_known and self.module not in LOADERS:  # it may import any module
            self.uses += [Name(module, "") for module in scope.modules(self.module)]
        if isinstance(node.func, ast.Name) and name in FINDERS and not (name == "vars" and of):
            self.uses.append(Name(self.module, ""))
        self.generic_visit(kept)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before, self.state = self.state, State(annotations=bool(node.decorator_list))  # a decorator may read them
        self.generic_visit(node)
        self.state = before

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Fields that are off are left out, but of dataclasses and the like: there they move the places of others."""
        by_position = node.decorator_list or "NamedTuple" in map(last_name, node.bases)
        before, self.state = self.state, State(annotations=True, settings=not by_position)
        on = [part for each in node.body if not self.is_off(each) for part in evaluated(each, in_classes=False)]
        self.reads |= {f".{name}" for part in on for name in binds(part)}  # these may be turned off in a subclass
        self.generic_visit(node)
        self.state = before

    def is_off(self, node: ast.stmt) -> bool:
        """Whether a field is off unless it is set: by convention, None and False turn a setting off."""
        value = node.value if isinstance(node, ast.AnnAssign) else None
        if isinstance(value, ast.Call) and value.args and self.scope.origin(value.func) == "pydantic.Field":
            value = value.args[0]
        if not isinstance(value, ast.Constant) or not isinstance(node, ast.AnnAssign):
            return False
        # where None and False are both allowed, they differ
        return value.value is None or (value.value is False and "None" not in ast.unparse(node.annotation))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        name = last_name(node.target)
        if not (self.state.settings and self.is_off(node) and self.leave(name, f".{name}")):
            self.generic_visit(node)
            return
        end = len(self.tokens)
        self.visit(node.annotation)  # set values may be of this type
        del self.tokens[end:]

    # ---- who reads errors ----

    def visit_Try(self, node: ast.Try) -> None:
        self.tries.append(node.body)
        self.generic_visit(node)
        self.tries.pop()

    visit_TryStar = visit_Try  # type: ignore[assignment]

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        start = len(self.tokens)
        self.generic_visit(node)
        if node.name and f"={node.name}" in self.tokens[start:]:  # it does more with it than to say so in an error
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            self.reads |= {f"{kind}{by}" for kind in self.caught(kinds) for by in self.raisers(self.tries[-1])}

    def caught(self, kinds: Iterable[ast.AST | None]) -> Iterable[str]:
        """The builtin errors that these kinds of a handler may be: `except KIND`."""
        for kind in kinds:
            origin = self.scope.origin(kind)
            if origin.startswith("pydantic."):
                yield "except ValueError"  # of a validator
            elif isinstance(getattr(builtins, origin or "BaseException", None), type):
                yield f"except {origin or 'BaseException'}"

    def raisers(self, body: list[ast.stmt]) -> set[str]:
        """The raisers of an error of ours in these statements: empty if unknown, or ` by NAME`, if that is ours."""
        nodes = [node for statement in body for node in ast.walk(statement)]
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {what.name for node in nodes if (what := self.scope.what(node)) and what.module}
        called = [
            node.func for node in nodes if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute)
        ]
        is_open = any(not self.scope.what(each) and not self.scope.origin(each) for each in called)
        is_open |= any(isinstance(node, OPEN) or getattr(node, "exc", None) for node in nodes)
        return {""} if is_open or names & DEFERRED else {f" by {name}" for name in names}


def defined(statement: ast.stmt, module: str, heard: frozenset[str] = frozenset()) -> Definition:
    """The definition that a top-level statement of a module makes or runs."""
    return Normal(statement, module, heard).definition()


@cache
def definitions_of(what: Name, heard: frozenset[str]) -> tuple[Definition, ...]:
    """The definitions of a name: usually one; none if its module does not define it."""
    made = [defined(each, what.module, heard) for each in statements_of(what.module).get(what.name, ())]
    rows = scope.order(what.module) if what.name == AT_IMPORT else []
    return (*made, *([Definition(digest(repr(rows)))] if rows else []))


def search(starts: Iterable[Name], heard: frozenset[str]) -> dict[Name, tuple[Definition, ...]]:
    """The definitions that can be reached, by name."""
    known, waiting = dict[Name, tuple[Definition, ...]](), list(starts)
    while waiting:
        what = waiting.pop()
        if what in known:
            continue
        known[what] = definitions_of(what, frozenset())
        if read := heard & {name for each in known[what] for name in each.left}:
            known[what] = definitions_of(what, read)
        waiting += [use for each in known[what] for use in (*each.uses, *each.runs)]
        if what.name == AT_IMPORT:
            waiting += [Name(module, AT_IMPORT) for module in scope.runs(what.module)]
        else:
            waiting.append(Name(what.module, AT_IMPORT))
        if not what.name or (what in starts and what.name == STAGE and not known[what]):  # all of the module
            waiting += [Name(what.module, name) for name in statements_of(what.module) if name != STAGE]
    return known


@dataclass(frozen=True)
class Reached:
    """The code reached by a stage: digests of definitions by module and name, the decisive libraries, and a hash."""

    definitions: dict[str, str]
    libraries: tuple[str, ...]
    hashed: str


def starts_of(stage: str) -> list[Name]:
    """Where the search begins, for a stage's module or file, or for a definition, `module:name` or `FILE.py:name`."""
    where, colon, name = stage.rpartition(":")
    if not colon or stage.endswith(".py"):
        return [Name(scope.module_of(stage), STAGE)]
    module = scope.module_of(where) if where.endswith(".py") else where
    if what := scope.meaning(module, name):
        return [what, Name(module, AT_IMPORT)]
    raise ValueError(f"{where} defines no {name}")


@cache
def reached(*stages: str) -> Reached:
    """The code that a stage and the parts named by its options can reach together.

    A stage is a module or a user's file; a part, or a definition alone, is `module:name` or `FILE.py:name`. Raises
    ValueError if there is no such module or file, the module has no such name, or a module does not parse.
    """
    starts, known = [start for stage in stages for start in starts_of(stage)], dict[Name, tuple[Definition, ...]]()
    heard, now = None, frozenset[str]()
    while now != heard:  # parts that are read count, and may read more
        heard, known = now, search(starts, now)
        every = [each for definitions in known.values() for each in definitions]
        defines = {name for each in every for name in each.defines}
        reads = [read.partition(" by ") for each in every for read in each.reads]
        left = {name for each in every for name in each.left}
        now = frozenset(name for name, by, raiser in reads if name in left and (not by or raiser in defines))
    known = {what: those for what, those in known.items() if those}
    namesakes = Counter(what.name for what in known)

    def label(what: Name) -> str:
        """A name that only one definition has: so one may move to another module."""
        return what.name if what.name == AT_IMPORT or (what.name and namesakes[what.name] < 2) else ":".join(what)

    digests = {what: digest(*(each.digest for each in those)) for what, those in known.items()}
    uses = {what: [label(use) for each in those for use in each.uses] for what, those in known.items()}
    rows = sorted(digest(label(what), digests[what], *uses[what]) for what in known)
    libraries = {library for those in known.values() for each in those for library in each.libraries}
    named = {f"{what.module}.{what.name}": value for what, value in digests.items()}
    return Reached(dict(sorted(named.items())), tuple(sorted(libraries)), digest(*map(label, starts), "", *rows))


def versions(*stages: str) -> dict[str, str]:
    """Versions of the decisive libraries that a stage can reach; `absent` if one is not installed here."""
    return versions_of(reached(*stages).libraries)


def versions_of(libraries: Iterable[str]) -> dict[str, str]:
    """Versions of decisive libraries; `absent` if one is not installed here."""
    libraries = [*libraries]
    installed = dict.fromkeys([*libraries, *(BESIDE_TRL if "trl" in libraries else ())], "absent")
    for library in installed:
        for distribution in (f"{library}-cpu", library.replace("_", "-")):
            with suppress(PackageNotFoundError):
                installed[library] = f"{distribution} {version(distribution)}"
    return installed


def fingerprint(*stages: str, with_versions: bool = True) -> str:
    """Hash of the definitions that a stage and its parts can reach and, by default, of decisive libraries' versions.

    Raises ValueError as `reached` does.
    """
    return hash_of(reached(*stages).hashed, reached(*stages).libraries if with_versions else ())


def hash_of(hashed: str, libraries: Iterable[str]) -> str:
    """The fingerprint of a stage, from the hash of its reached code and the libraries whose versions count."""
    return digest(hashed, *(f"{library}={installed}" for library, installed in versions_of(libraries).items()))


if __name__ == "__main__":
    for stage in sys.argv[1:]:
        print(fingerprint(stage), stage, versions(stage), *reached(stage).definitions, sep="\n  ")
