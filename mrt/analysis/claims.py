"""Claims about models as comparisons that measurements decide, over training runs and problems.

A claim compares a value (accuracy, regret at a budget, ...) of one model with that of another on the same problems. Its
interval resamples training runs and problems (`mrt.analysis.bootstrap`). It is confirmed or refuted only if that
interval excludes no difference; else it is undecided, and the spread of the runs tells how many would decide it.
"""

from collections.abc import Mapping
from math import ceil
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from mrt.analysis.bootstrap import Interval, bootstrap_runs, resampled_means
from mrt.analysis.token_efficiency import token_efficiency
from mrt.core.settings import Settings

KEY = ["model", "dataset", "problem_id"]
Grid = npt.NDArray[np.float64]  # [runs, problems]
Verdict = Literal["confirmed", "refuted", "undecided"]


class Claim(Settings):
    """What the paper says of two models, and the comparison that decides it."""

    section: str = Field(description="Where the paper says it.")
    says: str = Field(description="What it says, with its number.")
    value: str = Field(
        description="What is compared: `accuracy`, `tokens`, `regret at 256`, `maj at 8`, `pass at 8`, `linearized at"
        " 8`, `regret after 4 episodes`, `accuracy after 2 extensions`, `progress`, `episodes` or `token efficiency`."
    )
    model: str = Field(description="The model that it is about.")
    than: str = Field(description="The model that it is compared with.")
    gains_over: str | None = Field(
        None, description="Compare gains over this model: (model - it) / (than - it), which is 1 if both gain as much."
    )
    expect: Literal["more", "less", "same"] = Field(description="What the paper says of `model` against `than`.")
    margin: float = Field(0.0, ge=0, description="same: the largest difference that counts as none.")
    redraw: str = Field(description="Target that redraws what it is seen in.")


def values_of(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The values of all measures, a row a problem: columns value, model, dataset, problem_id, x.

    Args:
        tables: measures of `mrt.analysis.evaluate` by name, of all models (columns model and dataset in front).
    """

    def part(measure: str, name: pl.Expr | str, column: str) -> list[pl.DataFrame]:
        table = tables.get(measure, pl.DataFrame())
        if table.is_empty():
            return []
        named = pl.lit(name).alias("value") if isinstance(name, str) else name.alias("value")
        x = pl.col(column).cast(pl.Float64).alias("x")
        return [table.select(named, *KEY, x).drop_nulls("x").group_by("value", *KEY, maintain_order=True).mean()]

    parts = [
        *part("accuracy", "accuracy", "accuracy"),
        *part("accuracy", "tokens", "tokens"),
        *part("maj", pl.format("maj at {}", "k"), "maj"),
        *part("maj", pl.format("pass at {}", "k"), "pass"),
        *part("linearized", pl.format("linearized at {}", "k"), "maj"),
        *part("regret", pl.format("regret at {}", "budget"), "regret"),
        *part("episode_regret", pl.format("regret after {} episodes", "episodes"), "regret"),
        *part("budget_forcing", pl.format("accuracy after {} extensions", "extensions"), "accuracy"),
        *part("progress", "progress", "progress"),
        *part("episodes", "episodes", "episodes"),
    ]
    return pl.concat(parts) if parts else pl.DataFrame(schema={"value": pl.String, **dict.fromkeys(KEY, pl.String)})


def compare(own: Grid, other: Grid, base: Grid | None = None, repeats: int = 2000, seed: int = 0) -> Interval:
    """Interval of mean(own) - mean(other), or, with `base`, of (own - base) / (other - base), over runs and problems.

    Args:
        own, other, base: values [runs, problems] of the same problems in the same order.
    """
    if base is None:
        return bootstrap_runs(own, other, repeats, seed)
    a, b, zero = resampled_means((own, other, base), repeats, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = (a - zero) / (b - zero)
        estimate = (own.mean() - base.mean()) / (other.mean() - base.mean())
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Interval(float(estimate), float(low), float(high))


def efficiency(
    tokens: npt.NDArray[np.float64],
    maj: npt.NDArray[np.float64],
    other_tokens: npt.NDArray[np.float64],
    other_maj: npt.NDArray[np.float64],
    repeats: int = 1000,
    seed: int = 0,
) -> Interval:
    """Interval of token efficiency (`mrt.analysis.token_efficiency`) over runs and problems.

    Args:
        tokens, maj, other_tokens, other_maj: curves of each run and problem [runs, problems, points].
    """
    both = [np.stack(curve, axis=-1) for curve in ((tokens, maj), (other_tokens, other_maj))]
    own, other = resampled_means(both, repeats, seed)
    drawn = [token_efficiency(*own[i].T, *other[i].T)[0] for i in range(repeats)]
    means = [grid.mean(axis=(0, 1)) for grid in (tokens, maj, other_tokens, other_maj)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(token_efficiency(*means)[0], float(low), float(high))


def verdict(claim: Claim, interval: Interval) -> Verdict:
    """Whether the interval confirms or refutes the claim; ratios are compared with 1, differences with 0."""
    none = 1.0 if claim.gains_over or claim.value == "token efficiency" else 0.0
    above, below = interval.low > none, interval.high < none
    if claim.expect == "same":
        within = interval.low >= none - claim.margin and interval.high <= none + claim.margin
        outside = interval.low > none + claim.margin or interval.high < none - claim.margin
        return "confirmed" if within else "refuted" if outside else "undecided"
    as_said, otherwise = (above, below) if claim.expect == "more" else (below, above)
    return "confirmed" if as_said else "refuted" if otherwise else "undecided"


def runs_needed(own: Grid, other: Grid) -> int | None:
    """Runs of each model with which the present difference would exclude 0; None if no number of runs would.

    From the variance between runs and that between problems, which more runs do not lower.
    """
    difference = own.mean() - other.mean()
    of_problems = (own.mean(axis=0) - other.mean(axis=0)).var(ddof=1) / own.shape[1]
    of_runs = sum(grid.mean(axis=1).var(ddof=1) for grid in (own, other) if grid.shape[0] > 1)
    left = (difference / 1.96) ** 2 - of_problems
    return max(2, ceil(of_runs / left)) if left > 0 else None
