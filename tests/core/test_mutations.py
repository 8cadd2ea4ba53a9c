"""No edit changes an artifact and no fingerprint: the search of mutation.py, and that it finds a hole."""

import json
import shutil

import pytest
from conftest import ROOT, python

SEARCH = ROOT / "tests" / "core" / "mutation.py"


def searched(*options):
    return json.loads(python(SEARCH, *options))


@pytest.mark.slow
def test_a_sample_of_changes_is_seen():
    found = searched("--most", "12")
    assert found["faults"] == [] and found["changes"] > 100 and found["not shown"] > 20


@pytest.mark.thorough
def test_all_changes_are_seen():
    assert searched("--all")["faults"] == []


HOLES = {"training.rl": ("mrt.core.hub", "tokenizer_of"), "training.sft": ("mrt.training.stage", "EndsOnce")}


@pytest.mark.slow
@pytest.mark.parametrize("stage", HOLES)
def test_the_search_finds_a_hole(stage, tmp_path):
    """In a package whose fingerprints leave a module out: how tokenizers are read, how a training resumes."""
    module, definition = HOLES[stage]
    shutil.copytree(ROOT / "mrt", tmp_path / "mrt", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "mrt" / "core" / "fingerprint.py"
    text, loop = file.read_text(), "        if what in known:\n"
    assert text.count(loop) == 1
    file.write_text(text.replace(loop, f'        if what in known or what.module == "{module}":\n'))
    options = ("--package", tmp_path / "mrt", "--stages", stage, "--definitions", definition, "--all")
    found = searched(*options)["faults"]
    assert any(module in fault for fault in found)
