"""BRPO: an anytime reward over token budgets (AnytimeReasoner; Qi et al., 2025; arXiv 2505.13438).

A thought is cut at budgets b_1 < ... < b_m, and J_k is the probability of a right answer at b_k. The objective is the
mean of J over the budgets: the area under accuracy by tokens, as in normalized regret. The return of a token is the sum
of P_k J_k over the budgets after it. Its baseline mixes J at the budgets before it with the group's mean.

Simplified: budgets are evenly spaced over `decoding.max_tokens` and equally likely (P_k = 1/m). Tokens are those of the
completion. A thought that ends before b_k counts there with the completion's outcome, instead of further answers. The
forced answers are not learnt; the completion's own answer is, with the same returns as the end of its thought.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mrt.training.method import RLMethod
from mrt.training.variant import Group, by_episode, by_token, variant


def budget_advantages(J: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Advantage of the tokens before each budget, and after the one before it [completions, budgets].

    With s earlier budgets, P_k = 1/m and the return R_s = sum_(k>s) P_k J_k, it is
    R_s - (s/m V_1 + (m-s)/m V_2). V_1 is a mean of J at the s earlier budgets, each weighing twice as much as the one
    before it, times sum_(k>s) P_k. V_2 is the group's mean of R_s.

    Args:
        J: J of each completion at each budget [completions, budgets].
    """
    values = np.asarray(J, dtype=np.float64)
    count = values.shape[1]
    place = np.arange(count)
    returns = values[:, ::-1].cumsum(axis=1)[:, ::-1] / count
    weights = 2.0**place
    reached = (values * weights).cumsum(axis=1) / weights.cumsum()
    earlier = np.pad(reached[:, :-1], ((0, 0), (1, 0))) * (count - place) / count
    return returns - (place * earlier + (count - place) * returns.mean(axis=0)) / count


def masked(recipe: Any) -> Iterator[tuple[str, str]]:
    """Masked completions, whose J at the budgets the group's mean would lack."""
    if recipe.mask_truncated:
        yield "mask_truncated", "budgets within thoughts that are cut off count in the group's mean; leave it out"


@variant(asks="budgets", refuses=masked)
def budget_relative(group: Group, budgets: int) -> Any:
    """Return of the budgets after a token, less BRPO's baseline; budgets after the thought count with the reward."""
    columns = list(zip(group.rewards.tolist(), group.boundaries, strict=True))
    values = budget_advantages([[*along, *[reward] * (budgets - len(along))] for reward, (_, along) in columns])
    rows = [
        by_episode(np.append(of_one, 0.0)[: len(ends) + 1], ends, tokens)
        for of_one, (_, (ends, _)), tokens in zip(values, columns, group.lengths.tolist(), strict=True)
    ]
    return by_token(rows)


brpo = RLMethod("#999933", budget_relative)
