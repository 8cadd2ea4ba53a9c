"""What your_own.md and extend.md show: configurations are accepted, trainings teach, one fits its GPU, a measure."""

import json
import re

import polars as pl
import pytest
import yaml
from conftest import ROOT, checkout, snakemake

from mrt.analysis.evaluate import Evaluate
from mrt.config import sizing
from mrt.config.load import load
from mrt.config.steps import short_trainings
from mrt.core.artifacts import ROLLOUTS
from mrt.core.settings import laid_over
from mrt.grading.task import scores, task_of
from mrt.problems.build import build
from mrt.problems.settings import Dataset
from mrt.tasks.code import Code

PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("your_own.md", "extend.md"))
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
NAMED = {block.split()[1].rstrip(","): block for block in BLOCKS if re.match(r"# \w+\.yaml", block)}
SCRIPTS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
FILES = ("problems.jsonl", "my_problems.jsonl", "my_benchmark.jsonl", "my_measurements.jsonl")
FILES += ("my_questions.jsonl", "gpqa.jsonl", "my_capitals.jsonl")
FILES += ("my_programs.jsonl", "mbpp.jsonl", "humaneval.jsonl")
PROGRAM = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0]  # rows of the task `code`
REST = {  # settings that a block of a page leaves out
    "problems": {"train": {"file": FILES[1], "split": "train"}, "test": {"file": FILES[2], "split": "test"}},
    "evaluation": {"problems": ["test"], "measures": ["accuracy"]},
}
QWEN3 = {"parameters": 596_049_920, "layers": 28, "hidden": 1024, "intermediate": 3072, "heads": 16, "kv_heads": 8}
QWEN3 |= {"head_dim": 128, "vocabulary": 151_936, "context": 40_960}  # the hub would tell; tests do not ask it


def test_the_measure_that_the_page_shows_counts_completions_with_a_word(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_measure.py").write_text(dict(SCRIPTS)["my_measure.py"])
    texts = {("p", 0): "Wait, no.", ("p", 1): "So 4.", ("q", 0): "Await"}
    rows = [(*key, "", text, 1, 1, "stop", None, False, None) for key, text in texts.items()]
    ROLLOUTS.write(pl.DataFrame(rows, schema=ROLLOUTS.columns, orient="row"), tmp_path / "rollouts.parquet")
    out = tmp_path / "words.parquet"
    Evaluate(measure="my_measure.py:words", tables={"rollouts": "rollouts.parquet"}, out=out).cli_cmd()
    assert pl.read_parquet(out).rows() == [("p", 2, 0.5), ("q", 1, 0.0)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The working folder with the files that the page's configurations name."""
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(FILES):
        rows = (
            {"problem": f"What is {j} + 1?", "answer": str(j + 1), "tolerance": 0.05, "options": [str(j), str(j + 1)]}
            | {"Question": f"What is {j} + 1?", "Correct Answer": str(j + 1)}
            | {f"Incorrect Answer {i}": str(j - i) for i in (1, 2, 3)}
            | {"text": f"Add {j}.", "code": "-", "task_id": f"{name}/{j}", "tests": [f"assert f(1) == {j + 1}"]}
            | {"test_setup_code": "", "test_list": [f"assert f({k}) == {j + k}" for k in range(3)]}
            | {"prompt": f"def f(x):\n    # add {j}\n", "canonical_solution": f"    return x + {j}\n"}
            | {"test": f"def check(candidate):\n    assert candidate(1) == {j + 1}\n", "entry_point": "f"}
            for j in range(64 * i, 64 * i + 64)
        )
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, script in SCRIPTS:
        (tmp_path / name).write_text(script)
    row = {"problem_id": "test-0", "model": "Qwen/QwQ-32B", "text": "<think>\n4\n</think>\n\n\\boxed{4}"}
    (tmp_path / "traces.jsonl").write_text(json.dumps(row) + "\n")


def config_of(shown):
    """The configuration of a block of the page, completed where it is a part of one."""
    given = {}
    for name in re.findall(r"\w+\.yaml", shown.partition("\n")[0].partition("laid over")[2]):
        given = laid_over(given, yaml.safe_load(NAMED[name]))
    given = laid_over(given, yaml.safe_load(shown))
    whole = given if "results" in given else laid_over(REST | {"results": "results/mine"}, given)
    whole["evaluation"] = {"models": list(whole["models"])} | whole["evaluation"]
    if any(model.get("parent") == "base" for model in whole["models"].values()):
        whole["models"].setdefault("base", {"path": "some/model", "architecture": QWEN3 | {"context": 2**17}})
    if "cluster" in whole:
        whole["models"]["base"].setdefault("architecture", QWEN3)
    return load(whole)


@pytest.mark.parametrize("shown", BLOCKS, ids=range(len(BLOCKS)))
def test_what_the_page_shows_is_a_configuration(shown, files):
    if "task: code" in shown and (unmet := Code().unmet()):
        pytest.skip(unmet)
    config = config_of(shown)
    if config.cluster.gpu:
        assert sizing.training_processes(config, "mrt_1") == (1, 1) and sizing.sampling_gpus(config, "mrt_1") == 1


@pytest.mark.skipif(bool(Code().unmet()), reason=Code().unmet())
def test_the_programs_that_the_page_shows_are_judged(files, tmp_path):
    """The rows of the page, and those of MBPP and HumanEval by their settings there."""
    (tmp_path / "my_programs.jsonl").write_text(PROGRAM)
    (shown,) = (block for block in BLOCKS if "task: code" in block)
    function, script = "def increment(x): return x + 1", "print(int(input()) + 1)"
    adds = "def f(x): return x + {}".format
    solutions = {
        "programs": [function, script],
        "mbpp": map(adds, range(64 * 8, 64 * 9)),
        "humaneval": map(adds, range(64 * 9, 64 * 10)),
    }
    for name, programs in solutions.items():
        given = yaml.safe_load(shown)["problems"][name]
        task = task_of(given["task"])
        table, _ = build(name, Dataset(**given), extra=task.columns, task=task)
        rows = [row | json.loads(row["extra"]) for row in table.head(2).iter_rows(named=True)]
        right = list(programs)[:2]
        assert scores(task, [*right, *right[::-1]], [*rows, *rows]) == [1, 1, 0, 0]


@pytest.mark.thorough
def test_the_training_that_the_page_shows_teaches(tmp_path):
    """Unchanged, on a CPU: the child's interval is above its parent's, without warnings."""
    folder = checkout(tmp_path)
    (shown,) = (block for block in BLOCKS if block.startswith("# small.yaml"))
    (folder / "small.yaml").write_text(shown)
    said = snakemake(folder, "--cores", "2", "--configfile", "small.yaml").stderr
    assert "warning: " not in said and "hardly teach" not in said
    table = pl.read_parquet(folder / "results" / "small" / "tables" / "pass1.parquet").filter(difficulty="all")
    low, high = (dict(table.select("model", f"accuracy_{end}").iter_rows()) for end in ("low", "high"))
    assert low["mrt_1"] > high["base"]
    runs = pl.read_parquet(folder / "results" / "small" / "tables" / "runs.parquet")
    assert runs.filter(model="mrt_1")["steps"][0] >= 50


@pytest.mark.parametrize("mark", ["{max_length: 5120, ", "cold: {parent: instruct"])
def test_a_recipe_that_the_page_shows_for_few_problems_has_enough_steps(mark, files):
    """Of the 64 problems of these files too, so that no run of it warns before it begins."""
    (shown,) = (block for block in BLOCKS if mark in block)
    assert not [*short_trainings(config_of(shown))]
