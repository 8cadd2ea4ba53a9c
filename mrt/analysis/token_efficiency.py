"""How many times fewer tokens a model needs than another for the same accuracy, and how much more it has for the same
tokens (Section 8.3)."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mrt.analysis.intervals import ROUNDING, Estimate, Floats, Interval, estimate_of, linearized

DRAWS = 10_000  # of mean curves, for an interval
AT_ONCE = 500  # problems


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
    (x, y), (other_x, other_y) = curve(tokens, accuracy), curve(other_tokens, other_accuracy)
    log_ratio, side = log_ratios(x, y, other_x, other_y)
    return float(np.exp(log_ratio)), {1: "at least", -1: "at most"}.get(int(side), "equal accuracy")


def log_ratios(x: Floats, y: Floats, other_x: Floats, other_y: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The logarithm of `token_efficiency` [...] of curves of log tokens (x) and accuracy (y) [..., points].

    Beside it 1 where the curve lies above the other one, -1 where it lies below, and 0 where they share accuracies.
    """
    y, other_y = (np.maximum.accumulate(reached, axis=-1) for reached in (y, other_y))
    low, high = np.maximum(y[..., 0], other_y[..., 0]), np.minimum(y[..., -1], other_y[..., -1])
    side = (y[..., 0] > other_y[..., -1]).astype(np.int64) - (other_y[..., 0] > y[..., -1])
    ratio = _mean_tokens(other_x, other_y, low, high) - _mean_tokens(x, y, low, high)
    ratio = np.where(side > 0, other_x[..., -1] - x[..., 0], ratio)
    return np.where(side < 0, other_x[..., 0] - x[..., -1], ratio), side


def _mean_tokens(x: Floats, y: Floats, low: Floats, high: Floats) -> Floats:
    """Mean log tokens [...] for the accuracies from `low` to `high`, which the non-decreasing curve (x, y) reaches."""
    rise, ends = np.diff(y), np.clip(y, low[..., None], np.maximum(low, high)[..., None])
    share = np.divide(
        ends[..., 1:] + ends[..., :-1] - 2 * y[..., :-1], 2 * rise, out=np.zeros_like(rise), where=rise > 0
    )
    tokens = x[..., :-1] + np.diff(x) * np.clip(share, 0.0, 1.0)
    whole = np.divide((tokens * np.diff(ends)).sum(axis=-1), high - low, out=np.zeros_like(low), where=high > low)
    # where curves touch in one accuracy: the tokens at which it is reached first
    begins = np.where(y[..., 0] >= low, x[..., 0], np.inf)
    reaches = (y[..., :-1] < low[..., None]) & (low[..., None] <= y[..., 1:])
    part = np.divide(low[..., None] - y[..., :-1], rise, out=np.zeros_like(rise), where=rise > 0)
    first = np.where(reaches, x[..., :-1] + np.diff(x) * part, np.inf).min(axis=-1, initial=np.inf)
    return np.where(high > low, whole, np.minimum(begins, first))


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
        The logarithm of the ratio, whose `ratio_interval` is the ratio's, and the kind of the ratio. Its interval and
        p-values are of draws of both mean curves, as the ratio may be far from linear in them.
    """
    grids = _grids(curves)
    ratio, kind = token_efficiency(*(grid.mean(axis=(0, 1)) for grid in grids))
    runs, problems = max(len(grids[0]), len(grids[2])), grids[0].shape[1]
    units = problems if problems > 1 else runs
    draws = _draws(grids, same_runs=same_runs, fixed=fixed)
    return Estimate(float(np.log(ratio)), 0.0, 0.0, float(units > 1), runs, units=units, draws=draws), kind


def _draws(grids: Sequence[Floats], *, same_runs: bool, fixed: bool) -> Floats | None:
    """Draws of the logarithm of token efficiency [DRAWS], of mean curves that vary as runs and problems do.

    It is infinite where the curves of a draw share no accuracy. None if nothing varies.

    The problems' part of both curves, and the runs' part of each, are multivariate t with the estimated covariance of
    all points. The residual of a problem in a run is in the problems' part, and is taken out of the runs'.
    """
    rng, points = np.random.default_rng(0), grids[0].shape[-1]
    means = [grid.mean(axis=(0, 1)) for grid in grids]
    # the change of log tokens is that of tokens, relative to their mean
    relative = [grids[0] / means[0], grids[1], grids[2] / means[2], grids[3]]
    curves = [np.concatenate(relative[:2], axis=-1), np.concatenate(relative[2:], axis=-1)]
    by_problem = [values.mean(axis=0) - values.mean(axis=(0, 1)) for values in curves]
    change = _mean_draws(rng, np.concatenate(by_problem, axis=-1))
    if not fixed:
        by_run = [_of_runs(values) for values in curves]
        parts = [np.concatenate(by_run, axis=-1)] if same_runs else by_run
        change += np.concatenate([_mean_draws(rng, part) for part in parts], axis=-1)
    x, y, other_x, other_y = np.split(change, [points, 2 * points, 2 * points + grids[2].shape[-1]], axis=-1)
    changes = zip(means[::2], (x, other_x), strict=True)
    x, other_x = (np.maximum.accumulate(np.log(mean) + part, axis=-1) for mean, part in changes)
    ratios, side = log_ratios(x, means[1] + y, other_x, means[3] + other_y)
    draws = np.where(side == 0, ratios, np.copysign(np.inf, side))
    return None if np.ptp(ratios) < ROUNDING else draws


def _of_runs(values: Floats) -> Floats:
    """Means of runs less their mean [runs, points], with the variance between runs alone, without residuals."""
    mean = values.mean(axis=(0, 1))
    by_problem, by_run = values.mean(axis=0) - mean, values.mean(axis=1) - mean
    rest = values - mean - by_problem - by_run[:, None]
    problems = values.shape[1]
    within = (rest**2).sum(axis=(0, 1)) / max(1, problems - 1) / problems
    between = (by_run**2).sum(axis=0)
    return by_run * np.sqrt(np.divide(between - within, between, out=np.zeros_like(mean), where=between > within))


def _mean_draws(rng: np.random.Generator, centred: Floats) -> Floats:
    """Draws of the mean, less itself [DRAWS, points], of values that vary as these [values, points] do around 0."""
    count, points = centred.shape
    if count < 2:
        return np.zeros((DRAWS, points))
    sums = np.zeros((DRAWS, points))  # no factor of the covariance, whose signs may be another machine's
    for begin in range(0, count, AT_ONCE):
        part = centred[begin : begin + AT_ONCE]
        sums += rng.standard_normal((DRAWS, len(part))) @ part
    return np.asarray(sums / np.sqrt(count * rng.chisquare(count - 1, (DRAWS, 1))))


def ratio_interval(log_ratio: Estimate) -> Interval:
    """The 95 % interval of a ratio, from the estimate of its logarithm."""
    with np.errstate(over="ignore"):  # curves that hardly share an accuracy leave the ratio open
        return Interval(*(float(np.exp(end)) for end in log_ratio.interval()))


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
