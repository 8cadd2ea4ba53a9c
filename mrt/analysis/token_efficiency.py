"""How many times fewer tokens a model needs than another for the same accuracy, and how much more it has for the same
tokens (Section 8.3)."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mrt.analysis.intervals import Estimate, Floats, Interval, estimate_of, linearized


def token_efficiency(
    tokens: npt.ArrayLike, accuracy: npt.ArrayLike, other_tokens: npt.ArrayLike, other_accuracy: npt.ArrayLike
) -> tuple[float, str]:
    """How many times fewer tokens a model needs than another for the same accuracy (Section 8.3, Figure 7).

    Each curve gives the fewest tokens for an accuracy: its running maximum, with log tokens interpolated linearly. A
    plateau of the running maximum is part of the curve: higher accuracies need more tokens than its end. The ratio is
    the other's tokens divided by the model's, as a geometric mean over the accuracies that both curves reach.
    If one curve begins above the other's best, there are no such accuracies. The ratio is then a bound: it compares the
    last point of the lower curve with the first point of the upper one.

    The ratio is continuous in both curves wherever they share a range of accuracies. A change of an accuracy by e
    changes the ratio's logarithm by no more than a multiple of e over the width of that range.

    Args:
        tokens, accuracy: the model's curve, such as k times its tokens per completion and maj@k [points].
        other_tokens, other_accuracy: the other's [points].

    Returns:
        The ratio, above 1 if the model is the more efficient one, and "equal accuracy", "at least" or "at most".

    Raises:
        ValueError: unless the tokens of each curve are positive and increase.
    """
    (x, y), (other_x, other_y) = (
        (log_tokens, np.maximum.accumulate(reached))
        for log_tokens, reached in (curve(tokens, accuracy), curve(other_tokens, other_accuracy))
    )
    if y[0] > other_y[-1]:
        return float(np.exp(other_x[-1] - x[0])), "at least"
    if other_y[0] > y[-1]:
        return float(np.exp(other_x[0] - x[-1])), "at most"
    low, high = max(y[0], other_y[0]), min(y[-1], other_y[-1])
    return float(np.exp(_mean_tokens(other_x, other_y, low, high) - _mean_tokens(x, y, low, high))), "equal accuracy"


def _mean_tokens(x: Floats, y: Floats, low: float, high: float) -> float:
    """Mean log tokens for the accuracies from `low` to `high`, which the non-decreasing curve (x, y) reaches."""
    if high <= low:  # they touch in one accuracy
        first = np.searchsorted(y, low)
        return float(np.interp(low, y[max(0, first - 1) : first + 1], x[max(0, first - 1) : first + 1]))
    rise, ends = np.diff(y), np.clip(y, low, high)
    share = np.divide(ends[1:] + ends[:-1] - 2 * y[:-1], 2 * rise, out=np.zeros_like(rise), where=rise > 0)
    return float(np.sum((x[:-1] + np.diff(x) * np.clip(share, 0.0, 1.0)) * np.diff(ends)) / (high - low))


def accuracy_gain(
    tokens: npt.ArrayLike, accuracy: npt.ArrayLike, other_tokens: npt.ArrayLike, other_accuracy: npt.ArrayLike
) -> float:
    """How much more accurate a model is than another at the same tokens (Section 8.3, Figure 7).

    The mean difference of the two curves over the tokens that both cover, each interpolated linearly in log tokens.

    Args:
        tokens, accuracy: the model's curve, such as k times its tokens per completion and maj@k [points].
        other_tokens, other_accuracy: the other's [points].

    Returns:
        The difference; nan if one curve ends before the other begins.

    Raises:
        ValueError: unless the tokens of each curve are positive and increase.
    """
    (x, y), (other_x, other_y) = curve(tokens, accuracy), curve(other_tokens, other_accuracy)
    first, last = max(x[0], other_x[0]), min(x[-1], other_x[-1])
    if first > last:
        return float("nan")
    shared = np.linspace(first, last, 101)
    return float(np.mean(np.interp(shared, x, y) - np.interp(shared, other_x, other_y)))


def curve(tokens: npt.ArrayLike, accuracy: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Log tokens and accuracies of a curve [points]."""
    x, y = np.asarray(tokens, dtype=np.float64), np.asarray(accuracy, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or not x.size or not (x > 0).all() or (np.diff(x) <= 0).any():
        raise ValueError("token efficiency: the tokens of a curve must be positive and increase")
    return np.log(x), y


def gain_of_curves(*curves: npt.ArrayLike, same_runs: bool = False, fixed: bool = False) -> Estimate:
    """`accuracy_gain` of two models' mean curves, over training runs and problems.

    Args:
        curves: tokens and accuracy of the one, tokens and accuracy of the other, by run and problem, for the same
            problems in the same order [runs, problems, points].
        same_runs, fixed: as of `mrt.analysis.intervals.mean_of`.
    """
    return _of_curves(accuracy_gain, _grids(curves), same_runs=same_runs, fixed=fixed)


def efficiency_of_curves(*curves: npt.ArrayLike, same_runs: bool = False, fixed: bool = False) -> tuple[Estimate, str]:
    """`token_efficiency` of two models' mean curves, over training runs and problems.

    Args:
        curves, same_runs, fixed: as of `gain_of_curves`.

    Returns:
        The logarithm of the ratio, whose `ratio_interval` is the ratio's, and the kind of the ratio.
    """
    grids = _grids(curves)
    # the running maximum by its steps, which are never negative: on a plateau it has slopes to one side alone
    rising = [grids[0], _steps(grids[1]), grids[2], _steps(grids[3])]

    def log_ratio(tokens: Floats, steps: Floats, other_tokens: Floats, other_steps: Floats) -> float:
        return float(np.log(token_efficiency(tokens, np.cumsum(steps), other_tokens, np.cumsum(other_steps))[0]))

    ratio, kind = token_efficiency(*(grid.mean(axis=(0, 1)) for grid in grids))
    estimate = _of_curves(log_ratio, rising, same_runs=same_runs, fixed=fixed)
    # sums of steps are rounded, which decides where one curve begins as accurate as the other ends
    return estimate._replace(value=float(np.log(ratio))), kind


def ratio_interval(log_ratio: Estimate) -> Interval:
    """The 95 % interval of a ratio, from the estimate of its logarithm."""
    with np.errstate(over="ignore"):  # curves that hardly share an accuracy leave the ratio open
        return Interval(*(float(np.exp(end)) for end in log_ratio.interval()))


def _steps(accuracy: Floats) -> Floats:
    """Steps [runs, problems, points] whose means are those of the running maximum of the mean curve."""
    mean = accuracy.mean(axis=(0, 1))
    best = np.maximum.accumulate(mean)
    reached = np.maximum.accumulate(np.where(mean >= best, np.arange(mean.size), 0))  # where it was reached last
    return np.diff(accuracy[..., reached], axis=-1, prepend=0.0)


def _grids(curves: tuple[npt.ArrayLike, ...]) -> list[Floats]:
    data = [np.asarray(values, dtype=np.float64) for values in curves]
    if any(values.ndim != 3 or not values.size for values in data) or len({values.shape[1] for values in data}) > 1:
        raise ValueError("token efficiency: needs curves [runs, problems, points] of the same problems")
    return data


def _of_curves(statistic: Callable[..., float], grids: list[Floats], *, same_runs: bool, fixed: bool) -> Estimate:
    """A statistic of the means of tokens and accuracy of one model and of another."""
    tokens, accuracy, other_tokens, other_accuracy = linearized(statistic, *grids)
    influences, other_influences = tokens + accuracy, other_tokens + other_accuracy
    value = statistic(*(grid.mean(axis=(0, 1)) for grid in grids))
    return estimate_of(
        value, [influences + other_influences] if same_runs else [influences, other_influences], fixed=fixed
    )
