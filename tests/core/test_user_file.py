"""Python files of a user's: loaded with errors that name file and line, and run and fingerprinted as stages."""

import re
import sys
from pathlib import Path

import pytest
from conftest import python
from test_fingerprint import CACHED

from mrt.core import fingerprint as fp
from mrt.core import scope
from mrt.core.plugins import load

STAGE = """from pathlib import Path

from mrt.core.cli import Stage, run
from mrt.core.storage import write_text
import {imported}


class Count(Stage):
    out: Path

    def cli_cmd(self) -> None:
        write_text(str({value}), self.out)


if __name__ == "__main__":
    run(Count)
"""


def written(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@pytest.fixture
def hashed(tmp_path, monkeypatch):
    """Writes files into a working folder and gives the fingerprint of one of them, beside a package of one module."""
    written(
        tmp_path / "package" / "mrt", {"base.py": "def run(value):\n    return value\n\n\ndef other():\n    pass\n"}
    )
    monkeypatch.setattr(scope, "PACKAGE", tmp_path / "package" / "mrt")
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")

    def fingerprint(stage, files):
        written(Path(), files)
        for cached in CACHED:
            cached.cache_clear()
        return fp.reached(stage).hashed

    yield fingerprint
    for cached in CACHED:
        cached.cache_clear()


SCRIPT = """import {imported}
from mrt.base import run

if __name__ == "__main__":
    run({value})
"""
IMPORTS = {  # how a file of the folder v1.2 imports a value, and the file that holds it
    "a module beside it": ("helper", "helper.VALUE", "v1.2/helper.py"),
    "a module beside it, renamed": ("helper as other", "other.VALUE", "v1.2/helper.py"),
    "a module of a folder beside it": ("parts.helper", "parts.helper.VALUE", "v1.2/parts/helper.py"),
    "a module of the working folder": ("helper", "helper.VALUE", "helper.py"),
    "a module of a folder of the working folder": ("parts.helper as h", "h.VALUE", "parts/helper.py"),
    "a module by its name": ("importlib", "importlib.import_module('helper').VALUE", "v1.2/helper.py"),
    "a module by a name that is put together": (
        "importlib",
        "importlib.import_module('help' + 'er').VALUE",
        "v1.2/helper.py",
    ),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_the_fingerprint_of_a_file_covers_the_local_modules_that_it_imports(case, hashed):
    imported, value, file = IMPORTS[case]
    script = SCRIPT.format(imported=imported, value=value)

    def of(value, unused=1, unrelated=1, script=script):
        content = f"VALUE = {value}\n\n\ndef unused():\n    return {unused}\n"
        return hashed("v1.2/stage.py", {"v1.2/stage.py": script, file: content, "any/other.py": f"V = {unrelated}\n"})

    before = of(1)
    assert of(1, unrelated=2) == of(1, script=f"{script}# a comment\n") == before
    assert (of(1, unused=2) == before) == ("by" not in case)  # one that is imported by its name counts whole
    assert of(2) != before and of(1, script=script.replace("run(", "run(1 + ")) != before


def test_it_covers_the_package_and_the_libraries_that_the_file_reaches(hashed):
    """A folder without modules hides no library of its name."""
    hashed("stage.py", {"stage.py": SCRIPT.format(imported="torch", value="torch.ones(1)"), "torch/data.txt": ""})
    reached = fp.reached("stage.py")
    assert list(reached.definitions) == ["./stage.(stage)", "mrt.base.run"] and reached.libraries == ("torch",)


def test_a_relative_import_is_of_the_same_folder(hashed):
    files = {"stage.py": SCRIPT.format(imported="parts.helper", value="parts.helper.VALUE"), "parts/__init__.py": ""}
    files["parts/helper.py"] = "from .deep import VALUE\n"
    one, two = (hashed("stage.py", files | {"parts/deep.py": f"VALUE = {value}\n"}) for value in (1, 2))
    assert one != two


def test_a_file_runs_as_a_stage_from_any_folder(tmp_path):
    file = tmp_path / "a folder" / "stage.py"
    written(file.parent, {"stage.py": STAGE.format(imported="helper", value="helper.VALUE"), "helper.py": "VALUE = 7"})
    said = python("-m", "mrt.core.user_file", file, "--settings", f'{{"out": "{tmp_path}/out.txt"}}')
    assert (tmp_path / "out.txt").read_text() == "7"
    assert said.startswith(f"python -m mrt.core.user_file '{file}' --settings")
    assert f"usage: python -m mrt.core.user_file {file}" in python("-m", "mrt.core.user_file", file, "--help")


@pytest.mark.parametrize(
    ("content", "helper", "message"),
    [
        ("x = 1\ny = (\n", "", r"mine\.py, line 2: SyntaxError: '\(' was never closed"),
        ("import helper\n\ny = z\n", "", r"mine\.py, line 3: NameError: name 'z' is not defined"),
        ("import helper\n", "\n1 / 0\n", r"helper\.py, line 2: ZeroDivisionError"),
        ("import helper\n", "def f(:\n", r"helper\.py, line 1: SyntaxError"),
        ("from mrt.core.settings import nothing\n", "", r"mine\.py, line 1: ImportError"),
        ("import sys\nsys.exit('no')\n", "", r"mine\.py, line 2: SystemExit: no"),
        ("import json\n\njson.loads('{')\n", "", r"mine\.py, line 3: JSONDecodeError"),
        ("from mrt.core.digest import digest\n\ndigest(1)\n", "", r"mine\.py, line 3: TypeError"),
    ],
)
def test_an_error_in_a_file_is_named_with_its_line(content, helper, message, tmp_path):
    written(tmp_path, {"mine.py": content, "helper.py": helper})
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "mine.py")
    assert "helper" not in sys.modules and str(tmp_path) not in sys.path


def test_two_files_have_each_the_module_beside_it(tmp_path):
    for name in ("one", "two"):
        written(tmp_path / name, {"mine.py": "from helper import VALUE\n", "helper.py": f"VALUE = {name!r}\n"})
    assert [load(tmp_path / name / "mine.py").VALUE for name in ("one", "two")] == ["one", "two"]
    with pytest.raises(ValueError, match=re.escape("absent.py: no such file")):
        load(tmp_path / "absent.py")
