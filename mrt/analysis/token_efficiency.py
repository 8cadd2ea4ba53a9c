"""How many times fewer tokens a model needs than another for the same accuracy, and how much more it has for the same
tokens (Section 8.3)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mrt.analysis.bootstrap import Interval, percentile_interval, resampled_means

Floats = npt.NDArray[np.float64]


def token_efficiency(
    tokens: npt.ArrayLike, accuracy: npt.ArrayLike, other_tokens: npt.ArrayLike, other_accuracy: npt.ArrayLike
) -> tuple[float, str]:
    """How many times fewer tokens a model needs than another for the same accuracy (Section 8.3, Figure 7).

    Each curve gives the fewest tokens for an accuracy: its running maximum, with log tokens interpolated linearly. The
    ratio is the other's tokens divided by the model's, as a geometric mean over the accuracies that both curves reach.
    If one curve begins above the other's best, there are no such accuracies. The ratio is then a bound: it compares the
    best point of the lower curve with the first point of the upper one.

    Args:
        tokens, accuracy: the model's curve, such as k times its tokens per completion and maj@k [points].
        other_tokens, other_accuracy: the other's [points].

    Returns:
        The ratio, above 1 if the model is the more efficient one, and "equal accuracy", "at least" or "at most".

    Raises:
        ValueError: unless the tokens of each curve are positive and increase.
    """
    curves = []
    for x, y in (curve(tokens, accuracy), curve(other_tokens, other_accuracy)):
        rises = np.append(True, y[1:] > np.maximum.accumulate(y)[:-1])
        curves.append((x[rises], y[rises]))
    (x, y), (other_x, other_y) = curves
    if y[0] > other_y[-1]:
        return float(np.exp(other_x[-1] - x[0])), "at least"
    if other_y[0] > y[-1]:
        return float(np.exp(other_x[0] - x[-1])), "at most"
    shared = np.linspace(max(y[0], other_y[0]), min(y[-1], other_y[-1]), 101)
    return float(np.exp(np.mean(np.interp(shared, other_y, other_x) - np.interp(shared, y, x)))), "equal accuracy"


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


def bootstrap_curves(
    statistic: Callable[..., float],
    *curves: npt.ArrayLike,
    repeats: int = 1000,
    seed: int = 0,
    same_runs: bool = False,
) -> Interval:
    """A statistic of two models' mean curves, with a 95 % interval over training runs and problems.

    A resample draws the problems of both models together, and each model's runs (as `bootstrap_runs`).

    Args:
        statistic: of tokens and accuracies of one curve and of the other, each [points].
        curves: tokens and accuracy of the one, tokens and accuracy of the other, by run and problem, for the same
            problems in the same order [runs, problems, points].
        same_runs: whether both are of the same runs (as of `bootstrap_runs`).
    """
    data = [np.asarray(values, dtype=np.float64) for values in curves]
    if any(values.ndim != 3 or not values.size for values in data) or len({values.shape[1] for values in data}) > 1:
        raise ValueError("token efficiency: needs curves [runs, problems, points] of the same problems")
    estimate = statistic(*(values.mean(axis=(0, 1)) for values in data))
    both = [np.stack(model, axis=-1) for model in (data[:2], data[2:])]  # tokens and accuracies of one draw
    own, other = resampled_means(both, repeats, seed, same_runs=same_runs)
    found = [statistic(*own[i].T, *other[i].T) for i in range(repeats)]
    return percentile_interval(estimate, found)


def bootstrap_token_efficiency(*curves: npt.ArrayLike, **options: Any) -> tuple[Interval, str]:
    """`token_efficiency` of two models' mean curves, with an interval over training runs and problems.

    Args:
        curves, options: as of `bootstrap_curves` [runs, problems, points].

    Returns:
        The interval of the ratio, and the kind of the estimate. A resample whose curves share no accuracy counts with
        its bound.
    """
    interval = bootstrap_curves(lambda *means: token_efficiency(*means)[0], *curves, **options)
    return interval, token_efficiency(*(np.asarray(values).mean(axis=(0, 1)) for values in curves))[1]
