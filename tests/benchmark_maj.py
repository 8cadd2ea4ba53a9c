"""How long [maj@p]_j of the case study takes: exactly, and as the authors estimate it (Section 5, Figure 3).

    python -m tests.benchmark_maj

The table is that of the case study: 16 traces of 15 problems, 12 prefixes, 8 answers; p = 1, 2, 4, 8. The authors draw
100,000 subsets a prefix and p; here a few prefixes are drawn so, vectorised, and the time is scaled up.
"""

import time

import numpy as np
import polars as pl

from mrt.metrics import maj_at_k_table

TRACES, PROBLEMS, PREFIXES, ANSWERS, VOTES = 16, 15, 12, 8, (1, 2, 4, 8)
DRAWS, DRAWN_PREFIXES = 100_000, 20


def estimate(clusters: np.ndarray, correct: np.ndarray, votes: int, rng: np.random.Generator) -> float:
    """maj@votes of one prefix from DRAWS random subsets; ties give 1/2."""
    subsets = np.argsort(rng.random((DRAWS, clusters.size)), axis=1)[:, :votes]
    labels = np.unique(clusters[clusters >= 0])
    counts = (clusters[subsets][:, :, None] == labels).sum(axis=1)
    winners = (counts == counts.max(axis=1, keepdims=True)) & (counts > 0)
    right = np.array([correct[clusters == label].any() for label in labels])
    return float(np.mean((winners & right).any(axis=1) * np.where(winners.sum(axis=1) > 1, 0.5, 1.0)))


def main() -> None:
    rng = np.random.default_rng(0)
    n = TRACES * PROBLEMS * PREFIXES * ANSWERS
    clusters = rng.integers(-1, 5, n)
    index = np.arange(n)
    table = pl.DataFrame({"prefix": index // ANSWERS, "cluster": clusters, "correct": clusters == 2})
    started = time.perf_counter()
    exact = maj_at_k_table(table, ["prefix"], VOTES)
    exactly = time.perf_counter() - started
    started = time.perf_counter()
    errors = []
    for prefix in range(DRAWN_PREFIXES):
        answers = table.filter(prefix=prefix)
        for votes in VOTES:
            drawn = estimate(answers["cluster"].to_numpy(), answers["correct"].to_numpy(), votes, rng)
            errors.append(abs(drawn - exact.filter(prefix=prefix, k=votes)["maj"].item()))
    drawing = (time.perf_counter() - started) * TRACES * PROBLEMS * PREFIXES / DRAWN_PREFIXES
    print(f"exact: {exactly:.2f} s for {n:,} answers at {exact['prefix'].n_unique():,} prefixes, p = {VOTES}")
    print(f"{DRAWS:,} draws: {drawing:.0f} s, {drawing / exactly:,.0f} times that; off by {max(errors):.4f} at most")


if __name__ == "__main__":
    main()
