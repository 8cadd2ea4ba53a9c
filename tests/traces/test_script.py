"""The page's script agrees with its types, checked by TypeScript's compiler where npm can be reached."""

import shutil
import subprocess

import pytest
from conftest import ROOT

COMPILER = ("npx", "--yes", "--package", "typescript@5.9.3", "tsc")
CHECK = ("--noEmit", "--allowJs", "--checkJs", "--target", "es2022", "--lib", "dom,dom.iterable,esnext")


@pytest.mark.skipif(shutil.which("npx") is None, reason="there is no npm")
def test_the_script_has_no_type_errors(tmp_path):
    if subprocess.run([*COMPILER, "--version"], cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("npm cannot be reached")
    files = [ROOT / "tests" / "traces" / "globals.d.ts", ROOT / "mrt" / "traces" / "page.js"]
    done = subprocess.run([*COMPILER, *CHECK, *map(str, files)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
