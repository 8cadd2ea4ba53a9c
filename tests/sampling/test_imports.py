"""Completions that somebody sampled elsewhere become rollouts."""

import json

import polars as pl
import pytest

from mrt.core.artifacts import PROBLEMS, ROLLOUTS
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
