"""The referents of a module's names, read from its syntax tree: definitions of ours, or those of a library.

A module has the name by which Python imports it, such as `mrt.core.hub`. A user's module is `FOLDER/NAME`, where FOLDER
is that of the file that runs, or the working folder, `.`.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]
AT_IMPORT, STAGE = "(import)", "(stage)"  # pseudo-names: statements run at import, and as a stage
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
DEFINITION = FUNCTION | ast.ClassDef
IMPORT = ast.Import | ast.ImportFrom
# Calls that do nothing but give a value, when a module is imported: of libraries, of builtins, of methods.
MAKERS = re.compile(
    r"(re|math|typing|types|datetime|pathlib|weakref|collections|dataclasses|functools|pydantic|pydantic_settings)\.\w+"
    r"|torch\.(tensor|ones|zeros|arange|device|finfo)|numpy\.(?!random)[\w.]+|(str|dict|bytes|int|float)\.\w+"
    r"|len|str|repr|round|abs|int|float|list|tuple|set|frozenset|dict|sum|min|max|sorted|chr|ord|range|enumerate|zip|map"
)
METHODS = {"split", "join", "format", "keys", "values", "items", "with_name"}
AT_MAKING = {"__init__", "__new__", "__post_init__", "model_post_init", "__set_name__", "__init_subclass__"}
# Decorators that leave the definition where it is; others may register it, and then it counts without being named.
QUIET = {"cache", "lru_cache", "dataclass", "contextmanager", "overload", "property", "classmethod", "staticmethod"}
QUIET |= {"cached_property", "setter", "abstractmethod", "wraps", "computed_field", "variant", "measure"}


class Name(NamedTuple):
    """A definition of a module of ours; without `name`, the whole module; without `module`, something of a library."""

    module: str
    name: str


# ---- modules ----


def module_of(stage: str) -> str:
    """The module of a stage, which is a module or a user's file. A package is run by its `__main__`."""
    if stage.endswith(".py"):
        return f"{Path(stage).parent.as_posix()}/{Path(stage).stem}"
    main = f"{stage}.__main__"
    return main if stage != PACKAGE.name and file_of(main) else stage


@cache
def file_of(module: str) -> Path | None:
    """The source of a module of ours, or the folder of a user's package without one; None if there is none."""
    root, _, dotted = module.rpartition("/")
    if not root and dotted.split(".")[0] != PACKAGE.name:
        return None
    path = Path(root or PACKAGE.parent, *dotted.split("."))
    for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
        if file.is_file():
            return file
    return path if root and path.is_dir() else None


def modules(importer: str) -> list[str]:
    """All modules of the package; if the importer is a user's, those of its folder and of the working folder too."""
    files = (file.relative_to(PACKAGE).with_suffix("").parts for file in sorted(PACKAGE.rglob("*.py")))
    names = [".".join([PACKAGE.name, *parts]).removesuffix(".__init__") for parts in files]
    root = importer.rpartition("/")[0]
    return names + [module_of(str(file)) for each in ({root, "."} if root else ()) for file in Path(each).glob("*.py")]


def absolute(dotted: str, importer: str) -> str:
    """The module that `import NAME` refers to: in a user's, one of its folder or of the working folder first."""
    root, top = importer.rpartition("/")[0], dotted.split(".")[0]
    for folder in (root, ".") if root and top != PACKAGE.name else ():
        file = file_of(f"{folder}/{top}")
        if file and (file.is_file() or getattr(find_spec(top), "origin", None) is None):  # else a library hides it
            return f"{folder}/{dotted}"
    return dotted


@cache
def body_of(module: str) -> list[ast.stmt]:
    """The statements of a module, without those that only type checkers see.

    Raises ValueError if there is no such module or it does not parse.
    """
    path, statements = file_of(module), list[ast.stmt]()
    if path is None:
        raise ValueError(f"there is no module {module} in {PACKAGE}")
    try:
        for each in ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []:
            is_checked = isinstance(each, ast.If) and last_name(each.test) == "TYPE_CHECKING"
            statements += each.orelse if isinstance(each, ast.If) and is_checked else [each]
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from error
    return statements


# ---- names ----


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c` and of `c`; empty for all else."""
    return getattr(node, "attr", getattr(node, "id", ""))


def binds(node: ast.AST) -> list[str]:
    """Names that a node itself binds."""
    if isinstance(node, IMPORT):
        return [each.asname or each.name.split(".")[0] for each in node.names]
    if isinstance(node, DEFINITION | ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return [node.name] if node.name else []
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    return [node.arg] if isinstance(node, ast.arg) else []


def evaluated(node: ast.AST, in_classes: bool = True) -> Iterator[ast.AST]:
    """The nodes of a statement that are evaluated when its module is imported; not the targets of comprehensions."""
    yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, FUNCTION | ast.Lambda):
        children = [*node.args.defaults, *filter(None, node.args.kw_defaults), *getattr(node, "decorator_list", ())]
    elif isinstance(node, ast.comprehension):
        children = [node.iter, *node.ifs]
    elif isinstance(node, ast.ClassDef) and not in_classes:
        children = []
    for child in children:
        yield from evaluated(child, in_classes)


@cache
def bound_in(module: str) -> dict[str, list[ast.stmt]]:
    """The top-level statements of a module that bind each name."""
    names: dict[str, list[ast.stmt]] = {}
    for statement in body_of(module):
        for name in dict.fromkeys(name for node in evaluated(statement, in_classes=False) for name in binds(node)):
            names.setdefault(name, []).append(statement)
    return names


def imported(node: ast.Import | ast.ImportFrom, module: str) -> Iterator[tuple[str, Name, list[str]]]:
    """The names that an import binds, `*` for all, each with its referent and the modules that its import runs."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            top, base = alias.name.split(".")[0], absolute(alias.name, module)
            whole = base if alias.asname else absolute(top, module)
            what = Name(whole, "") if file_of(whole) else Name("", whole)
            yield alias.asname or top, what, [base] if file_of(base) else []
            continue
        root, slash, dotted = module.rpartition("/")
        is_package = (file_of(module) or PACKAGE).name == "__init__.py"
        above = dotted.split(".")[: len(dotted.split(".")) - node.level + is_package]
        base = absolute(node.module or "", module)
        if node.level:
            base = root + slash + ".".join([*above, *([node.module] if node.module else [])])
        is_ours, below = file_of(base) is not None, f"{base}.{alias.name}"
        what = follow(base, alias.name) if is_ours else Name("", base if alias.name == "*" else below)
        yield alias.asname or alias.name, what, [each for each in (base, below) if is_ours and file_of(each)]


def follow(module: str, name: str) -> Name:
    """The referent of `name` in a module of ours: a submodule, a definition, an import; else all of the module."""
    return Name(f"{module}.{name}", "") if file_of(f"{module}.{name}") else meaning(module, name) or Name(module, "")


@cache
def meaning(module: str, name: str) -> Name | None:
    """The referent of a top-level name of a module: a definition, unless it is bound by an import alone."""
    statements = bound_in(module).get(name, [])
    whats = {
        what
        for one in statements
        if isinstance(one, IMPORT)
        for bound, what, _ in imported(one, module)
        if bound == name
    }
    if len(whats) == 1 and all(isinstance(one, IMPORT) for one in statements):
        return whats.pop()
    return Name(module, name) if statements else None


class Scope:
    """What names refer to within a statement of a module."""

    def __init__(self, statement: ast.stmt, module: str) -> None:
        self.module, nodes = module, list(ast.walk(statement))
        may_fail = {id(node) for one in nodes if isinstance(one, ast.Try | ast.TryStar) for node in ast.walk(one)}
        self.imported: dict[str, set[Name]] = {}
        # names that are bound here otherwise than by one import that does not fail
        self.unsure = {name for node in nodes if not isinstance(node, IMPORT) for name in binds(node)}
        for node in nodes:
            for name, what, _ in imported(node, module) if isinstance(node, IMPORT) else ():
                self.imported.setdefault(name, set()).add(what)
                self.unsure |= {name} if id(node) in may_fail or node is statement else set()
        self.unsure |= {name for name in self.imported if name == "*" or len(self.whats(name)) > 1}

    def whats(self, name: str) -> set[Name]:
        """All that a name may refer to."""
        what = meaning(self.module, name)
        return self.imported.get(name, set()) | ({what} if what else set())

    def what(self, node: ast.AST | None) -> Name | None:
        """The certain referent of a name that is read, or of an attribute of a module of ours; None for all else."""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in self.unsure:
            return next(iter(self.whats(node.id)), None)
        above = self.what(node.value) if isinstance(node, ast.Attribute) else None
        return follow(above.module, last_name(node)) if node and above and above.module and not above.name else None

    def origin(self, node: ast.AST | None) -> str:
        """The full name of a builtin or of a library's object, such as `tqdm.tqdm`; empty for all else."""
        if isinstance(node, ast.Attribute):
            above = self.origin(node.value)
            return f"{above}.{node.attr}" if above else ""
        if what := self.what(node):
            return "" if what.module else what.name
        is_hidden = not isinstance(node, ast.Name) or node.id in self.unsure
        return node.id if isinstance(node, ast.Name) and not is_hidden and hasattr(builtins, node.id) else ""


# ---- statements that run when a module is imported ----


@cache
def statements_of(module: str) -> dict[str, list[ast.stmt]]:
    """A module's statements by the names that they define, plus those run `AT_IMPORT` and as a `STAGE`."""
    names: dict[str, list[ast.stmt]] = {
        name: those for name, those in bound_in(module).items() if meaning(module, name) == Name(module, name)
    }
    names |= {AT_IMPORT: [], STAGE: []}
    for statement in body_of(module):
        is_stage = isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"
        names[STAGE] += [statement] if is_stage else []
        names[AT_IMPORT] += [statement] if (statement.orelse if is_stage else acts(statement, module)) else []  # type: ignore[attr-defined]
    return names


@cache
def runs(module: str) -> set[str]:
    """The modules that run when this one is imported: its packages, and those that it imports."""
    nodes = (node for statement in body_of(module) for node in evaluated(statement) if isinstance(node, IMPORT))
    root, slash, dotted = module.rpartition("/")
    above = root + slash + dotted.rpartition(".")[0]
    return {each for node in nodes for _, _, those in imported(node, module) for each in those} | (
        {above} if "." in dotted and file_of(above) else set()
    )


def acts(statement: ast.stmt, module: str) -> bool:
    """Whether a top-level statement does more than bind names: `a.b = 1`, `_ = a.append(1)`, a registration."""
    if isinstance(statement, IMPORT):
        return any(alias.name == "*" for alias in statement.names)  # which may hide any name
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if not isinstance(statement, DEFINITION | ast.Assign | ast.AnnAssign):
        return True
    scope = Scope(statement, module)
    for node in evaluated(statement):
        if isinstance(node, DEFINITION):
            decorators = [last_name(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list]
            if not all(each in QUIET or each.endswith(("validator", "serializer")) for each in decorators):
                return True
        if isinstance(node, ast.ClassDef) and {"metaclass", "__init_subclass__"} & parts(node, scope):
            return True
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Call) and not makes(node, scope):
            return True
    return False


def parts(node: ast.ClassDef, scope: Scope) -> set[str]:
    """Names that a class and its bases in ours bind, and `metaclass`, if one of them has it."""
    names = {str(each.arg) for each in node.keywords} | {name for each in node.body for name in binds(each)}
    for what in filter(None, map(scope.what, node.bases)):
        for base in bound_in(what.module).get(what.name, ()) if what.module else ():
            if isinstance(base, ast.ClassDef) and base is not node:
                names |= parts(base, Scope(base, what.module))
    return names


def makes(node: ast.Call, scope: Scope) -> bool:
    """Whether a call does nothing but give a value: of a library, or of a class without its own making."""
    if MAKERS.fullmatch(scope.origin(node.func)) or last_name(node.func) in METHODS | QUIET:
        return True
    what = scope.what(node.func)
    if not what or not what.module or what.name not in bound_in(what.module):
        return False
    made = bound_in(what.module)[what.name]
    return all(isinstance(one, ast.ClassDef) and not AT_MAKING & parts(one, Scope(one, what.module)) for one in made)


def order(module: str) -> list[list[str]]:
    """In which order a module runs what may change a value, and reads values: empty if it changes none."""
    acting = {id(statement) for statement in statements_of(module)[AT_IMPORT]}
    values, rows, changes = set[str](), list[list[str]](), False
    for statement in body_of(module):
        nodes = [] if isinstance(statement, IMPORT) else list(evaluated(statement))
        names = [name for node in evaluated(statement, in_classes=False) for name in binds(node)]
        again = id(statement) in acting or bool(values & set(names))
        if again or values & {node.id for node in nodes if isinstance(node, ast.Name)}:
            rows.append(sorted(names))
        changes |= again
        values |= set() if isinstance(statement, DEFINITION | IMPORT) else set(names)
    return rows if changes else []
