"""Classes that a configuration names: `math` is one of this package, `my_task.py:Task` one of a user's file.

A folder of the package lists its classes by its files: `mrt/tasks/my_kind.py` has the class `MyKind`, named `my_kind`.
A stage that loads one says so (`mrt.core.cli.Stage.plugins`), and its fingerprint begins with it too.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from mrt.core.user_file import load


def names(folder: str) -> list[str]:
    """The names of a folder's classes, in alphabetical order."""
    return sorted(file.stem for file in Path(__file__).parents[1].joinpath(folder).glob("[!_]*.py"))


def reference(name: str, folder: str) -> str:
    """The definition that a name stands for, `module:class` or `file.py:class`.

    Raises ValueError for a name that is neither in the folder of the package nor one of a file.
    """
    if ".py:" in name:
        return name
    if name not in names(folder):
        raise ValueError(f"there is no {name!r}; there are {', '.join(names(folder))}, or a file of yours, my.py:Name")
    return f"mrt.{folder}.{name}:{name.title().replace('_', '')}"


@cache
def find(name: str, folder: str, base: type) -> Any:
    """The class that a name stands for; a file is loaded once.

    Raises ValueError, with file and line, if importing it fails, or if it has no such class below `base`.
    """
    module, _, attribute = reference(name, folder).rpartition(":")
    kind = getattr(load(Path(module)) if module.endswith(".py") else import_module(module), attribute, None)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ValueError(f"{module}: it has no class {attribute} below {base.__module__}.{base.__name__}")
    return kind
