"""Backtracking search as a parameterization: cut losslessly, prefixes answered. Of thoughts: test_episodes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt.episodes.parameterization import Backtracking, OpenEnded
from mrt.toy.attempts import solve
from mrt.toy.world import draw_problem

WORDS = Backtracking()
FIRST = "Step 1: Take 3.\n\nStep 2: Take 9: 3 + 9 = 12, more than 11.\n\nAnswer: 3 + 9 = \\boxed{12}\n\n"
BACK = "Wait, this seems off. Let's try something else.\n\nStep 2"
AGAIN = ": Take 8: 3 + 8 = 11, exactly 11.\n\nAnswer: 3 + 8 = \\boxed{11}"
pieces = st.sampled_from(
    [WORDS.marker, "Step 1:", "Step 12:", "Answer: 4", "\n\n", "\n", " ", "Wait", "x", "\\boxed{3}"]
)
texts = st.one_of(st.text(), st.lists(pieces).map("".join))


def test_an_attempt_a_backtrack_and_a_revision_are_three_episodes():
    assert WORDS.cut(FIRST + BACK + AGAIN) == ([FIRST, BACK, AGAIN], True)
    assert WORDS.cut(AGAIN, FIRST + BACK).episodes == [FIRST, BACK, AGAIN]
    assert WORDS.cut(FIRST.rstrip()) == ([FIRST.rstrip()], True)
    assert WORDS.cut(FIRST + BACK) == ([FIRST, BACK], False)
    assert WORDS.cut("") == ([], False)


@given(texts, texts)
def test_cutting_is_lossless(before, text):
    assert "".join(WORDS.cut(text, before).episodes) == before + text
    assert all(WORDS.cut(text).episodes)


@given(st.integers(0, 10_000))
def test_the_episodes_of_the_toy_world_are_its_attempts_and_backtracks(seed):
    rng = random.Random(seed)
    text = solve(rng, draw_problem(rng, 5), WORDS, goes_back=1.0)
    episodes, closed = WORDS.cut(text)
    assert closed and len(episodes) in (1, 3)
    if len(episodes) == 3:
        assert WORDS.backtrack.fullmatch(episodes[1])
        step = episodes[1].rpartition("\n\n")[2]
        assert step == "" or step in episodes[0]  # it goes back to a step of the attempt


def test_mu_says_the_answer_of_an_attempt_and_goes_on_from_a_backtrack():
    assert WORDS.force("") == ""
    assert WORDS.force(FIRST) == FIRST.partition(" 3 + 9 = \\boxed")[0]
    assert WORDS.force(FIRST + BACK) == FIRST + BACK
    assert WORDS.force(FIRST + BACK + AGAIN).endswith("exactly 11.\n\nAnswer:")
    assert WORDS.force(FIRST + BACK + ": Take 8") == FIRST + BACK + ": Take 8\n\nAnswer:"
    assert WORDS.finish(FIRST) == WORDS.force(FIRST)


@pytest.mark.parametrize("kind", [OpenEnded(), WORDS])
def test_a_parameterization_survives_its_json(kind):
    from pydantic import TypeAdapter

    from mrt.episodes.parameterization import Parameterization

    assert TypeAdapter(Parameterization).validate_json(kind.model_dump_json()) == kind


def test_a_marker_within_a_paragraph_is_no_backtrack():
    text = f"Step 1: Take 3. {WORDS.marker}\n\nAnswer: 3"
    assert WORDS.cut(text).episodes == [text]
