"""The public modules: docs/api.md lists their names, each has types and a docstring, and the page's examples run."""

import asyncio
import dataclasses
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from conftest import ROOT
from pydantic import BaseModel

PAGE = (ROOT / "docs" / "api.md").read_text()
EXAMPLES = ROOT / "docs" / "examples"
MODULES = ("mrt.progress", "mrt.trl")
SCRIPTS = {**os.environ, "PYTHONPATH": str(ROOT)}  # of this checkout, whatever is installed
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAMES = [(module, name) for module in MODULES for name in importlib.import_module(module).__all__]


def table_of(heading, start):
    """The first cells of the table of a section, whose head starts so."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = section.partition(f"| {start} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `([^`|]+)` \|", table, re.MULTILINE)


@pytest.mark.parametrize("module", MODULES)
def test_the_page_lists_the_public_names_and_no_others(module):
    listed = table_of(module, "name")
    assert sorted(listed) == sorted(importlib.import_module(module).__all__) and len({*listed}) == len(listed)


def test_no_other_module_is_public():
    public = {path.stem for path in (ROOT / "mrt").glob("*.py")} - {"__init__", "__main__"}
    assert {f"mrt.{name}" for name in public} == {*MODULES}
    inside = [path for path in (ROOT / "mrt").rglob("*.py") if path.parent != ROOT / "mrt"]
    assert not [path for path in inside if re.search(r"\bmrt\.(?:progress|trl)\b", path.read_text())]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_each_name_has_types_and_a_docstring(module, name):
    value = getattr(importlib.import_module(module), name)
    assert len(inspect.getdoc(value)) > 40
    if inspect.isclass(value) and (issubclass(value, BaseModel | tuple) or dataclasses.is_dataclass(value)):
        assert inspect.get_annotations(value) or value.__annotations__
        return
    function = value.__init__ if inspect.isclass(value) else value
    signature = inspect.signature(function)
    untyped = [p.name for p in signature.parameters.values() if p.annotation is p.empty and p.name != "self"]
    assert not untyped and signature.return_annotation is not signature.empty
    documented = inspect.getdoc(value)
    if len(signature.parameters) > 1:
        unexplained = [p for p in signature.parameters if p != "self" and not re.search(rf"\b{p}\b[:,]", documented)]
        assert not unexplained and "Raises:" in documented


def test_importing_progress_imports_nothing_heavy():
    heavy = ("torch", "vllm", "trl", "transformers", "datasets", "snakemake")
    code = f"import sys, mrt.progress\nprint([module for module in {heavy} if module in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_fields_of_the_page_are_those_of_the_configuration():
    from trl import GRPOConfig

    from mrt.trl import MRTConfig

    theirs = {each.name for each in dataclasses.fields(GRPOConfig)}
    ours = {each.name: repr(each.default) for each in dataclasses.fields(MRTConfig) if each.name not in theirs}
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", PAGE.partition("| field of MRTConfig |")[2], re.MULTILINE)
    assert {name: default.replace("\\\\", "\\") for name, default in rows} == {
        name: default.replace("\\\\", "\\") for name, default in ours.items()
    }


@pytest.fixture(scope="module")
def namespace():
    """The names after the page's blocks, in order, with the functions of the example of a reward."""
    names, before = {}, Path.cwd()
    os.chdir(ROOT)
    try:
        exec((EXAMPLES / "progress_reward.py").read_text(), names)
        for block in BLOCKS:
            if not block.startswith("# train_with_progress.py"):
                exec(block, names)
    finally:
        os.chdir(before)
    return names


def test_the_blocks_of_the_page_run(namespace):
    assert len(namespace["episodes"]) == 2 and not namespace["closed"] and len(namespace["prompts"]) == 3
    J = namespace["J"]
    assert J[2] > 0.9 > J[1] and namespace["gains"].sum() == pytest.approx(J[2] - J[0])
    assert namespace["sampled"] == pytest.approx(J, abs=0.7) and 0 < namespace["regret"] < 1
    assert namespace["half"] == pytest.approx([0.6065] * 3, abs=1e-3)
    assert len(namespace["ends"]) == 1 and namespace["r"] == 1


def test_functions_of_texts_counts_and_arrays():
    from mrt.progress import cut, maj_at_k, normalized_regret, outcome, pass_at_k

    episodes, _ = cut("12 + 5 = 17.\n\nSo 17.\n\nDone?\n\nWait, 12 + 6 = 18.\n\nNo, 17.")
    assert len(episodes) == 2 and outcome(r"so it is \boxed{17}", "17", inside=False) == 1
    assert 0 < normalized_regret(tokens=[1200, 2500, 4100], accuracy=[0.1, 0.4, 0.9], budget=8192) < 1
    assert pass_at_k(n=8, c=3, k=4) == pytest.approx(1 - 5 / 70)
    assert maj_at_k(clusters=[0, 0, 1], correct=[True, True, False], k=2) == pytest.approx(2 / 3)


def test_the_training_script_is_the_one_of_the_page_and_short():
    script = (EXAMPLES / "train_with_progress.py").read_text()
    assert f"# train_with_progress.py\n{script}" in BLOCKS and len(script.splitlines()) <= 25


@pytest.mark.slow
def test_the_training_script_trains(tmp_path):
    command = [sys.executable, "docs/examples/train_with_progress.py", "mrt/toy/weights", str(tmp_path / "trained")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "HF_HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "trained" / "model.safetensors").exists()


def test_the_notebook_draws_J(tmp_path):
    command = [sys.executable, "docs/examples/J_along_a_thought.py", "mrt/toy/weights", str(tmp_path / "J.png")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=SCRIPTS | {"MPLBACKEND": "Agg"})
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "J.png").read_bytes().startswith(b"\x89PNG")


class Called(NamedTuple):
    """A call as verl's, and one as slime's, of the same completion."""

    verl: dict
    slime: dict


def called(namespace, completion, row):
    given = ("numina", completion, "11")
    of_verl = namespace["compute_score"](
        data_source=given[0], solution_str=given[1], ground_truth=given[2], extra_info=row
    )
    sample = SimpleNamespace(response=completion, label="11", metadata=row, prompt="x", index=0)
    return Called(
        of_verl, asyncio.run(namespace["reward_func"](SimpleNamespace(reward_key="score"), sample, evaluation=False))
    )


def test_verl_and_slime_get_outcome_and_progress(namespace):
    right, wrong = "thought</think>\\boxed{11}", "thought</think>\\boxed{12}"
    for completion, r in ((right, 1.0), (wrong, 0.0), ("\\boxed{11}", 0.0)):
        rewards = called(namespace, completion, {"J": [0.25, 0.75], "alpha": 2.0})
        assert rewards.verl == rewards.slime and rewards.verl["outcome"] == r
        assert rewards.verl["score"] == pytest.approx(r + 2 * (r - 0.25))
        assert json.loads(rewards.verl["episode_rewards"]) == pytest.approx([1.0, r + 2 * (r - 0.75)])
    assert called(namespace, "\\boxed{11}", {"J": [0.5], "inside": False}).verl["score"] == 1.5
    assert called(namespace, right, {"J": [0.5], "task": "exact"}).verl["score"] == 1.5
    magistral = {"thinking": {"open": "[THINK]", "close": "[/THINK]"}, "J": [0.5]}
    assert called(namespace, right.replace("</think>", "[/THINK]"), magistral).verl["score"] == 1.5
    nulls = dict.fromkeys(("alpha", "inside", "thinking", "task"))
    assert called(namespace, "\\boxed{11}", nulls | {"J": [0.5]}).verl["score"] == -0.5  # the thought is left open
    for row in ({}, {"J": None}):
        with pytest.raises(ValueError, match="has no J"):
            called(namespace, right, row)
    with pytest.raises(ValueError, match="outside"):
        called(namespace, right, {"J": [1.5]})
