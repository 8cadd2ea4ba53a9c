"""What docs/your_own.md shows: each configuration is accepted, the one for a GPU fits on it, the measure measures."""

import json
import re

import polars as pl
import pytest
import yaml
from conftest import ROOT

from mrt.analysis.evaluate import Evaluate
from mrt.config import sizing
from mrt.config.load import load
from mrt.core.artifacts import ROLLOUTS
from mrt.core.settings import laid_over

PAGE = (ROOT / "docs" / "your_own.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
SCRIPTS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
FILES = ("problems.jsonl", "my_problems.jsonl", "my_benchmark.jsonl", "my_measurements.jsonl")
FILES += ("my_questions.jsonl", "gpqa.jsonl", "my_capitals.jsonl")
REST = {  # what a block that is a part of a configuration leaves out
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


@pytest.mark.parametrize("shown", BLOCKS, ids=range(len(BLOCKS)))
def test_what_the_page_shows_is_a_configuration(shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(FILES):
        rows = (
            {"problem": f"What is {j} + 1?", "answer": str(j + 1), "tolerance": 0.05, "options": [str(j), str(j + 1)]}
            | {"Question": f"What is {j} + 1?", "Correct Answer": str(j + 1)}
            | {f"Incorrect Answer {i}": str(j - i) for i in (1, 2, 3)}
            for j in range(64 * i, 64 * i + 64)
        )
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, script in SCRIPTS:
        (tmp_path / name).write_text(script)
    row = {"problem_id": "test-0", "model": "Qwen/QwQ-32B", "text": "<think>\n4\n</think>\n\n\\boxed{4}"}
    (tmp_path / "traces.jsonl").write_text(json.dumps(row) + "\n")
    given = yaml.safe_load(shown)
    whole = given if "results" in given else laid_over(REST | {"results": "results/mine"}, given)
    whole["evaluation"] = {"models": list(whole["models"])} | whole["evaluation"]
    if any(model.get("parent") == "base" for model in whole["models"].values()):
        whole["models"].setdefault("base", {"path": "some/model", "architecture": QWEN3 | {"context": 2**17}})
    if "cluster" in whole:
        whole["models"]["base"]["architecture"] = QWEN3
    config = load(whole)
    if "cluster" in whole:
        assert sizing.training_processes(config, "mrt_1") == (1, 1) and sizing.sampling_gpus(config, "mrt_1") == 1
