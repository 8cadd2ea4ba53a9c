"""Linearized evaluation with the real engine: the window holds, tokens add up, attempts follow each other."""

import polars as pl
from conftest import TOY_BASE

from mrt.artifacts import PROVER
from mrt.backtracking.linearized import Linearized, Linearize, window
from mrt.engine import Decoding, Engine, EngineSettings
from mrt.parameterization import STEP_END, Backtracking

WORDS = Backtracking()


def test_the_window_and_the_totals_of_a_hundred_attempts(toy_problems, tmp_path):
    out, size = tmp_path / "linearized.parquet", 64
    Linearize(
        model=str(TOY_BASE), problems=toy_problems, out=out, names=("m", "d"),
        settings=Linearized(attempts=9, window=size, samples=1, decoding=Decoding(temperature=1.0, max_tokens=20)),
        engine=EngineSettings(max_model_len=256, cpu_cache_gib=0.1),
    ).cli_cmd()  # fmt: skip
    table = PROVER.read(out)
    assert table.height == 12 * 9 >= 100
    engine = Engine(str(TOY_BASE), EngineSettings())
    question = table.filter(prefix=1).select("problem_id", pl.col("prompt_tokens").alias("question"))
    seen = table.join(question, on="problem_id")
    assert (seen["prompt_tokens"] <= seen["question"] + size).all()
    assert (seen.filter(pl.col("prefix") > 5)["prompt_tokens"] > seen.filter(pl.col("prefix") > 5)["question"]).any()
    back = len(engine.encode([STEP_END + WORDS.marker + STEP_END])[0])
    for _, trace in table.group_by("problem_id"):
        spent = 0
        for tokens, before in trace.sort("prefix").select("tokens", "prefix_tokens").iter_rows():
            assert before == spent
            spent += tokens + back


def test_the_window_begins_with_a_step():
    engine = Engine(str(TOY_BASE), EngineSettings())
    text = STEP_END.join(f"Step {i}: Try {i} + 4." for i in range(50))
    assert window(text, 10_000, engine) == text
    end = window(text, 40, engine)
    assert text.endswith(end) and end.startswith("Step ") and len(engine.encode([end])[0]) <= 40
