"""Verdicts of evaluation harnesses against ours."""

import json
import re
import shlex
from contextlib import nullcontext

import polars as pl
import pytest
import yaml
from conftest import HARNESSES, ROOT
from hypothesis import given
from hypothesis import strategies as st

from mrt.config.load import load
from mrt.core.artifacts import GRADES, PROBLEMS
from mrt.grading.grade import Grade
from mrt.problems.build import build
from mrt.problems.harnesses import Verdict
from mrt.problems.sources import read_file
from mrt.sampling.imports import Completions, Import
from mrt.sampling.parity import COLUMNS, REASONS, Ours, Parity, reason

AGREE = {"agree", "no answer"}
RECORDED = {  # counts of reasons
    "lm_eval_toy.jsonl": {"agree": 15, "no answer": 1, "unread": 7, "truncated": 1},
    "lm_eval_math.jsonl": {"agree": 20, "unread": 3, "notation": 1},
    "lighteval_math.parquet": {"agree": 34, "unread": 1, "notation": 1},
    "lighteval_toy.parquet": {"agree": 12},
    "batch.jsonl": {"no verdict": 12},
    "batch_reasoning.jsonl": {"no verdict": 12},
}


def compared(name, out, **options):
    file = HARNESSES / name
    options |= {"completions": Completions(begins="inside")} if name == "lighteval_toy.parquet" else {}
    options |= {"problems": HARNESSES / "toy.jsonl"} if "batch" in name else {}
    Parity(file=file, out=out, workers=1, **options).cli_cmd()
    return pl.read_csv(out, schema=COLUMNS)


@pytest.mark.parametrize("name", RECORDED)
def test_no_sample_of_a_recorded_file_is_unexplained(tmp_path, name, capsys):
    table = compared(name, tmp_path / "parity.csv")
    assert dict(table["reason"].value_counts().rows()) == RECORDED[name]
    differing = table.filter(pl.col("theirs") != pl.col("ours"))
    assert not {*differing["reason"]} & {*AGREE, "unknown", "no verdict"}
    assert differing.height == sum(n for why, n in RECORDED[name].items() if why not in {*AGREE, "no verdict"})


@given(
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([None, "", "5", "7"]),
    st.sampled_from([None, "so 5", r"so \boxed{5}", r"so \boxed{"]),
    st.sampled_from([None, "5"]),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
    st.booleans(),
)
def test_each_pair_of_verdicts_has_a_reason(theirs, read, part, answer, score, cut, same):
    score = score if answer else 0.0
    why = reason(Verdict("judge", theirs, read), Ours(part, answer, score, cut), "5", same)
    assert why in REASONS
    assert (why in AGREE) == (theirs == score)
    assert why != "unknown" or read is None


@pytest.mark.parametrize(
    ("verdict", "ours", "gold", "why"),
    [
        ((0, ""), (None, None, 0, False), "5", "no answer"),
        ((0, "7"), (None, None, 0, False), "5", "agree"),
        ((1, "5"), (None, None, 0, True), "5", "truncated"),
        ((1, "5"), ("5 or 6", None, 0, False), "5", "no box"),
        ((0, ""), (r"\boxed{5}", "5", 1, False), "5", "unread"),
        ((0, "5."), (r"\boxed{5}", "5", 1, False), "5.0", "notation"),
        ((1, "0.33"), (r"\boxed{0.33}", "0.33", 0, False), "1/3", "comparison"),
        ((1, "5"), ("5, no 7", "7", 0, False), "5", "no box"),
        ((1, "5"), (r"\boxed{7}", "7", 0, False), "5", "another answer"),
        ((1, None), (r"\boxed{0.33}", "0.33", 0, False), "1/3", "unknown"),
        ((0, None), (r"\boxed{5}", "5", 1, False), "5", "unread"),
        ((0, None), (r"\boxed{x = 5}", "x = 5", 1, False), "5", "notation"),
    ],
)
def test_reasons(verdict, ours, gold, why):
    same = bool(verdict[1]) and verdict[1].rstrip(".") == ours[1]
    assert reason(Verdict("judge", *verdict), Ours(*ours), gold, same) == why


def test_another_task_may_judge(tmp_path):
    ours, exact = (
        compared("lm_eval_math.jsonl", tmp_path / "p.csv", **{"task": t})["ours"].sum() for t in (None, "exact")
    )
    assert ours > exact


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        ({"avg@n:n=2": 0.0}, {"agree": 3, "mean": 9}),
        ({"pass@k:k=1&n=2": 0.5}, {"agree": 5, "mean": 7}),
        ({"avg@n:n=1": 1.0}, {"agree": 7, "mean": 5}),  # the first text alone
        ({"avg@n:n=3": 1.0}, {"no verdict": 24}),
        ({"maj@n:n=2": 1.0}, {"no verdict": 24}),
    ],
)
def test_metrics_of_several_completions_are_compared_if_they_are_means(tmp_path, metric, why):
    rows = [row | {"metric": metric} for _, row in read_file(HARNESSES / "lighteval_toy.parquet")]
    options = {"workers": 1, "completions": Completions(begins="inside")}
    Parity(file=written(rows, tmp_path), out=tmp_path / "parity.csv", **options).cli_cmd()
    assert dict(pl.read_csv(tmp_path / "parity.csv")["reason"].value_counts().rows()) == why


def written(rows, folder):
    file = folder / "samples.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (0.5, "its values lie between 0 and 1"),
        (100, "row 1 has no value from 0 to 1"),
        (None, "row 1 has no value from 0 to 1"),
        (float("nan"), "row 1 has no value from 0 to 1"),
        ("1", "row 1 has no value from 0 to 1"),
    ],
)
def test_a_metric_that_gives_no_verdicts_is_left_out_by_name(tmp_path, capsys, value, why):
    rows = [row for _, row in read_file(HARNESSES / "lm_eval_math.jsonl")]
    rows[0]["exact_match"] = value
    Parity(file=written(rows, tmp_path), workers=1).cli_cmd()
    shown = capsys.readouterr().out
    assert f"exact_match is not compared: {why}\n" in shown and "\nexact_match:" not in shown
    assert "\nmath_verify: theirs 33.3 %, ours 33.3 %; 12 agree\n" in shown


def test_rows_without_a_verdict_are_counted(tmp_path, capsys):
    rows = [row for _, row in read_file(HARNESSES / "lm_eval_math.jsonl")]
    rows[0]["metrics"] = []
    Parity(file=written(rows, tmp_path), workers=1).cli_cmd()
    shown = capsys.readouterr().out
    assert "\nmath_verify: theirs 27.3 %, ours 27.3 %; 11 agree; 1 of 12 rows lack it\n" in shown
    assert "\nno metric: theirs -, ours 100.0 %; 1 no verdict" in shown


def test_of_several_gold_answers_none_is_chosen(tmp_path):
    rows = [row for _, row in read_file(HARNESSES / "lm_eval_math.jsonl")]
    rows[3]["target"] = str([rows[3]["target"], "7"])
    with pytest.raises(ValueError, match="it has no gold answer, or several, of the problem 'quarter'; name problems"):
        Parity(file=written(rows, tmp_path), workers=1).cli_cmd()


def test_an_id_has_one_gold_answer(tmp_path):
    answers = tmp_path / "golds.jsonl"
    answers.write_text('{"id": "a", "answer": "1"}\n{"id": "a", "answer": "1"}\n{"id": "a", "answer": "2"}\n')
    with pytest.raises(ValueError, match=r"golds\.jsonl, row 3: the id 'a' has different answers"):
        Parity(file=HARNESSES / "lm_eval_math.jsonl", problems=answers, workers=1).cli_cmd()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("toy.jsonl", {}, r"toy\.jsonl: not a file of a harness; it has id, question, answer\. Expected: lighteval"),
        ("lighteval_toy.parquet", {}, r"row 1 shows a thought .*; for this command `--completions\.begins`"),
        ("batch_reasoning.jsonl", {}, "it has no gold answer, or several, of the problem 'toy-0'; name problems with"),
        (
            "batch_reasoning.jsonl",
            {"problems": HARNESSES / "problems.jsonl"},
            r"problems\.jsonl has no problem 'toy-0'",
        ),
        ("lm_eval_toy.jsonl", {"problems": HARNESSES / "batch.jsonl"}, r"batch\.jsonl, row 1: no answer; parity reads"),
        ("absent.jsonl", {}, r"absent\.jsonl: no such file"),
        (
            "batch.jsonl",
            {"out": HARNESSES / "batch.jsonl"},
            r"--out .*batch\.jsonl: it would replace a file that is read",
        ),
    ],
)
def test_errors_say_what_to_do(name, options, message):
    with pytest.raises((ValueError, OSError), match=message):
        Parity(file=HARNESSES / name, workers=1, **options).cli_cmd()


def test_problems_without_rows_are_no_golds(tmp_path):
    (tmp_path / "problems.csv").write_text("id,answer\n")
    with pytest.raises(ValueError, match=r"problems\.csv: it has no rows"):
        Parity(file=HARNESSES / "lm_eval_math.jsonl", problems=tmp_path / "problems.csv", workers=1).cli_cmd()


@pytest.mark.parametrize("start", [0, 1])
def test_rows_without_ids_fit_the_golds_of_the_file(tmp_path, start):
    """Else problems that are counted from 1 would be judged by their neighbours' answers."""
    rows = [row for _, row in read_file(HARNESSES / "lm_eval_math.jsonl")]
    targets = {row["doc_id"]: row["target"] for row in rows}
    golds = [targets[i] for i in sorted(targets)]
    numbered = [row | {"doc": row["doc"] | {"id": str(row["doc_id"] + start)}} for row in rows]
    files = {"samples": numbered, "problems": [{"answer": gold} for gold in [*golds, "a last one"]]}
    for name, content in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in content))
    parity = Parity(file=tmp_path / "samples.jsonl", problems=tmp_path / "problems.jsonl", workers=1)
    with pytest.raises(ValueError, match=r"counted from 0, has the answer .* column `id`") if start else nullcontext():
        parity.cli_cmd()


def test_the_page_shows_what_the_command_prints(capsys, monkeypatch):
    page = (ROOT / "docs" / "parity.md").read_text()
    command, shown = re.search(r"```sh\nmrt parity (.*?)\n```.*?```text\n(.*?)```", page, re.DOTALL).groups()
    monkeypatch.chdir(ROOT)
    Parity(_cli_parse_args=[*shlex.split(command), "--workers", "1"]).cli_cmd()
    assert capsys.readouterr().out == shown


def test_the_page_lists_each_reason():
    page = (ROOT / "docs" / "parity.md").read_text()
    assert dict(re.findall(r"^\| \*(.+?)\* \| (.+) \|$", page, re.MULTILINE)) == REASONS


def test_the_pages_configuration_has_the_verdicts_of_parity(tmp_path, monkeypatch):
    """Problems, import and grades of the workflow, of the same file."""
    page = (ROOT / "docs" / "parity.md").read_text()
    shown = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    monkeypatch.chdir(ROOT)
    config = load(shown | {"results": str(tmp_path)})
    file, problems, rollouts = config.models["theirs"].rollouts.file, tmp_path / "p.parquet", tmp_path / "r.parquet"
    PROBLEMS.write(build("theirs", config.problems["theirs"])[0], problems)
    Import(file=file, problems=problems, out=rollouts, reading=tmp_path / "reading.parquet").cli_cmd()
    Grade(problems=problems, answers=rollouts, out=tmp_path / "grades.parquet", workers=1).cli_cmd()
    grades = GRADES.read(tmp_path / "grades.parquet")
    theirs = compared(file.name, tmp_path / "parity.csv").unique("problem_id")
    assert dict(grades.select("problem_id", "correct").rows()) == dict(theirs.select("problem_id", "ours").rows())
