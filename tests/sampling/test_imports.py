"""Completions that somebody sampled elsewhere become rollouts."""

import json

import polars as pl
import pytest

from mrt.core.artifacts import GRADES, PROBLEMS, ROLLOUTS
from mrt.grading.grade import Grade
from mrt.sampling.imports import Import

pytestmark = pytest.mark.fast


@pytest.fixture
def problems(tmp_path):
    rows = {"index": [0, 1], "id": ["1", "2"], "problem": ["1 + 1?", "1 + 2?"], "answer": ["2", "3"]}
    kinds = PROBLEMS.columns
    table = pl.DataFrame(rows).with_columns(pl.lit(None, k).alias(n) for n, k in kinds.items() if n not in rows)
    PROBLEMS.write(table.select(pl.col(n).cast(k) for n, k in kinds.items()), tmp_path / "problems.parquet")
    return tmp_path / "problems.parquet"


def imported(problems, rows, **options):
    file = problems.with_name("traces.jsonl")
    file.write_text("\n".join(map(json.dumps, rows)))
    Import(file=file, problems=problems, out=problems.with_name("out.parquet"), **options).cli_cmd()
    return ROLLOUTS.read(problems.with_name("out.parquet")).select("problem_id", "sample", "text").rows()


def test_ids_may_be_numbers_and_samples_are_counted(problems):
    rows = [{"problem_id": i, "text": text} for i, text in ((2, "a"), (1, "b"), (2, "c"), (9, "d"))]
    assert imported(problems, rows) == [("1", 0, "b"), ("2", 0, "a"), ("2", 1, "c")]


def test_what_is_of_no_problem_stops_and_what_lacks_is_told(problems, capsys):
    with pytest.raises(ValueError, match=r"no completion is of a problem of .*: problem_id is 'x' \.\.\., ids of"):
        imported(problems, [{"problem_id": "x", "text": "t"}])
    assert imported(problems, [{"problem_id": 2.0, "text": "t"}]) == [("2", 0, "t")]  # as ids of problems are read
    assert "1 problems of problems have no completion" in capsys.readouterr().out


def test_a_row_without_a_text_stops_before_any_job(problems):
    rows = [{"problem_id": "1", "text": text} for text in ("a", None, "")]
    with pytest.raises(ValueError, match=r"traces\.jsonl, row 2: text is null; leave the row out"):
        imported(problems, rows)
    assert imported(problems, [rows[0], rows[2]]) == [("1", 0, "a"), ("1", 1, "")]
    with pytest.raises(ValueError, match=r"traces\.jsonl, row 2: text is null"):
        imported(problems, [rows[0], {"problem_id": "1"}])
    of_others = [row | {"model": model} for row, model in zip(rows, "ABA", strict=True)]
    assert imported(problems, of_others, model="A") == [("1", 0, "a"), ("1", 1, "")]


def test_rows_may_name_no_model(problems):
    rows = [{"problem_id": "1", "text": "a"}, {"problem_id": "1", "text": "b", "model": "B"}]
    assert imported(problems, rows, model="B") == [("1", 0, "b")]
    with pytest.raises(ValueError, match=r"no row has model 'C'; there are B"):
        imported(problems, rows, model="C")


def test_a_thought_that_the_chat_template_opened_needs_to_close(problems):
    """As vLLM returns them: only those that close show that they are thoughts. A model may also open its own."""
    cut_off, closed = r"So maybe \boxed{2}. Wait, that cannot be right, let me", r"1 + 1 = 2.</think>\boxed{2}"
    texts = [cut_off, closed, r"<think>2.</think>\boxed{2}", r"A tag is <think>. \boxed{2}"]
    rows = [{"problem_id": "1", "text": text} for text in texts]
    rows += [{"problem_id": "1", "text": cut_off, "prompt": "1 + 1?"}, {"problem_id": "9", "text": closed}]
    direct, own, quoting, told, elsewhere = 0, 2, 3, 4, 5
    rollouts, grades = problems.with_name("out.parquet"), problems.with_name("grades.parquet")

    def prompts_and_verdicts(*which):
        imported(problems, [rows[i] for i in which])
        Grade(problems=problems, answers=rollouts, out=grades).cli_cmd()
        return ROLLOUTS.read(rollouts)["prompt"].to_list(), GRADES.read(grades)["correct"].to_list()

    found = prompts_and_verdicts(0, 1, quoting, told)
    assert found == (["<think>\n", "<think>\n", "", "1 + 1?"], [False, True, False, True])
    assert prompts_and_verdicts(direct, own) == (["", ""], [True, True])
    assert prompts_and_verdicts(0, elsewhere) == ([""], [True])  # nothing that was kept says that there are thoughts


def test_an_empty_cell_is_null_unless_it_is_the_text(problems):
    file, out = problems.with_name("traces.csv"), problems.with_name("out.parquet")
    file.write_text("problem_id,text,tokens,prompt,finish_reason\n1,a,5,Q,stop\n1,,,,\n")
    Import(file=file, problems=problems, out=out).cli_cmd()
    columns = ("text", "tokens", "prompt", "finish_reason")
    assert ROLLOUTS.read(out).select(columns).rows() == [("a", 5, "Q", "stop"), ("", None, "", "unknown")]


def test_a_value_that_cannot_be_read_is_told_with_its_file(problems):
    with pytest.raises(ValueError, match=r"traces\.jsonl: a value is not of its column's type .*twelve"):
        imported(problems, [{"problem_id": "1", "text": "a", "tokens": "twelve"}])
    rows = [{"problem_id": "1", "text": "a"}, {"problem_id": "1", "text": "cut \ud83d"}]
    with pytest.raises(ValueError, match=r"traces\.jsonl, row 2: text holds half a character"):
        imported(problems, rows)
    unused = [row | {"text": "a", "notes": notes} for row, notes in zip(rows, ([1], "\ud83d"), strict=True)]
    assert imported(problems, unused) == [("1", 0, "a"), ("1", 1, "a")]
