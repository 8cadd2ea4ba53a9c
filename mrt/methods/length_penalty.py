"""A length penalty relative to the right completions of the same group (Section 8.2; Arora and Zanette, 2025).

Simplified: their RLOO is the reward less the group's mean here, which is (G - 1)/G times as large. A KL term is that of
the recipe. A completion that reaches the token limit is graded like others; in theirs it is wrong. Their script has
alpha 0.1; without one, here it is the default of `rl.alpha`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mrt.training.method import RLMethod
from mrt.training.variant import Group, variant


def length_penalized(outcomes: npt.ArrayLike, lengths: npt.ArrayLike, alpha: float) -> npt.NDArray[np.float64]:
    """Rewards with a length penalty [completions].

    Args:
        outcomes, lengths: outcome, 0 to 1, and tokens of each completion of a group.
        alpha: share of the reward that length may cost, at most 1.

    Returns:
        The outcome times 1 - alpha sigmoid(z), where z is its length standardised over the completions of its group
        that are right, at least in part.
    """
    scores, tokens = np.asarray(outcomes, dtype=np.float64), np.asarray(lengths, dtype=np.float64)
    right = scores > 0
    count = max(right.sum(), 1)
    mean = np.where(right, tokens, 0).sum() / count
    spread = np.sqrt((np.where(right, tokens - mean, 0) ** 2).sum() / count)
    z = np.clip((tokens - mean) / (spread + 1e-4), -50, 50)
    return scores * (1 - alpha / (1 + np.exp(-z)))


def too_large(recipe: Any) -> Iterator[tuple[str, str]]:
    """An alpha above 1, with which a right completion may earn less than a wrong one."""
    if recipe.alpha > 1:
        why = "a right completion would earn less than a wrong one, if it is long"
        yield "alpha", f"{recipe.alpha:g} is above 1: {why}; set one for this model, such as 0.1"


# Divided by the deviation, a penalty would have the same size at any alpha where all of a group are right.
@variant(gives="centred rewards", refuses=too_large)
def shortened(group: Group, alpha: float) -> Any:
    """The outcome times 1 - alpha sigmoid(z), z its length standardised over the right ones of its group."""
    rewards = length_penalized(group.outcomes, group.lengths, alpha)
    return rewards.astype(np.float32) + np.asarray(group.penalties)


length_penalty = RLMethod("#CC79A7", shortened)
