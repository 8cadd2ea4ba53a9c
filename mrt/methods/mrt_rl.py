"""MRT (RL): progress is rewarded (Sections 6.2, 7.1; Algorithm 2), by one of several variants (docs/rl.md)."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mrt.training.method import RLMethod
from mrt.training.variant import Group, by_token, variant


def centre(group: Group, centred: bool) -> Any:
    """The baseline that is subtracted from the rewards: their mean over the group, or 0."""
    return group.rewards.mean() if centred else 0 * group.rewards


@variant(asks="prefix")
def explicit(group: Group, alpha: float, centred: bool) -> Any:
    """r + alpha (r - J(mu; z_0:j)), not normalised over the group (Algorithm 2, line 11)."""
    return group.rewards - centre(group, centred) + alpha * (group.outcomes - group.J)


def no_halves(recipe: Any) -> Iterator[tuple[str, str]]:
    """A group that has no halves."""
    if recipe.num_generations % 2:
        yield "num_generations", f"{recipe.num_generations} is odd, and half of a group is stopped; set an even number"


@variant(asks="stop", gives="rewards", refuses=no_halves)
def implicit(group: Group) -> Any:
    """The outcome, in groups of which half get the stop phrase "Time is up." (Figure 6, Section 7.1)."""
    return group.rewards


@variant(asks="boundaries")
def per_episode(group: Group, alpha: float, centred: bool) -> Any:
    """r + alpha (J_(t+1) - J_t) for a token of episode z_t (Section 6.2); r is J_(t+1) of the last one."""
    columns = zip(group.outcomes.tolist(), group.J.tolist(), group.boundaries, group.lengths.tolist(), strict=True)
    by_episode = [
        episode_advantages(outcome, [J, *along], ends, tokens, alpha) for outcome, J, (ends, along), tokens in columns
    ]
    return by_token(by_episode) + (group.rewards - group.outcomes - centre(group, centred))[:, None]


@variant(asks="prefix")
def termination(group: Group) -> Any:
    """r - J(mu; z_0:j), as the authors' RL code has it."""
    return group.rewards - group.J


def episode_advantages(
    outcome: float, J: Sequence[float], ends: Sequence[int], tokens: int, alpha: float
) -> npt.NDArray[np.float64]:
    """Advantage of each token of a completion by its episode: r + alpha (J_(t+1) - J_t) [tokens].

    Args:
        outcome: r, 0 or 1.
        J: J before the completion and at each of `ends` [boundaries + 1].
        ends: tokens up to each boundary between episodes, increasing [boundaries]. The tokens after the last one, those
            of the last episode and of the answer, get r + alpha (r - J_last): the outcome stands for J after them.
        tokens: number of tokens of the completion.
    """
    advantages = np.full(tokens, outcome + alpha * (outcome - J[-1]))
    start = 0
    for end, before, after in zip(ends, J, J[1:], strict=False):
        advantages[start:end] = outcome + alpha * (after - before)
        start = end
    return advantages


mrt_rl = RLMethod("#E69F00", prefixes=True)  # `rl.variant` names its advantages
