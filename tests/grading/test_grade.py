"""Grading in bulk: each pair once, clusters, the stage."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt.episodes.thinking import THINK
from mrt.grading.equality import exact
from mrt.grading.grade import Grade, answers_forced, is_correct
from mrt.grading.grader import Grader
from mrt.grading.task import task_of
from mrt.grading.workers import Pool, Task


def test_is_correct_needs_an_answer() -> None:
    assert is_correct(r"so</think>\boxed{025}", "25", inside=True)
    assert not is_correct(r"\boxed{25}", "25", inside=True)
    assert not is_correct("", "")


def test_each_distinct_pair_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Task] = []

    class Recorder(Pool):
        def run(self, tasks, workers, timeout):  # type: ignore[no-untyped-def]
            sent.extend(tasks)
            return [(True, False)] * len(tasks)

    grader = Grader(pool=Recorder())
    assert grader.equal([("x+1", "1+x"), ("12", "12")] * 50 + [("$x+1$", "1+x")]) == [True] * 101
    assert grader.equal([("x+1", "1+x")]) == [True]
    assert sent == [("same_answer", "x+1", "1+x")]


def test_grading_keeps_the_order() -> None:
    pairs = [("1", "1"), ("x+y", "y+x"), ("2", "1"), ("x+y", "y+x"), ("x", "y"), ("", "1"), ("1" * 3000, "1")]
    assert Grader(1).equal(pairs) == [True, True, False, True, False, False, False]
    assert Grader(1).equal([]) == []
    with pytest.raises(ValueError, match="at least one worker"):
        Grader(workers=0)


def test_math_verify_alone_judges_where_it_is_asked_for() -> None:
    ours, theirs = Grader(1), Grader(1, alone=True)
    pairs = [("(D) 42", "D"), ("1/2", "0.5"), ("x = 3", "3"), ("3", "4")]
    assert ours.equal(pairs) == [True, True, True, False]
    assert theirs.equal(pairs) == [False, True, True, False]


NUMBERS = st.sampled_from(["1", "2", "3", "1.0", "1/2", "0.5", "2/4", "0.333333", "1/3", "0.3333333", "007", "7"])


@given(st.lists(st.lists(st.none() | NUMBERS, max_size=8), max_size=3))
def test_a_cluster_is_what_equals_its_first_answer(groups: list[list[str | None]]) -> None:
    expected = []
    for group in groups:
        firsts: list[str] = []
        for answer in dict.fromkeys(group):
            if answer is not None and not any(exact(answer, first) for first in firsts):
                firsts.append(answer)
        matches = [[i for i, first in enumerate(firsts) if answer and exact(answer, first)] for answer in group]
        expected.append([found[0] if found else -1 for found in matches])
    assert Grader(1).clusters(groups) == expected


def test_many_numbers_cluster_without_comparing_each_with_each() -> None:
    grader = Grader(1)
    assert grader.clusters([[str(i) for i in range(20_000)]]) == [list(range(20_000))]
    assert not grader.verdicts


def clusters(answers: list[str | None]) -> list[int]:
    return Grader(1).clusters([answers])[0]


def test_clusters() -> None:
    assert clusters(["1/2", None, "0.5", "x+1", "3", "1+x", r"\frac12", "003"]) == [0, -1, 0, 1, 2, 1, 0, 2]
    assert clusters([None, None]) == [-1, -1]
    assert Grader().clusters([["1", "2", "1"], [], ["a+b", "5", "b+a", "5"]]) == [[0, 1, 0], [], [0, 1, 0, 1]]


@given(st.lists(st.none() | st.integers(-9, 9), max_size=12))
def test_clusters_of_integers_are_their_values_in_order(values: list[int | None]) -> None:
    order = list(dict.fromkeys(value for value in values if value is not None))
    texts = [None if value is None else str(value) for value in values]
    assert clusters(texts) == [-1 if value is None else order.index(value) for value in values]


@given(st.lists(st.sampled_from(["1/2", "0.5", "2/4", "7", "07", "7.0", "-3", None]), max_size=10), st.data())
def test_clusters_do_not_depend_on_the_order(answers: list[str | None], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(answers))))
    before, after = clusters(answers), clusters([answers[i] for i in order])
    assert all((before[order[i]] == before[order[j]]) == (after[i] == after[j]) for i in order for j in order)


def test_stage_on_rollouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems, rollouts, out = (tmp_path / f"{name}.parquet" for name in ("problems", "rollouts", "grades"))
    pl.DataFrame({"id": ["a", "b"], "answer": ["025", "x+1"]}).write_parquet(problems)
    inside, whole, empty = True, False, False  # started inside a thought; opened by the text; closed by the prompt
    rows = [
        ("a", 0, inside, r"hm</think>\boxed{25}", "25", True, 0),
        ("b", 0, whole, r"<think>hm</think>\boxed{1+x}", "1+x", True, 0),
        ("a", 1, inside, r"\boxed{25}", None, False, -1),
        ("a", 2, empty, r"\boxed{26}", "26", False, 1),
        ("b", 1, whole, r"<think>\boxed{1+x}", None, False, -1),
        ("b", 2, whole, r"\boxed{x+2}", "x+2", False, 1),
        ("a", 3, inside, r"</think>\boxed{25.0}", "25.0", True, 0),
    ]
    names = ["problem_id", "sample", "inside", "text", "answer", "correct", "cluster"]
    table = pl.DataFrame(rows, schema=names, orient="row").with_columns(thinking=pl.lit(THINK.cell()))
    table.select("problem_id", "sample", "inside", "thinking", "text").write_parquet(rollouts)
    Grade(problems=problems, answers=rollouts, out=out).cli_cmd()
    grades = pl.read_parquet(out)
    assert grades.columns == ["problem_id", "sample", "answer", "parsed", "correct", "cluster"]
    assert grades.drop("parsed").equals(table.drop("inside", "thinking", "text"))
    assert grades["parsed"].to_list() == [True, True, False, True, False, True, True]
    assert "7 answers, 3 correct, 2 unparseable" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer:** it is \\boxed{5}.\n</think>\n", "5"),
        ("\\boxed{4}, no, \\boxed{5}.</think> Done.", "5"),
        ("\\boxed{5}\n<think>\nLet me check", "5"),
        ("\\boxed{4}</think>\\boxed{5}", "5"),
        ("I do not know.</think>", None),
    ],
)
def test_a_forced_answer_may_close_the_thought_once_more(text: str, answer: str | None) -> None:
    assert answers_forced(task_of(), ["\\boxed{7}", text], [{}] * 2) == ["7", answer]


def test_stage_on_forced_answers_and_its_complaints(tmp_path: Path) -> None:
    problems, forced, out = (tmp_path / f"{name}.parquet" for name in ("problems", "forced", "grades"))
    pl.DataFrame({"id": ["a"], "answer": ["3"]}).write_parquet(problems)
    table = pl.DataFrame(
        {"problem_id": ["a"] * 3, "sample": [0] * 3, "prefix": [0, 0, 1], "answer_index": [0, 1, 0]}
    ).with_columns(text=pl.Series([r"so \boxed{3}", r"Add.** \boxed{4}", r"\boxed{3.}"]))
    table.write_parquet(forced)
    Grade(problems=problems, answers=forced, out=out).cli_cmd()
    grades = pl.read_parquet(out)
    assert grades.columns[:4] == ["problem_id", "sample", "prefix", "answer_index"]
    assert grades["correct"].to_list() == [True, False, True]
    assert grades["cluster"].to_list() == [0, 1, 0]
    table.with_columns(text=pl.col("text") + "</think>").write_parquet(forced)
    Grade(problems=problems, answers=forced, out=out).cli_cmd()
    assert pl.read_parquet(out).drop("answer").equals(grades.drop("answer"))
    table.with_columns(problem_id=pl.lit("other")).write_parquet(forced)
    with pytest.raises(ValueError, match=r"forced\.parquet: problem 'other' is not in .*problems\.parquet"):
        Grade(problems=problems, answers=forced, out=out).cli_cmd()
    table.drop("text").write_parquet(forced)
    with pytest.raises(ValueError, match=r"forced\.parquet: no column text"):
        Grade(problems=problems, answers=forced, out=out).cli_cmd()
    pl.DataFrame({"id": ["a", "a"], "answer": ["3", "4"]}).write_parquet(problems)
    with pytest.raises(ValueError, match=r"problems\.parquet: problem 'a' occurs twice"):
        Grade(problems=problems, answers=forced, out=out).cli_cmd()
