from hypothesis import strategies as st

from mrt.grading.task import answers_in, scores, task_of
from mrt.tasks.exact import Exact

PROBLEMS = st.builds(
    lambda answer: {"id": "p", "answer": answer}, st.from_regex(r"[A-Za-z0-9](?: ?[a-z0-9]){0,5}", fullmatch=True)
)


def test_an_exact_answer_is_the_box_or_stands_behind_a_word():
    task, row = task_of({"name": "exact", "ignore_case": True}), {"id": "p", "answer": "New  York"}
    parts = [r"\boxed{\text{new york}}", "Answer: New York\nFor sure.", "Answer: York", "New York", r"\boxed{}"]
    assert scores(task, answers_in(task, parts, [row] * 5), [row] * 5) == [1, 1, 0, 0, 0]
    assert answers_in(task, ["<answer>New York</answer>", "<answer>York</answer> Answer: no"], [row] * 2) == [
        "new york",
        "york",
    ]
    assert scores(Exact(), ["new york"], [row]) == [0]
