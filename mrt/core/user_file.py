"""Python files of a user's that serve as modules of this package do: loaded, and run as a stage.

    python -m mrt.core.user_file my_figure.py --help

Imports of such a file are looked up in its folder first, as Python does for a script.
"""

import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


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


def is_beside(path: Path, file: Path) -> bool:
    """Whether a path lies in a file's folder, or below; files of this package and installed ones do not count."""
    return (
        file.resolve().parent in path.parents
        and Path(__file__).parents[1] not in path.parents
        and "site-packages" not in path.parts
    )


def load(file: Path) -> ModuleType:
    """The file as a module. Raises ValueError, with file and line, if it is missing or importing it fails."""
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


def main() -> None:
    """Run the file that the command line names as Python runs a script."""
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
