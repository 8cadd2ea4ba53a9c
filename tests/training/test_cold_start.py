"""Cold start: right completions become thoughts with an answer, by rules that are counted."""

from types import SimpleNamespace

import polars as pl
import pytest
import yaml
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from mrt.config import lineage
from mrt.config.load import load
from mrt.core.artifacts import GRADES, ROLLOUTS, TRACE
from mrt.episodes.thinking import THINK, take_apart
from mrt.grading.grade import extract_answer
from mrt.methods import cold_start
from mrt.methods.cold_start import ColdStart

OPEN, CLOSE = THINK.opening, THINK.closing
reasoning = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(
    lambda text: text.strip() and CLOSE not in text and OPEN not in text
)


@given(reasoning, st.integers(-(10**9), 10**9))
def test_an_example_is_the_reasoning_and_then_the_answer_that_the_completion_gave(text, answer):
    made = ColdStart().completion(take_apart(text), str(answer))
    parts = take_apart(made, inside=True)
    assert parts.closed and parts.thought.strip("\r\n") == text.strip("\r\n")
    assert extract_answer(made, inside=True) == str(answer)


@given(reasoning, reasoning)
def test_a_teachers_thought_stays_as_it_is(thought, answer):
    made = ColdStart().completion(take_apart(f"\n{OPEN}\n{thought}\n{CLOSE}{answer}"), "7")
    assert take_apart(made, inside=True) == ("", thought.strip("\r\n") + "\n", True, answer)


def tables(*rows):
    """Rollouts and grades of (problem, sample, text, finish_reason, answer, correct)."""
    drawn = [
        (name, sample, "a prompt", text, 3, 5, finish, None, False, None) for name, sample, text, finish, *_ in rows
    ]
    graded = [(name, sample, answer, answer is not None, right, 0) for name, sample, *_, answer, right in rows]
    return (
        pl.DataFrame(drawn, schema=ROLLOUTS.columns, orient="row"),
        pl.DataFrame(graded, schema=GRADES.columns, orient="row"),
    )


ROWS = [
    ("a", 0, "2 + 2 = 4, so \\boxed{4}", "stop", "4", True),
    ("a", 1, "2 and 2 make \\boxed{4}", "stop", "4", True),
    ("a", 2, "it is \\boxed{5}", "stop", "5", False),
    ("b", 0, "it goes on and", "length", None, False),
    ("b", 1, "<think>\n\n</think>\n\n\\boxed{4}", "stop", "4", True),
]


def cold_start_set(rollouts, grades, prompts, settings):
    tables = {"rollouts": rollouts, "grades": grades}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold_start, "ModelTexts", lambda source: SimpleNamespace(prompts=prompts, thinking=THINK))
        return cold_start.examples(SimpleNamespace(table=tables.__getitem__), settings)


def test_each_rule_counts_what_it_kept_and_dropped():
    made, counts = cold_start_set(*tables(*ROWS), {"a": "A?<think>\n", "b": "B?<think>\n"}, ColdStart())
    assert counts.rows() == [
        ("sampled", 5, 0),
        ("ended by itself", 4, 1),
        ("answer right", 3, 1),
        ("some reasoning", 2, 1),
    ]
    assert made.select(*TRACE, "prompt").rows() == [("a", 0, "A?<think>\n"), ("a", 1, "A?<think>\n")]
    one, _ = cold_start_set(*tables(*ROWS), {"a": "A?", "b": "B?"}, ColdStart(per_problem=1))
    assert one["sample"].to_list() == [0]


def test_an_answer_without_a_box_is_refused():
    with pytest.raises(ValueError, match="in a box"):
        ColdStart(answer="The answer is {answer}.")


def experiment(**models):
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    raw["models"] |= models
    return load(raw)


COLD = {"parent": "base", "method": "cold_start", "problems": "toy_train"}


def test_a_parent_that_is_asked_for_a_thought_has_nothing_to_learn_from():
    with pytest.raises(ValueError, match=r"models\.base\.prompt: its prompt opens a thought"):
        experiment(cold=COLD)
    plain = {"label": "Plain", "toy": "shipped", "prompt": {"open_thought": ""}}
    config = experiment(plain=plain, cold=COLD | {"parent": "plain"})
    assert lineage.teacher(config, "cold") == "plain"


def test_a_teacher_is_another_model():
    assert lineage.teacher(experiment(cold=COLD | {"teacher": "direct"}), "cold") == "direct"
    with pytest.raises(ValueError, match=r"models\.cold\.teacher: there is no 'dirct'; did you mean 'direct'"):
        experiment(cold=COLD | {"teacher": "dirct"})
    with pytest.raises(ValueError, match=r"models\.star\.teacher: it is for a model of method cold_start"):
        experiment(star=COLD | {"method": "star", "teacher": "direct"})


def test_each_problem_has_its_own_first_examples():
    right = [(name, i, "2 + 2 is \\boxed{4}", "stop", "4", True) for name in "ab" for i in range(2)]
    found, _ = cold_start_set(*tables(*right), {"a": "A?", "b": "B?"}, ColdStart(per_problem=1))
    assert found.select(TRACE).rows() == [("a", 0), ("b", 0)]
