"""Objects that a configuration names: `math` is one of this package, `my_task.py:Task` one of a user's file.

The files of a folder of the package, such as `mrt/tasks`, hold objects of a kind. Each has the name of its variable, or
of its class in small letters: `Math` is `math`, `MyKind` is `my_kind`. A stage declares the objects that it loads
(`mrt.core.cli.Stage.plugins`), and its fingerprint includes the definitions that decide their behaviour.
"""

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mrt.core.scope import PACKAGE
from mrt.core.settings import suggestion


@dataclass(frozen=True)
class Function:
    """An object that is a function, with whatever it declares."""

    function: Callable[..., Any]

    def __call__(self, *values: Any, **settings: Any) -> Any:
        return self.function(*values, **settings)

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def parts(self) -> tuple[Any, ...]:
        """The definitions that decide its values."""
        return (self.function,)


class Kind(NamedTuple):
    """A kind of objects: instances of a type, or classes below it."""

    what: str  # in messages
    folder: str  # of the package
    types: tuple[type, ...]

    def holds(self, value: object) -> bool:
        """Whether an object is of this kind."""
        return isinstance(value, self.types) or (isinstance(value, type) and issubclass(value, self.types))

    def all(self) -> dict[str, Any]:
        """The package's objects of this kind by name.

        Raises ValueError, with file and line, if a module cannot be imported, or if two objects have one name.
        """
        objects: dict[str, Any] = {}
        for module in modules_in(self.folder):
            for name, value in self.defined_in(module).items():
                name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() if isinstance(value, type) else name
                if objects.setdefault(name, value) is not value:
                    raise ValueError(f"{module.__file__}: another module has a {name} too; give it another name")
        return objects

    def defined_in(self, module: ModuleType) -> dict[str, Any]:
        """A module's objects of this kind by name; classes that it imports do not count."""
        return {
            name: value
            for name, value in vars(module).items()
            if self.holds(value) and not (isinstance(value, type) and value.__module__ != module.__name__)
        }

    def find(self, reference: str) -> Any:
        """The object that a setting names.

        Raises ValueError, with file and line of a user's file, if there is none, or it is of another kind.
        """
        if not is_in_user_file(reference):
            if reference in (objects := self.all()):
                return objects[reference]
            known = suggestion(reference, objects)
            raise ValueError(f"there is no {self.what} {reference!r}{known} (or FILE.py:NAME, of a file of yours)")
        file, colon, name = reference.rpartition(":")
        if not colon or not file.endswith(".py") or not name.isidentifier():
            raise ValueError(f"{reference}: what a file holds is named FILE.py:NAME")
        module = load(Path(file))
        if name not in vars(module):
            raise ValueError(f"{file}: it defines no {self.what} {name!r}{suggestion(name, self.defined_in(module))}")
        if not self.holds(value := vars(module)[name]):
            types = " or ".join(each.__name__ for each in self.types)
            raise ValueError(f"{file}: {name} is no {self.what}, a {types}")
        return value

    def starts(self, reference: str) -> list[str]:
        """The definitions that decide an object's behaviour, for a fingerprint: `parts`, or the object itself.

        Of a user's file the object, with all that it holds. Raises ValueError as `find` does, but of a user's file.
        """
        if is_in_user_file(reference):
            return [reference]
        value = self.find(reference)
        return [f"{each.__module__}:{each.__name__}" for each in getattr(value, "parts", [value])]


def is_in_user_file(reference: str) -> bool:
    """Whether a setting names something of a user's file, `FILE.py:NAME`, and not of this package."""
    return ".py" in reference


@cache
def modules_in(folder: str) -> tuple[ModuleType, ...]:
    """The modules of a folder of this package, in alphabetical order; raises as `Kind.all` does."""
    modules = list[ModuleType]()
    for file in sorted((PACKAGE / folder).glob("[!_]*.py")):
        with errors_located(file):
            modules.append(import_module(f"{PACKAGE.name}.{folder.replace('/', '.')}.{file.stem}"))
    return tuple(modules)


def load(file: Path) -> ModuleType:
    """A user's file as a module. Raises ValueError, with file and line, if it is missing or importing it fails.

    Imports are looked up in its folder first, as Python does for a script.
    """
    if not file.is_file():
        raise ValueError(f"{file}: no such file; paths are relative to the working folder, {Path.cwd()}")
    folder, loaded_before, name = file.resolve().parent, set(sys.modules), f"user_file:{file.resolve()}"
    sys.path.insert(0, str(folder))
    try:
        with errors_located(file):
            spec = spec_from_file_location(name, file)
            assert spec and spec.loader
            module = sys.modules[name] = module_from_spec(spec)  # where annotations that are texts are looked up
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
        for beside in set(sys.modules) - loaded_before - {name}:  # another folder may have modules of the same names
            if is_beside(Path(getattr(sys.modules[beside], "__file__", None) or "/").resolve(), file):
                del sys.modules[beside]
    return module


@contextmanager
def errors_located(file: Path) -> Iterator[None]:
    """Turns any error into a ValueError that names file and line: the last line in this file or one beside it."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ValueError(text_of(error, file)) from error


def text_of(error: BaseException, file: Path) -> str:
    """An error with file and line."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((str(error.filename), error.lineno))
    places = [(Path(name).resolve(), line) for name, line in frames]
    lines = [(path, line) for path, line in places if path == file.resolve() or is_beside(path, file)]
    path, line = lines[-1] if lines else (file.resolve(), 1)
    shown = file if path == file.resolve() else path
    message = error.msg if isinstance(error, SyntaxError) else error
    return f"{shown}, line {line}: {type(error).__name__}: {message}"


@contextmanager
def located(function: Callable[..., Any]) -> Iterator[None]:
    """Turns errors of a function of a user's file into ValueErrors that name file and line; leaves those of ours."""
    file = Path(function.__code__.co_filename)
    if PACKAGE in file.parents:
        yield
        return
    with errors_located(file):
        yield


def is_beside(path: Path, file: Path) -> bool:
    """Whether a path lies in a file's folder, or below; files of this package and installed ones do not count."""
    is_other = PACKAGE in path.parents or "site-packages" in path.parts
    return file.resolve().parent in path.parents and not is_other
