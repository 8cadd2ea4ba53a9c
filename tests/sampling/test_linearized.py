"""The sliding window of linearized evaluation; `test_backtracking` runs the stage."""

from conftest import TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.episodes.parameterization import STEP_END
from mrt.sampling.engine import Engine, EngineSettings
from mrt.sampling.linearized import window

ENGINE = Engine(str(TOY_BASE), EngineSettings())


@given(st.integers(1, 60), st.integers(16, 500))
def test_the_window_is_the_end_of_the_text_from_a_step_on(steps, size):
    text = STEP_END.join(f"Step {i}: Try {i} + 4." for i in range(steps))
    end = window(text, size, ENGINE)
    assert text.endswith(end) and len(ENGINE.encode([end])[0]) <= size
    assert end == text or end == "" or end.startswith("Step ")
    longer = text[: -len(end)] if end else text
    if end != text:  # one step more would not have fitted
        more = longer.removesuffix(STEP_END).rpartition(STEP_END)[2] + STEP_END + end
        assert len(ENGINE.encode([more])[0]) > size


@given(st.lists(st.sampled_from(["Step 1: Try 4.", "\n", "\n\n", "12", "a b"]), max_size=40), st.integers(1, 40))
def test_the_window_is_what_dropping_step_by_step_leaves(parts, size):
    text = left = "".join(parts)
    while len(ENGINE.encode([left])[0]) > size:
        _, _, left = left.partition(STEP_END)
    assert window(text, size, ENGINE) == left
