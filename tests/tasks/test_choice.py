import json

import pytest
from hypothesis import strategies as st

from mrt.core.artifacts import PROBLEMS as TABLE
from mrt.grading.task import golds_of, problem_rows, scores, task_of
from mrt.problems.build import build
from mrt.problems.settings import Dataset
from mrt.tasks.choice import Choice

PROBLEMS = st.builds(
    lambda texts, seed: Choice(shuffle=seed).posed({"id": "p", "problem": "q", "answer": texts[0], "options": texts}),
    st.lists(st.decimals(-999, 999, allow_nan=False, places=2).map(str), min_size=2, max_size=5, unique=True),
    st.integers(0, 9),
)
OPTIONS = ["red", "red and blue", "5.0 m/s", "$x^2$"]


@pytest.mark.parametrize(
    ("part", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"So \boxed{\text{(B)}}.", "B"),
        (r"\boxed{\textbf{(C)}\ 5.0 m/s}", "C"),
        (r"\boxed{x^2}", "D"),
        (r"\boxed{b}", "B"),
        (r"\boxed{(c)}", "C"),
        ("<answer>B</answer>", "B"),
        ("<answer> The answer is B. </answer>", "B"),
        ("<answer>A or B</answer>", None),
        (r"\boxed{B: red}", None),
        (r"\boxed{A or B}", None),
        (r"\boxed{B, C}", None),
        (r"\boxed{E}", None),
        ("The answer is (B) because it is blue.", "B"),
        ("The answer is red and blue.", "B"),
        ("**Answer: B) red and blue**", "B"),
        ("Option B is correct.", "B"),
        ("C", "C"),
        ("Answer: B, or maybe C", None),
        ("The answer is not B.", None),
        ("The answer is C. No, the answer is B.", None),
        ("I think B or C.", None),
        (r"The answer is \(C\).", "C"),
        ("The correct answer is:\n\n**C) 5.0 m/s**", "C"),
        ("**Answer:**\n\nC", "C"),
        ("The answer is C!", "C"),
        ("The answer is C. A force would not do.", "C"),
        ("The answer is C because option A is wrong.", "C"),
        ("The answer is C, B", None),
        ("The answer is C. No, it is B.", None),
        ("The answer is C. Hmm, actually it is D.", None),
        ("The answer is C as well as B", None),
        ("The answer is A. I mean B.", None),
        ("- (A) is too small.\n- (B) is false.\n- Option C is correct.", "C"),
        ("Option C is correct and I am sure.", "C"),
        ("One could think option A is correct. But it is blue: (C)", None),
        ("Option A is wrong. Option C is correct.", "C"),
    ],
)
def test_a_choice_is_a_letter_or_a_text_and_never_two(part, letter):
    row = Choice().posed({"id": "p", "problem": "Which?", "answer": "B", "options": OPTIONS})
    assert Choice().answer(part, row) == letter


@pytest.mark.parametrize(
    ("options", "answer", "settings", "letter"),
    [
        ({"A": "x", "B": "y"}, "y", {}, "B"),
        (["A) 3", "B) 4"], "B", {}, "B"),
        ({"label": ["A", "B"], "text": ["p", "q"]}, "(A)", {}, "A"),
        (["a", "b", "c"], "2", {"gold": "index"}, "C"),
        ([4, 2], "2", {}, "B"),
        ({"C": "third", "A": "first", "B": "second"}, "A", {}, "A"),
        ({"label": ["1", "2", "3"], "text": ["p", "q", "r"]}, "1", {"gold": "index"}, "B"),
        ({"(A)": "x", "(B)": "y"}, "B", {}, "B"),
        ({"opa": "x", "opb": "y"}, "B", {}, "B"),
        ({"label": ["2", "1"], "text": ["p", "q"]}, "2", {"gold": "letter"}, "B"),
    ],
)
def test_options_are_read_as_benchmarks_have_them(options, answer, settings, letter):
    row = Choice(**settings).posed({"id": "p", "problem": "q", "answer": answer, "options": options})
    assert row["answer"] == letter and f"{letter}) " in row["problem"]


@pytest.mark.parametrize(("options", "golds"), [("ABCD", ["B"]), ("DBAC", ["B"]), ("CADB", ["D"]), ("pBqr", ["B"])])
def test_no_text_of_the_gold_answer_is_another_option_or_counts_twice(options, golds):
    row = Choice(gold="text").posed({"id": "p", "problem": "Which point?", "answer": "B", "options": [*options]})
    assert golds_of(Choice(), row) == golds and all(Choice().right(golds, [row] * len(golds)))


@pytest.mark.parametrize(
    ("settings", "answer", "message"),
    [
        ({}, "right", "would always be A; set `shuffle: 0`"),
        ({}, "B", "may mean several"),
        ({"gold": "letter"}, "E", "is none of the options"),
    ],
)
def test_options_in_columns_never_put_the_right_one_first_unasked(settings, answer, message):
    row = {"id": "p", "problem": "q", "answer": answer, "w1": "no", "w2": "never"}
    with pytest.raises(ValueError, match=message):
        Choice(options=("w1", "w2"), **settings).posed(row)
    assert Choice(options=("w1", "w2")).posed(row | {"answer": "never"})["answer"] == "B"
    assert Choice(options=("w1", "w2"), gold="letter").posed(row | {"answer": "B"})["texts"] == ["no", "never"]


def test_shuffled_options_are_the_same_each_time_and_the_gold_moves_with_its_text(tmp_path):
    file = tmp_path / "gpqa.jsonl"
    rows = [{"problem": f"Which, {i}?", "answer": "right", "w1": "no", "w2": "never"} for i in range(40)]
    file.write_text("\n".join(map(json.dumps, rows)))
    task = task_of({"name": "choice", "options": ["w1", "w2"], "shuffle": 3})
    tables = [build("g", Dataset(file=file), extra=task.columns, task=task)[0] for _ in range(2)]
    assert tables[0].equals(tables[1])
    TABLE.write(tables[0], tmp_path / "g.parquet")
    posed = problem_rows(tmp_path / "g.parquet").values()
    assert {row["answer"] for row in posed} == {"A", "B", "C"}
    assert all(f"{row['answer']}) right\n" in row["problem"] for row in tables[0].iter_rows(named=True))
    assert scores(task, ["A"] * 40, list(posed)) == [float(row["answer"] == "A") for row in posed]
    file.write_text(json.dumps({"problem": "q", "answer": "maybe", "options": ["yes", "no"]}))
    with pytest.raises(
        ValueError, match=r"gpqa\.jsonl, line 1: its answer 'maybe' is none of the options \['yes', 'no'\]"
    ):
        build("g", Dataset(file=file), extra=["options"], task=Choice())
