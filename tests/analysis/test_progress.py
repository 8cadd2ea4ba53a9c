"""Progress telescopes; the stage joins answers and grades, and refuses what does not match."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from mrt.analysis.progress import KIND, LENGTHS, Progress, graded, progress, progress_table
from mrt.core.artifacts import ANSWER, PROGRESS


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_progress_telescopes(accuracy: list[float]) -> None:
    found = progress(accuracy)
    assert found.shape == (len(accuracy) - 1,)
    np.testing.assert_allclose(np.cumsum(found), np.array(accuracy[1:]) - accuracy[0], atol=1e-12)


@pytest.mark.parametrize("accuracy", [[], [[0.5]], [1.5], [float("nan")]])
def test_progress_refuses(accuracy: list[float]) -> None:
    with pytest.raises(ValueError, match="progress"):
        progress(accuracy)


def answers_and_grades(seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Forced answers of six traces of 0 to 5 episodes, four a prefix, and their grades, in different orders."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"p{trace // 2}", trace % 2, prefix, i, 3 + i, 90, prefix * 10, 95 + prefix * 10, bool(rng.integers(2)))
        for trace in range(6)
        for prefix in range(trace + 1)
        for i in range(4)
    ]
    table = pl.DataFrame(rows, schema=[*ANSWER, *LENGTHS, "correct"], orient="row")
    table = table.with_columns(pl.lit("stop").alias("finish_reason"), pl.lit(None, pl.Float64).alias("mean_logprob"))
    shuffled = table.sample(fraction=1.0, shuffle=True, seed=seed)
    return shuffled.drop("correct"), table.drop(*LENGTHS, *KIND).with_columns(parsed=pl.lit(True))


def test_progress_table() -> None:
    answers, grades = answers_and_grades()
    found = progress_table(answers, grades)
    assert dict(found.schema) == PROGRESS.columns
    assert found.rows() == sorted(found.rows(), key=lambda row: row[:3])
    assert found["answers"].unique().to_list() == [4]
    for (problem, sample), trace in found.group_by("problem_id", "sample"):
        grade = grades.filter((pl.col("problem_id") == problem) & (pl.col("sample") == sample))
        assert trace["J"].to_list() == [grade.filter(prefix=i)["correct"].mean() for i in range(trace.height)]
        assert trace["episodes"].unique().to_list() == [trace.height - 1]
        assert trace["prefix_tokens"].to_list() == [10 * i for i in range(trace.height)]
        assert trace["tokens"].to_list() == [10 * i + 5 + 4.5 for i in range(trace.height)]
        assert trace["progress"].null_count() == 1 and trace["progress"][0] is None
        np.testing.assert_array_equal(trace["progress"][1:].to_numpy(), progress(trace["J"].to_numpy()))
    assert found.equals(progress_table(answers.reverse(), grades.reverse()))


def test_progress_spans_prefixes_left_out() -> None:
    answers, grades = answers_and_grades()
    found = progress_table(*(table.filter(pl.col("prefix") % 2 == 1) for table in (answers, grades)))
    trace = found.filter(problem_id="p2", sample=1)
    assert trace["prefix"].to_list() == [1, 3, 5] and trace["progress"][0] is None
    assert trace["progress"].sum() == pytest.approx(trace["J"][2] - trace["J"][0])


@given(st.permutations(range(6)), st.integers(0, 6), st.booleans())
def test_grades_beside_answers_are_those_joined_to_them(order: list[int], kept: int, null: bool) -> None:
    """Whether tables agree in order, differ in it, lack rows or a key: what comes out is the join."""
    answers, grades = (table.head(6) for table in answers_and_grades())
    grades = answers.select(ANSWER).join(grades, on=ANSWER, how="left", maintain_order="left")[order].head(kept)
    if null:
        answers, grades = (t.with_columns(pl.lit(None, pl.String).alias("problem_id")) for t in (answers, grades))
    joined = answers.join(grades, on=ANSWER, validate="1:1")
    assert graded(answers, grades, ANSWER).sort(ANSWER).equals(joined.sort(ANSWER))


def test_a_key_that_repeats_is_never_set_side_by_side() -> None:
    answers = answers_and_grades()[0].head(2)
    twice = pl.concat([answers, answers])
    with pytest.raises(pl.exceptions.ComputeError):
        graded(twice, twice.select(*ANSWER, pl.lit(True).alias("correct")), ANSWER)


def test_progress_table_refuses() -> None:
    answers, grades = answers_and_grades()
    torn = answers.with_columns(prefix_tokens=pl.col("prefix_tokens") + (pl.col("answer_index") == 3))
    ungraded = grades.with_columns(correct=pl.when(pl.col("prefix") > 3).then("correct"))
    for bad_answers, bad_grades, message in [
        (answers, grades[1:], "without a grade .first: problem_id p0, sample 0, prefix 0, answer_index 0"),
        (answers[1:], grades, "without a forced answer"),
        (pl.concat([answers, answers[:1]]), grades, "forced answers with a key that repeats"),
        (answers, pl.concat([grades, grades[:1]]), "grades with a key that repeats"),
        (answers, ungraded, "neither right nor wrong"),
        (torn, grades, "disagree"),
        (answers.clear(), grades.clear(), "no forced answers"),
    ]:
        with pytest.raises(ValueError, match=message):
            progress_table(bad_answers, bad_grades)


def test_stage(tmp_path: Path) -> None:
    answers, grades = answers_and_grades()
    answers.write_parquet(tmp_path / "p.parquet")
    grades.write_parquet(tmp_path / "g.parquet")
    options = ["--prover", "p.parquet", "--grades", "g.parquet", "--out", "out/x.parquet"]
    command = [sys.executable, "-m", "mrt.analysis.progress", *options]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("6 traces, 21 prefixes\n")
    assert pl.read_parquet(tmp_path / "out/x.parquet").equals(progress_table(answers, grades))


def test_stage_names_the_files(tmp_path: Path) -> None:
    answers, grades = answers_and_grades()
    answers.write_parquet(tmp_path / "p.parquet")
    grades[1:].write_parquet(tmp_path / "g.parquet")
    stage = Progress(prover=tmp_path / "p.parquet", grades=tmp_path / "g.parquet", out=tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"p\.parquet, graded in .*g\.parquet: 1 forced answers without a grade"):
        stage.cli_cmd()
    assert not (tmp_path / "x.parquet").exists()
