"""VinePPO: credit by step from continuations of the current policy (Kazemnejad et al., 2024; arXiv 2410.01679).

The value V of a state is the mean outcome of K independent continuations (`answers`; the paper has 9). The advantage
of a step is the change of V over it, and each of its tokens has this advantage. Nothing is learnt from continuations.

Simplified: a step is an episode. Updates are those of the recipe, and no clipped PPO unless `num_iterations` is set.
Advantages are not whitened over the batch. V at the prompt is from continuations too, not from the group.
"""

from typing import Any

import numpy as np

from mrt.training.method import RLMethod
from mrt.training.variant import Group, by_episode, by_token, variant


@variant(asks="continuations")
def step_values(group: Group) -> Any:
    """V_(t+1) - V_t for a token of episode z_t; V is the mean outcome of continuations, and r after the last episode.

    V_0 is V at the prompt. What length costs (`overlong_buffer`) is added for all tokens.
    """
    columns = zip(group.outcomes.tolist(), group.J.tolist(), group.boundaries, group.lengths.tolist(), strict=True)
    rows = [by_episode(np.diff([V, *along, r]), ends, tokens) for r, V, (ends, along), tokens in columns]
    return by_token(rows) + group.penalties[:, None]


vineppo = RLMethod("#117733", step_values)
