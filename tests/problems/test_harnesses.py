"""Files that evaluation harnesses wrote (tests/data) become problems, completions and verdicts."""

import copy
import json
import re
from functools import cache, reduce
from operator import getitem

import polars as pl
import pytest
from conftest import HARNESSES
from hypothesis import given
from hypothesis import strategies as st

from mrt.problems.build import build
from mrt.problems.harnesses import expected, flattened, gold_in, harness_of, of_lighteval
from mrt.problems.settings import Dataset
from mrt.problems.sources import read_file
from mrt.sampling.imports import completions_in

pytestmark = pytest.mark.fast


def completions_of(name):
    file = HARNESSES / name
    return [row for _, row in flattened(file, read_file(file))]


@cache
def first_row(name):
    return read_file(HARNESSES / name)[0][1]


def wrong(tmp_path, name, change):
    """The error of a recorded file whose first row was changed."""
    file = HARNESSES / name
    rows = [row for _, row in read_file(file)]
    change(rows[0])
    with pytest.raises(ValueError) as error:
        flattened(tmp_path / name, list(enumerate(rows, start=1)))
    assert str(error.value).startswith(f"{tmp_path / name}, row 1: ")
    return str(error.value)


RECORDED = {  # harness, completions, problems, verdicts
    "lm_eval_toy.jsonl": ("lm-evaluation-harness", 12, 12, 24),
    "lm_eval_math.jsonl": ("lm-evaluation-harness", 12, 12, 24),
    "lighteval_math.parquet": ("lighteval", 12, 12, 36),
    "lighteval_toy.parquet": ("lighteval", 24, 12, 24),
    "batch.jsonl": ("vLLM", 12, 12, 0),
    "batch_reasoning.jsonl": ("vLLM", 12, 12, 0),
}


@pytest.mark.parametrize("name", RECORDED)
def test_each_recorded_file_is_recognised_and_read_whole(name):
    content, rows = read_file(HARNESSES / name), completions_of(name)
    counts = len(rows), len({row["problem_id"] for row in rows}), sum(len(row["verdicts"]) for row in rows)
    assert (harness_of([*content[0][1]]), *counts) == RECORDED[name]
    assert all(row["text"] for row in rows)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("lm_eval_toy.jsonl", "toy.jsonl"),
        ("lighteval_toy.parquet", "toy.jsonl"),
        ("lighteval_math.parquet", "problems.jsonl"),
    ],
)
def test_a_harness_file_is_a_problem_set_too(name, source):
    table, _ = build("theirs", Dataset(file=HARNESSES / name))
    assert sorted(table["answer"]) == sorted(gold_in(row["answer"]) for _, row in read_file(HARNESSES / source))


def test_thoughts_are_read_as_the_files_show_them():
    assert all(row.inside for row in completions_in(HARNESSES / "lm_eval_toy.jsonl"))  # by the prompts
    plain, parsed = (completions_in(HARNESSES / name) for name in ("batch.jsonl", "batch_reasoning.jsonl"))
    assert [f"<think>{row.text}" for row in plain] == [row.text for row in parsed]
    assert all(row.inside for row in plain)
    assert not any(row.inside for row in parsed)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "batch.jsonl",
            lambda r: r.update(error={"code": "x"}),
            "the request 'toy-0' failed: {'code': 'x'}; run it again",
        ),
        ("batch.jsonl", lambda r: r["response"].update(status_code=400), "the request 'toy-0' failed"),
        (
            "batch.jsonl",
            lambda r: r.update(response={"body": {"object": "embedding"}}),
            r"not as vLLM writes it \(KeyError\('choices'\)\)",
        ),
        (
            "lm_eval_math.jsonl",
            lambda r: r.update(resps=[[["-1.5", "False"]]]),
            "it has no completions; only generative",
        ),
        ("lm_eval_toy.jsonl", lambda r: r.update(arguments=[]), "not as lm-evaluation-harness writes it"),
        ("lm_eval_toy.jsonl", lambda r: r.pop("exact_match"), "KeyError.'exact_match'."),
        (
            "lighteval_math.parquet",
            lambda r: r["model_response"].update(text=[]),
            "it has no completions; only generative",
        ),
        ("lighteval_math.parquet", lambda r: r["doc"].update(choices=[]), "not as lighteval writes it .IndexError"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, name, change, message):
    assert re.search(message, wrong(tmp_path, name, change))


def renamed(rows):
    """The rows of another task, whose documents are numbered from 0, too."""
    return [row | {"doc": row["doc"] | {"id": "another"}} for row in rows]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows + rows, "row 1: doc_id 0 has two rows of one filter; give the file of one task and run"),
        (lambda rows: rows + renamed(rows), "row 1: doc_id 0 has different texts in its rows; give the file of one"),
        (lambda rows: [*rows[:3], rows[3] | {"doc_id": None}], "row 4: it has no doc_id"),
        (lambda rows: [rows[0] | {"resps": rows[0]["resps"] * 2}], "row 1: doc_id 0 has 2 requests"),
    ],
)
def test_rows_of_several_tasks_or_runs_are_refused(change, message):
    rows = [row for _, row in read_file(HARNESSES / "lm_eval_math.jsonl")]
    with pytest.raises(ValueError, match=re.escape(message)):
        flattened(HARNESSES, [*enumerate(change(rows), start=1)])


def test_two_tasks_of_lighteval_in_one_file_are_refused():
    rows = [row for _, row in read_file(HARNESSES / "lighteval_math.parquet")]
    again = rows[0] | {"doc": rows[0]["doc"] | {"query": "Another question?", "task_name": "other|0"}}
    with pytest.raises(
        ValueError, match=f"row {len(rows) + 1}: the problem '7' is in row 1, too; give the file of one"
    ):
        flattened(HARNESSES, [*enumerate([*rows, again], start=1)])


@pytest.mark.parametrize(
    ("target", "answer"),
    [("['7']", "7"), ("['7', '#### 7']", "7"), ("['7', '8']", None), ("[7, 8]", "[7, 8]"), (["7", "8"], None)],
)
def test_several_gold_answers_are_none(target, answer):
    row = first_row("lm_eval_math.jsonl") | {"target": target}
    ((_, completion),) = flattened(HARNESSES, [(1, row)])
    assert completion.get("answer") == answer


def test_several_gold_choices_of_lighteval_are_no_gold_answer():
    row = copy.deepcopy(first_row("lighteval_math.parquet"))
    row["doc"] |= {"choices": ["7", "8"], "gold_index": [0, 1]}
    ((_, completion),) = flattened(HARNESSES, [(1, row)])
    assert "answer" not in completion


def places_in(value, path=()):
    """The path of each value within a row."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places_in(part, (*path, key))


@given(st.data(), st.sampled_from([*RECORDED]), st.sampled_from([None, [], {}, "x", 1, [None], {"x": None}]))
def test_a_damaged_row_is_read_or_refused_by_its_number(data, name, junk):
    row = copy.deepcopy(first_row(name))
    *path, last = data.draw(st.sampled_from([path for path in places_in(row) if path]))
    reduce(getitem, path, row)[last] = junk
    try:
        rows = flattened(HARNESSES / name, [(7, row)])
    except ValueError as error:
        assert f"{name}, row 7: " in str(error)
    else:
        assert all(isinstance(row["text"], str) for _, row in rows)


def test_another_file_is_refused_with_the_columns_of_each_harness(tmp_path):
    file = tmp_path / "details.jsonl"
    file.write_text(json.dumps({"full_prompt": "1 + 1", "predictions": "2", "metrics": 1}))
    with pytest.raises(
        ValueError, match="no column problem_id, text; found full_prompt, predictions, metrics"
    ) as error:
        completions_in(file)
    assert expected() in str(error.value)
    assert "lighteval (doc, model_response, metric)" in expected()


def test_a_batch_with_several_choices_has_no_token_counts():
    row = read_file(HARNESSES / "batch.jsonl")[0][1]
    choice = row["response"]["body"]["choices"][0]
    row["response"]["body"]["choices"] = [choice, choice | {"finish_reason": "length"}]
    first, second = (row for _, row in flattened(HARNESSES, [(1, row)]))
    assert first["of"] == second["of"] == 2
    assert first["tokens"] is None
    assert second["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("target", "gold"),
    [
        ("Three and four.\n#### 1,250", "1,250"),
        (r"So it is \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("ANSWER: 42", "42"),
        (" 0.5 ", "0.5"),
        ("x = 7", "x = 7"),
        ("3, -3", "3, -3"),
        ("at most 5", "at most 5"),
    ],
)
def test_golds_are_found_in_targets(target, gold):
    assert gold_in(target) == gold


def test_reasoning_that_lighteval_stores_apart_is_part_of_the_text():
    row = first_row("lighteval_math.parquet")
    for reasonings, text in (
        (["Hmm."], "<think>Hmm.</think>So 24."),
        (None, "So 24."),
        ([], "So 24."),
        ([None], "So 24."),
    ):
        response = row["model_response"] | {"text": ["So 24."], "reasonings": reasonings}
        assert [each["text"] for each in of_lighteval([row | {"model_response": response}])] == [text]


def test_padded_tokens_of_lighteval_give_no_length():
    table = pl.read_parquet(HARNESSES / "lighteval_toy.parquet")
    padded = [tokens[-1] == tokens[-2] for response in table["model_response"] for tokens in response["output_tokens"]]
    assert [("tokens" in row) for row in completions_of("lighteval_toy.parquet")] == [not pads for pads in padded]
