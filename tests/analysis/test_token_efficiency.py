"""Token efficiency: by hand, its laws, its continuity, and its intervals."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mrt.analysis.token_efficiency import (
    accuracy_gain,
    efficiency_of_curves,
    gain_of_curves,
    ratio_interval,
    token_efficiency,
)

shares = st.just(0.0) | st.floats(1e-9, 1)  # of fewer than 1e9 answers; between subnormal ones no slope is finite
curves = st.lists(st.tuples(st.floats(1, 1000), shares), min_size=1, max_size=6, unique_by=lambda p: p[0])


@given(curves, curves, st.floats(0.1, 10))
def test_token_efficiency_is_antisymmetric_and_scales(
    one: list[tuple[float, float]], two: list[tuple[float, float]], factor: float
) -> None:
    x, y = np.array(sorted(one)).T
    other_x, other_y = np.array(sorted(two)).T
    assume((np.diff(x / factor) > 0).all())  # neighbouring floats may become one
    ratio, kind = token_efficiency(x, y, other_x, other_y)
    back, opposite = token_efficiency(other_x, other_y, x, y)
    assert ratio * back == pytest.approx(1)
    assert opposite == {"at least": "at most", "at most": "at least"}.get(kind, kind)
    assert token_efficiency(x / factor, y, other_x, other_y)[0] == pytest.approx(ratio * factor)
    assert token_efficiency(x, y, x, y)[0] == pytest.approx(1)


def test_token_efficiency_by_hand() -> None:
    tokens = np.array([100.0, 200.0, 400.0])
    assert token_efficiency(tokens, [0.2, 0.4, 0.6], 4 * tokens, [0.2, 0.4, 0.6]) == (
        pytest.approx(4),
        "equal accuracy",
    )
    assert token_efficiency(tokens, [0.7, 0.8, 0.9], tokens, [0.2, 0.4, 0.6]) == (pytest.approx(4), "at least")
    assert token_efficiency(tokens, [0.2, 0.4, 0.6], tokens, [0.7, 0.8, 0.9]) == (pytest.approx(1 / 4), "at most")
    # At 0.4 and 0.5, all that both reach, one needs 100 and 200, the other 200 and sqrt(200 * 400).
    ratio, _ = token_efficiency([100, 200], [0.4, 0.5], tokens, [0.2, 0.4, 0.6])
    assert ratio == pytest.approx(np.exp((np.log(2) + np.log(np.sqrt(2))) / 2), rel=1e-9)
    # A dip is no cheaper way to an accuracy that was reached before.
    assert token_efficiency(tokens, [0.2, 0.1, 0.6], tokens, [0.2, 0.1, 0.6])[0] == pytest.approx(1)
    with pytest.raises(ValueError, match="increase"):
        token_efficiency([200, 100], [0.1, 0.2], tokens, [0.2, 0.4, 0.6])


def test_accuracy_gain_is_over_the_tokens_that_both_cover() -> None:
    tokens = np.array([100.0, 200.0, 400.0])
    assert accuracy_gain(tokens, [0.3, 0.5, 0.7], tokens, [0.2, 0.4, 0.6]) == pytest.approx(0.1)
    assert accuracy_gain(tokens, [0.9, 0.3, 0.5], [200.0, 400.0, 800.0], [0.1, 0.3, 0.5]) == pytest.approx(0.2)
    assert np.isnan(accuracy_gain(tokens, [0.3, 0.5, 0.7], 10 * tokens, [0.3, 0.5, 0.7]))
    with pytest.raises(ValueError, match="must be positive and increase"):
        accuracy_gain(tokens[::-1], [0.3, 0.5, 0.7], tokens, [0.3, 0.5, 0.7])
    rng = np.random.default_rng(0)
    curves = np.sort(rng.random((3, 40, 3)), axis=-1)
    spent = np.broadcast_to(tokens, curves.shape)
    interval = gain_of_curves(spent, curves + 0.05, spent[:1], curves.mean(axis=0, keepdims=True)).interval()
    assert interval.low < interval.estimate < interval.high and interval.estimate == pytest.approx(0.05)


def test_curves_are_interpolated_in_log_tokens() -> None:
    assert accuracy_gain([100.0, 400.0], [0.0, 1.0], [100.0, 200.0, 400.0], [0.0] * 3) == pytest.approx(0.5)


def test_a_dip_is_no_cheaper_way_to_an_accuracy_that_was_reached_before() -> None:
    """Accuracies above that before the dip begin at its end, as after a plateau."""
    tokens, line = [100, 200, 300, 400], ([100, 400], [0.2, 0.6])
    dip, _ = token_efficiency(tokens, [0.2, 0.1, 0.15, 0.6], *line)
    assert dip == token_efficiency(tokens, [0.2, 0.2, 0.2, 0.6], *line)[0]
    assert dip == pytest.approx(
        np.sqrt(100 * 400) / np.sqrt(300 * 400)
    )  # geometric means of the tokens from 0.2 to 0.6


rises = st.lists(st.floats(0, 0.2), min_size=3, max_size=6)


@given(rises, rises, st.data())
def test_a_small_change_of_votes_is_a_small_change_of_token_efficiency(
    one: list[float], two: list[float], data: st.DataObject
) -> None:
    """Ties, where a curve does not rise, included: there is no jump where one is broken."""
    curves = [0.2 + np.cumsum(rise) / 2 for rise in (one, two)]
    width = min(curve[-1] for curve in curves) - max(curve[0] for curve in curves)
    assume(width > 0.02)
    change = 1e-7
    moved = [
        curve
        + change * np.array(data.draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=curve.size, max_size=curve.size)))
        for curve in curves
    ]
    x, other_x = (100 * 2.0 ** np.arange(curve.size) for curve in curves)
    before, after = (token_efficiency(x, a, other_x, b)[0] for a, b in (curves, moved))
    slope = 4 * np.log(2) * 6 * 6 / width  # both curves span at most a factor of 2^5 in tokens
    assert abs(np.log(after / before)) <= slope * change


def test_a_tie_that_is_broken_does_not_jump() -> None:
    tokens, other = np.array([100.0, 200.0, 400.0, 800.0]), [0.48, 0.50, 0.61, 0.70]
    ratios = [
        token_efficiency(tokens, [0.5, 0.5 + rise, 0.6, 0.7], 1.5 * tokens, other)[0] for rise in (-1e-3, 0, 1e-9, 6e-4)
    ]
    assert ratios[0] == pytest.approx(ratios[1], abs=1e-12) and ratios[2] == pytest.approx(ratios[1], abs=1e-7)
    assert ratios[3] == pytest.approx(ratios[1], abs=0.01)
    # at 0.5 to 0.7 it needs 200 to 800 tokens, by two straight lines in log tokens
    again = token_efficiency(tokens, [0.5, 0.5, 0.6, 0.7], [200, 400, 800], [0.5, 0.6, 0.7])[0]
    assert again == pytest.approx(1)


def test_the_interval_of_token_efficiency_is_paired() -> None:
    rng = np.random.default_rng(0)
    maj = np.sort(rng.random((50, 4)), axis=1)
    tokens = np.array([1.0, 2, 4, 8]) * rng.uniform(50, 150, (50, 1))
    maj, tokens = maj[None], tokens[None]
    estimate, kind = efficiency_of_curves(tokens / 3, maj, tokens, maj)
    assert kind == "equal accuracy"
    assert list(ratio_interval(estimate)) == pytest.approx([3, 3, 3])
    unpaired = ratio_interval(efficiency_of_curves(tokens / 3, maj, tokens, np.sort(rng.random((1, 50, 4))))[0])
    assert unpaired.high - unpaired.low > 0.1
    halves = np.concatenate([tokens / 2, tokens / 4])
    runs = ratio_interval(efficiency_of_curves(halves, np.repeat(maj, 2, 0), tokens, maj)[0])
    assert runs.low < 2.1 and runs.high > 3.9  # a run needs a half, the other a quarter of the tokens


def test_curves_that_touch_are_not_told_apart_by_rounding() -> None:
    """The one ends where the other begins, for all that floating-point numbers tell."""
    rng = np.random.default_rng(3)
    tokens = np.broadcast_to([1.0, 2, 4], (1, 7, 3))
    for first, last in zip(rng.random((60, 1, 7, 1)), rng.random((60, 1, 7, 1)), strict=True):
        one = np.concatenate([first * last, last, last], axis=-1)
        other = np.concatenate([last, last, last + 0.3], axis=-1)
        log_ratio, kind = efficiency_of_curves(tokens, one, tokens, other)
        ratio, same = token_efficiency(*(grid.mean(axis=(0, 1)) for grid in (tokens, one, tokens, other)))
        assert kind == same and np.exp(log_ratio.value) == pytest.approx(ratio)


@pytest.mark.parametrize(("gap", "narrow"), [(0.002, False), (0.5, True)])
def test_a_bound_is_sure_where_the_curves_are_far_apart_alone(gap: float, narrow: bool) -> None:
    """Where noise decides whether they share an accuracy, the ratio may be far below the bound."""
    rng = np.random.default_rng(0)
    tokens = np.broadcast_to([100.0, 200.0, 400.0], (5, 100, 3)) * rng.uniform(0.98, 1.02, (2, 5, 100, 1))
    rise = np.array([0.0, 0.05, 0.06]) + 0.1 * rng.standard_normal((2, 5, 100, 1))
    one, other = rise[0] - rise[0].mean() + 0.3 + gap, rise[1] - rise[1].mean() + 0.3 - 0.06
    estimate, kind = efficiency_of_curves(tokens[0], one, tokens[1], other)
    interval = ratio_interval(estimate)
    assert kind == "at least" and interval.low <= interval.estimate < interval.high == np.inf
    assert (interval.low > 3.8) is narrow and interval.low > 1 and estimate.p_value() < 0.05
    assert narrow or estimate.p_value(np.log(interval.low)) == pytest.approx(0.05, abs=0.002)


def test_curves_of_the_same_runs_vary_together() -> None:
    tokens = np.broadcast_to([100.0, 200.0, 400.0], (4, 30, 3))
    maj = np.array([0.1, 0.2, 0.5, 0.7])[:, None, None] + np.zeros((4, 30, 3))
    together, apart = (
        gain_of_curves(tokens, maj + 0.05, tokens, maj, same_runs=same).interval() for same in (True, False)
    )
    assert together == pytest.approx((0.05, 0.05, 0.05)) and apart.low < 0


def test_a_plateau_has_an_interval_from_its_own_side() -> None:
    """maj@2 = maj@1 in every problem: the interval is as wide as that of curves whose plateau rises by very little."""
    rng = np.random.default_rng(1)
    base = rng.random((2, 5, 80, 1)) * 0.5
    curves = base + np.array([0.0, 0.0, 0.1, 0.15]) + 0.02 * rng.standard_normal((2, 5, 80, 1))
    tokens = np.array([1.0, 2, 4, 8]) * rng.uniform(50, 150, (2, 5, 80, 1))
    bent = curves + np.array([0, 1e-6, 0, 0])
    flat, risen = (efficiency_of_curves(tokens[0], of[0], tokens[1], of[1])[0] for of in (curves, bent))
    assert risen.interval() == pytest.approx(flat.interval(), abs=1e-3)
