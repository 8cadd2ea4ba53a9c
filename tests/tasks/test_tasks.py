"""The laws of tasks, of ours and of the one that docs/extend.md shows; what callers make of their answers."""

import json
import re
from importlib import import_module
from pathlib import Path

import polars as pl
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from mrt.analysis.measures.accuracy import accuracy
from mrt.analysis.progress import progress_table
from mrt.core.artifacts import GRADES, PROBLEMS
from mrt.core.fingerprint import reached
from mrt.episodes.thinking import THINK
from mrt.grading.grade import Grade, grade_table, right_forced
from mrt.grading.task import (
    TASKS,
    Task,
    answers_in,
    canonical,
    clusters,
    golds_of,
    has_golds,
    problem_rows,
    reference,
    scores,
    task_of,
)
from mrt.problems.build import build
from mrt.problems.settings import Dataset
from mrt.training.rl.trainer import outcome_reward, problem_of

SHOWN = re.findall(r"```python\n(# near\.py\n.*?)```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL)[0]
NUMBERS = st.decimals(-999, 999, allow_nan=False, places=2).map(str)
ROWS = {  # problems of each task; of others, `PROBLEMS` of tests/tasks/test_NAME.py
    "math": st.builds(
        lambda answer: {"id": "p", "answer": answer}, NUMBERS | st.sampled_from(["x+1", r"\frac12", "A"])
    ),
    "near": st.builds(lambda answer, by: {"id": "p", "answer": answer, "tolerance": by}, NUMBERS, st.floats(0, 9)),
}


ANSWERS = {}  # where numbers are no answers; of others, `ANSWERS` of tests/tasks/test_NAME.py
for _name in {*TASKS.all()} - ROWS.keys():
    ROWS[_name] = import_module(f"test_{_name}").PROBLEMS  # a Hypothesis strategy of the task's problems
    ANSWERS[_name] = getattr(import_module(f"test_{_name}"), "ANSWERS", None)


@pytest.fixture(scope="module")
def near(tmp_path_factory):
    """The choice of the task that the page shows."""
    file = tmp_path_factory.mktemp("own") / "near.py"
    file.write_text(SHOWN)
    return f"{file}:Near"


@pytest.fixture(params=[*TASKS.all(), "near"], scope="module")
def case(request, near):
    """Each task with its problems."""
    answers = ANSWERS.get(request.param) or NUMBERS | st.sampled_from(["x+1", "1+x", "0.5", r"\frac12"])
    return task_of(near if request.param == "near" else request.param), ROWS[request.param], answers


@given(data=st.data())
def test_a_gold_text_is_right_in_its_box_and_bare(case, data):
    task, rows, _ = case
    row = data.draw(rows)
    golds = golds_of(task, row) if type(task).golds is not Task.golds else []
    assert scores(task, golds, [row] * len(golds)) == [1.0] * len(golds)
    boxes = [f"So it is \\boxed{{{gold}}}." for gold in golds]
    assert scores(task, answers_in(task, boxes, [row] * len(golds)), [row] * len(golds)) == [1.0] * len(golds)


@given(data=st.data())
def test_sameness_is_reflexive_and_symmetric_and_none_equals_nothing(case, data):
    task, rows, some = case
    row = data.draw(rows)
    answers = data.draw(st.lists(some, min_size=1, max_size=4))
    pairs = [(one, other) for one in answers for other in answers]
    same = dict(zip(pairs, task.same(pairs, [row] * len(pairs)), strict=True))
    assert all(same[one, one] and same[one, other] == same[other, one] for one, other in pairs)
    ((*labels, first, second),) = clusters(task, [[*answers, None, None]], [row])
    assert first == second == -1 and min(labels) >= 0


@given(data=st.data())
def test_equal_inputs_give_equal_outputs_in_any_company(case, data):
    task, rows, some = case
    problems = data.draw(st.lists(rows, min_size=1, max_size=4))
    written = "```python\n{0}\n```\nIt is \\boxed{{{0}}}.".format
    parts = data.draw(st.lists(st.none() | some.map(written) | st.just("no idea"),
                               min_size=len(problems), max_size=len(problems)))  # fmt: skip
    answers = answers_in(task, parts, problems)
    values = scores(task, answers, problems)
    assert all(value == 0 for answer, value in zip(answers, values, strict=True) if answer is None)
    assert all(answer is None for part, answer in zip(parts, answers, strict=True) if part is None)
    alone = [answers_in(task, [part], [row])[0] for part, row in zip(parts, problems, strict=True)]
    again = [scores(task, [answer], [row])[0] for answer, row in zip(answers, problems, strict=True)]
    assert (alone, again) == (answers, values)


class Half(Task):
    """Half a point for an answer of the right length."""

    unit: float = 0.5

    def answer(self, part, problem):
        return part or None

    def right(self, answers, problems):
        return [
            1 if answer == row["answer"] else self.unit * (len(answer) == len(row["answer"]))
            for answer, row in zip(answers, problems, strict=True)
        ]


ROW = {"id": "p", "answer": "12"}


def test_partial_credit_counts_in_means_and_not_as_right():
    texts = ["12", "13", "5", None]
    keys = pl.DataFrame({"problem_id": ["p"] * 4, "sample": [0] * 4, "prefix": [0] * 4, "answer_index": range(4)})
    lengths = {"tokens": 1, "problem_tokens": 1, "prefix_tokens": 0, "prompt_tokens": 1}
    prover = keys.with_columns(text=pl.Series(texts), finish_reason=pl.lit("stop"), mean_logprob=pl.lit(-1.0))
    prover = prover.with_columns(**{name: pl.lit(n, pl.Int64) for name, n in lengths.items()})
    grades = grade_table(prover, {"p": ROW}, Half())
    assert grades["correct"].to_list() == [True, False, False, False]
    assert grades["score"].to_list() == [1, 0.5, 0, 0] and grades["cluster"].to_list() == [0, 1, 2, -1]
    assert progress_table(prover, grades)["J"].to_list() == [1.5 / 4]
    rollouts = keys.select("problem_id", pl.col("answer_index").alias("sample")).with_columns(
        text=pl.Series(texts).fill_null("<think>"), inside=False, thinking=pl.lit(THINK.cell()), tokens=pl.lit(1)
    )
    of_rollouts = grade_table(rollouts, {"p": ROW}, Half())
    problems = pl.DataFrame({"id": ["p"], "difficulty": [1.0]})
    assert accuracy(problems, rollouts, of_rollouts)["accuracy"].to_list() == [1.5 / 4]
    whole = grade_table(prover.filter(pl.col("answer_index") != 1), {"p": ROW}, Half())
    assert "score" not in whole.columns  # the table of a task of right and wrong
    reward = outcome_reward(Half(), None)
    given = {"inside": [False, True], "prefix_text": ["", ""], "thinking": [None] * 2, "completion_ids": [[], []]}
    assert reward(["13", "12"], answer=["12"] * 2, **given) == [0.5, 0.0]
    assert right_forced(Half(), ["13", "12"], [ROW] * 2) == [0.5, 1.0]


@pytest.mark.parametrize("values", [[1.5], [-0.1], [float("nan")], [None], ["1"]], ids=str)
def test_a_score_outside_of_0_to_1_is_an_error_that_names_task_answer_and_problem(values):
    class Wrong(Half):
        def right(self, answers, problems):
            return values

    with pytest.raises(ValueError, match=r"the task Wrong: `right` gives .* of answer '13' to problem 'p'; .* 0 to 1"):
        scores(Wrong(), ["13"], [ROW])
    with pytest.raises(ValueError, match="the task Wrong: `right` gives 1 values for 2 questions"):
        scores(Wrong(), ["13", None, "12"], [ROW] * 3)


def measured(folder, *rows):
    """The problems of a file, with the tolerance of each."""
    (folder / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return Dataset(file=folder / "m.jsonl")


def test_a_problems_table_carries_what_the_task_reads_and_grades_by_it(tmp_path, near):
    rows = [{"problem": f"g of planet {i}?", "answer": "9.81", "tolerance": by} for i, by in enumerate((0.1, "0.5"))]
    table, _ = build("m", measured(tmp_path, *rows), extra=task_of(near).columns)
    PROBLEMS.write(table, tmp_path / "problems.parquet")
    assert [row["tolerance"] for row in problem_rows(tmp_path / "problems.parquet").values()] == [0.1, "0.5"]
    assert "extra" not in build("m", measured(tmp_path, *rows))[0].columns  # no problem set of math changes
    texts = ["\\boxed{9.9}", "\\boxed{10}", "\\boxed{9.90}", "nine"]
    answers = pl.DataFrame(
        {"problem_id": [f"m-{i}" for i in (0, 1) for _ in texts], "sample": [*range(4)] * 2, "text": texts * 2}
    ).with_columns(inside=False, thinking=pl.lit(THINK.cell()))
    answers.write_parquet(tmp_path / "rollouts.parquet")
    out = tmp_path / "grades.parquet"
    Grade(problems=tmp_path / "problems.parquet", answers=tmp_path / "rollouts.parquet", out=out, task=near).cli_cmd()
    grades = GRADES.read(out)
    assert grades["correct"].to_list() == [True, False, True, False, True, True, True, False]
    assert grades["cluster"].to_list() == [0, 1, 0, -1] * 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "line 2: column 'tolerance', which the task reads, is empty or missing"),
        ({"tolerance": None}, "line 2: column 'tolerance', which the task reads, is empty or missing"),
        ({"tolerance": float("nan")}, "line 2: column 'tolerance', which the task reads, cannot stand in JSON"),
    ],
    ids=str,
)
def test_a_row_without_what_the_task_reads_is_an_error_that_names_it(tmp_path, row, message):
    rows = {"problem": "a?", "answer": "1", "tolerance": 1}, {"problem": "b?", "answer": "1", **row}
    with pytest.raises(ValueError, match=message):
        build("m", measured(tmp_path, *rows), extra=["tolerance"])
    with pytest.raises(ValueError, match=r"no column 'tolerant' .which the task reads.; .* did you mean 'tolerance'"):
        build("m", measured(tmp_path, rows[0]), extra=["tolerant"])


def test_a_prompt_of_rl_carries_the_row_for_tasks_that_read_more_than_the_answer():
    row = {"id": "p", "answer": "9.81", "tolerance": 0.5}
    assert problem_of({"problem_id": "p", "answer": "9.81", "row": json.dumps(row)}) == row
    assert problem_of({"problem_id": "p", "answer": "9.81"}) == {"id": "p", "answer": "9.81"}


def test_a_choice_has_one_form_and_a_wrong_one_an_error(tmp_path, near):
    assert canonical(None) is canonical("math") is canonical({"name": "math"}) is None
    assert canonical({"name": near}) == near and has_golds(near) and has_golds(None)
    assert canonical({"name": "math", "by": "math_verify"}) == {"name": "math", "by": "math_verify"}
    file = tmp_path / "mine.py"
    file.write_text("from mrt.grading.task import Task\nclass Plain(Task):\n    digits: int = 3\nvalue = 7\n")
    assert task_of({"name": f"{file}:Plain", "digits": 2}).digits == 2 and not has_golds(f"{file}:Plain")
    for choice, message in (
        ("maths", "there is no task 'maths'; did you mean 'math'"),
        ({"by": "math_verify"}, "a task with settings has a name too"),
        ({"name": "math", "by": "hand"}, "math has the settings by, timeout; by: .*'hand'"),
        ({"name": f"{file}:Plain", "digit": 2}, "has the settings digits; digit: Extra inputs .* .got 2."),
        (f"{file}:value", "value is no task, a Task"),
        (f"{tmp_path}/gone.py:Plain", "gone.py: no such file; paths are relative to the working folder"),
    ):
        with pytest.raises(ValueError, match=message):
            task_of(canonical(choice))
    with pytest.raises(ValueError, match="problem 'p': the task Plain has no text of its gold answer"):
        golds_of(task_of(f"{file}:Plain"), ROW)


def test_a_future_import_does_not_hinder_settings(tmp_path):
    """Such annotations are texts, which pydantic looks up in the module of the class."""
    file = tmp_path / "late.py"
    lines = ("from __future__ import annotations", "from pathlib import Path", "from mrt.grading.task import Task")
    file.write_text("\n".join([*lines, "class Late(Task):", "    place: Path | None = None"]))
    assert task_of({"name": f"{file}:Late", "place": "x"}).place == Path("x")


def test_a_stage_that_judges_has_its_own_task_in_its_fingerprint_and_no_other(near):
    alone, of_math, of_near = (
        reached("mrt.grading.grade", *plugins) for plugins in ([], [reference(None)], [reference(near)])
    )
    assert "mrt.tasks.math.Math" in of_math.definitions and "mrt.grading.equality.numbers" in of_math.definitions
    assert not [name for name in of_near.definitions if name.startswith(("mrt.tasks.", "mrt.grading.equality."))]
    assert [name for name in of_near.definitions if name.endswith("near.Near")]
    assert {name for name in of_near.definitions if name.startswith("mrt.")} >= alone.definitions.keys()
    assert "math_verify" in of_math.libraries and "math_verify" not in of_near.libraries
