"""How often a nominal 95 % interval excludes the truth, in simulations of training runs and problems.

    python -m benchmarks.intervals accuracy tokens  # 10,000 draws of each, in minutes; of token efficiency, in hours
    python -m benchmarks.intervals --draws 300

A draw is an experiment: 250 problems, 8 completions of each in a run (of regret one trace with 8 forced answers), and
five training runs of two methods, or of one method and a checkpoint that is given. The methods do not differ, but where
the table says so. Problems differ in difficulty and length, runs in their means, and a run in what it
makes of a problem. Between runs accuracy varies by 1 or 3 points, tokens by 3 or 12 %, as in the runs of docs/claims.md
(standard deviations, inferred from its intervals). Intervals are those of `mrt.analysis.intervals`, by the code that
makes the tables.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from benchmarks.record import markdown
from mrt.analysis.intervals import Floats, components, quantile
from mrt.analysis.token_efficiency import efficiency_of_curves, ratio_interval, token_efficiency
from mrt.analysis.votes import maj_at_k

PROBLEMS, RUNS, SAMPLES, BUDGET = 250, 5, 8, 256
KS = (1, 2, 4, 8)
CHUNK = 100  # draws at a time
GAIN = 0.5  # of the logit, of models that gain 7 points over a base
BETTER = {  # gains of models whose curves share so many points of maj@k with that of a model without a gain
    "token efficiency": 0.0,
    "token efficiency, 5 points shared": 0.25,
    "token efficiency, 1 point shared": 0.5,
    "token efficiency, none shared": 0.6,
}
NAMES = ("accuracy", "tokens", "regret", "maj@8", "ratio of gains", "training log", *BETTER)


class Spread(NamedTuple):
    """Standard deviations between runs, and of what a run makes of a problem."""

    logit: float  # of the probability of a right answer
    length: float  # relative
    of_problem: float = 0.4  # of a problem in a run, of the logit
    of_length: float = 0.15


SPREADS = {"small": Spread(0.06, 0.03), "large": Spread(0.19, 0.12)}


class Experiment:
    """One model's runs on problems of these logits and log lengths [draws, 1, problems]; one run: a given model."""

    def __init__(
        self, rng: np.random.Generator, problems: tuple[Floats, Floats], runs: int, spread: Spread, gain: float = 0.0
    ) -> None:
        logit, length = problems
        self.rng, self.spread, self.length = rng, spread, length
        self.shape = (len(logit), runs, logit.shape[-1])
        of_run = rng.normal(size=(2, len(logit), runs, 1)) * (runs > 1)
        noise = spread.of_problem * rng.standard_normal(self.shape, dtype=np.float32)
        self.p = 1 / (1 + np.exp(-(logit + gain + spread.logit * of_run[0] + noise)))  # of a right answer
        self.factor = 1 + spread.length * of_run[1]  # of lengths

    @cached_property
    def mean_tokens(self) -> Floats:
        noise = self.spread.of_length * self.rng.standard_normal(self.shape, dtype=np.float32)
        return np.maximum(80 * np.exp(self.length + noise) * self.factor, 5.0)

    @cached_property
    def right(self) -> np.ndarray:
        """Right answers, of SAMPLES [draws, runs, problems]."""
        return self.rng.binomial(SAMPLES, self.p)

    @cached_property
    def accuracy(self) -> Floats:
        return self.right / SAMPLES

    @cached_property
    def tokens(self) -> Floats:
        """Mean tokens of SAMPLES completions [draws, runs, problems]."""
        return self.mean_tokens * self.rng.standard_gamma(2.0 * SAMPLES, self.shape) / (2.0 * SAMPLES)

    @cached_property
    def maj(self) -> Floats:
        """maj@k [draws, runs, problems, KS]; six in ten of the wrong answers agree, and so do the others."""
        return majorities()[self.right, self.rng.binomial(SAMPLES - self.right, 0.6)]

    @cached_property
    def regret(self) -> Floats:
        """Normalized regret of one trace a problem, whose answer is reached on the way and then mostly kept."""
        reached = self.mean_tokens / 2 * self.rng.standard_gamma(2.0, self.shape)
        settled = np.where(self.rng.random(self.shape) < self.p, 0.95, 0.1)
        J = self.rng.binomial(SAMPLES, settled) / SAMPLES
        return 1 - J * np.clip(1 - reached / 2 / BUDGET, 0, 1)

    def curves(self) -> tuple[Floats, Floats]:
        """Tokens and maj@k [draws, runs, problems, KS]."""
        return self.tokens[..., None] * np.array(KS, dtype=float), self.maj


@lru_cache
def majorities() -> Floats:
    """maj@k [right, first wrong, k] of SAMPLES answers, the others of which agree on a second wrong one."""
    table = np.zeros((SAMPLES + 1, SAMPLES + 1, len(KS)))
    for right in range(SAMPLES + 1):
        for wrong in range(SAMPLES + 1 - right):
            clusters = np.repeat([0, 1, 2], [right, wrong, SAMPLES - right - wrong])
            table[right, wrong] = [maj_at_k(clusters, clusters == 0, k) for k in KS]
    return table


def excluded(parts: Sequence[Floats], truth: float = 0.0) -> int:
    """How many intervals of a sum of means exclude the truth; parts [draws, runs, problems]."""
    found = components(parts)
    estimate = sum(part.mean(axis=(-1, -2)) for part in parts)
    return int((np.abs(estimate - truth) > quantile(found.df) * found.error).sum())


def of_curves(one: Experiment, other: Experiment, truth: float) -> int:
    """How many intervals of token efficiency exclude the truth."""
    misses = 0
    for own_tokens, own_maj, other_tokens, other_maj in zip(*one.curves(), *other.curves(), strict=True):
        found = ratio_interval(efficiency_of_curves(own_tokens, own_maj, other_tokens, other_maj)[0])
        misses += not found.low <= truth <= found.high
    return misses


def of_gains(one: Experiment, other: Experiment, base: Experiment) -> int:
    """How many intervals of (one - base) / (other - base), which is 1, exclude it."""
    grids = [model.accuracy for model in (one, other, base)]
    own, rival, zero = (grid.mean(axis=(-1, -2), keepdims=True) for grid in grids)
    ratio = (own - zero) / (rival - zero)
    weights = (1.0, -ratio, ratio - 1.0)
    parts = [
        weight * (grid - grid.mean(axis=(-1, -2), keepdims=True)) for weight, grid in zip(weights, grids, strict=True)
    ]
    return excluded([parts[0] / (rival - zero) + ratio, *(part / (rival - zero) for part in parts[1:])], 1.0)


def problems_of(rng: np.random.Generator, draws: int) -> tuple[Floats, Floats]:
    """Logits and log lengths of problems [draws, 1, problems]."""
    return rng.normal(0.4, 1.6, (draws, 1, PROBLEMS)), rng.normal(-0.1, 0.45, (draws, 1, PROBLEMS))


@lru_cache
def true_efficiency(spread: Spread, others: int, gain: float, draws: int = 400) -> float:
    """Token efficiency of a model that gains over one that does not, in the mean over many runs and problems."""
    if not gain:
        return 1.0
    rng = np.random.default_rng(1)
    problems = problems_of(rng, draws)
    models = (Experiment(rng, problems, runs, spread, gain) for runs, gain in ((RUNS, gain), (others, 0.0)))
    return token_efficiency(*(grid.mean(axis=(0, 1, 2)) for model in models for grid in model.curves()))[0]


def misses(rng: np.random.Generator, label: str, others: int, draws: int, names: Sequence[str]) -> list[int]:
    """How many of so many intervals of each quantity exclude the truth, five runs against so many."""
    spread, problems = SPREADS[label], problems_of(rng, draws)
    one, other = (Experiment(rng, problems, runs, spread) for runs in (RUNS, others))
    gained, also = (Experiment(rng, problems, runs, spread, GAIN) for runs in (RUNS, others))
    logs = [rng.normal(0, 1, (draws, RUNS, 1)), rng.normal(0, 1 if label == "small" else 3, (draws, others, 1))]

    def efficiency(gain: float) -> int:
        better = Experiment(rng, problems, RUNS, spread, gain) if gain else one
        return of_curves(better, other, true_efficiency(spread, others, gain))

    found: dict[str, Callable[[], int]] = {
        "accuracy": lambda: excluded([one.accuracy, -other.accuracy]),
        "tokens": lambda: excluded([one.tokens, -other.tokens]),
        "regret": lambda: excluded([one.regret, -other.regret]),
        f"maj@{KS[-1]}": lambda: excluded([one.maj[..., -1], -other.maj[..., -1]]),
        "ratio of gains": lambda: of_gains(gained, also, Experiment(rng, problems, 1, spread)),
        "training log": lambda: excluded([logs[0], logs[1] * (others > 1)]),  # or against a number
        **{name: partial(efficiency, gain) for name, gain in BETTER.items()},
    }
    return [found[name]() for name in names]


def table(draws: int, names: Sequence[str] = NAMES, seed: int = 0) -> Iterator[tuple[str, str, float, float]]:
    """Rows: quantity, spread between runs, and the percent of intervals that exclude the truth, 5 against 5 and 5
    against a given checkpoint."""
    sizes = [min(CHUNK, draws - start) for start in range(0, draws, CHUNK)]
    rates = {}
    for label in SPREADS:
        for others in (RUNS, 1):
            rng = np.random.default_rng([seed, len(label), others])
            counts = np.sum([misses(rng, label, others, size, names) for size in sizes], axis=0)
            rates[label, others] = dict(zip(names, 100 * counts / draws, strict=True))
    for name in names:
        for label in SPREADS:
            yield name, label, rates[label, RUNS][name], rates[label, 1][name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; all if none is given")
    parser.add_argument("--draws", type=int, default=10_000, help="experiments of each kind")
    chosen = parser.parse_args()
    rows = [(*row[:2], *(f"{rate:.1f}" for rate in row[2:])) for row in table(chosen.draws, chosen.names or NAMES)]
    print(markdown(("quantity", "spread between runs", "5 against 5", "5 against a given checkpoint"), rows))


if __name__ == "__main__":
    main()
