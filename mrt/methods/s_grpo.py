"""S-GRPO: a reward that decays with the exit position (Dai, Yang and Si, 2025; arXiv 2505.07686).

A thought is ended at several positions P_i, and each of these exits gives an answer. The i-th exit has the reward
1 / 2^(N_i - 1) if its answer is right, N_i being the number of right exits up to it, and else 0. The exits of one
completion are a group, the whole completion being the last. The advantage of an exit is its reward less the group's
mean, and all tokens of the exit have it. The loss averages over the tokens of each exit, then over the exits.

Simplified: exits are at the ends of episodes instead of random positions, and their forced answers are not learnt. A
completion without such an end is a group of one, and learns nothing. Answers to J of the prompt are sampled too, and
count towards `flops`, though no exit reads them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mrt.training.method import RLMethod
from mrt.training.variant import Group, by_episode, by_token, variant


def decayed(right: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Expected reward of each exit, given the probability that each is right [exits]: J_i prod_(k<i) (1 - J_k / 2).

    With one answer an exit, J_i is 0 or 1, and this is 1 / 2^(N_i - 1) or 0. Answers of different exits are
    independent given the thought, so that means of several answers estimate the expectation without bias.
    """
    J = np.asarray(right, dtype=np.float64)
    return J * np.cumprod([1.0, *(1 - J[:-1] / 2)])


def exit_advantages(rewards: npt.ArrayLike, ends: Sequence[int]) -> npt.NDArray[np.float64]:
    """Advantage of a token of each episode [exits]: the mean over exits of A_i / |o_i|, times the tokens of all.

    Only exits that contain the token count; A_i is the reward less its mean, |o_i| the tokens of an exit. With
    `loss: grpo`, which divides by the tokens of the completion, this is the paper's loss of the thought.

    Args:
        rewards: reward of each exit, the whole completion last [exits].
        ends: tokens up to each exit, increasing [exits].
    """
    gains = np.asarray(rewards, dtype=np.float64)
    weighted = (gains - gains.mean()) / np.asarray(ends)
    return weighted[::-1].cumsum()[::-1] * ends[-1] / len(gains)


def other_losses(recipe: Any) -> Iterator[tuple[str, str]]:
    """A loss that does not average over the tokens of each completion."""
    if recipe.loss != "grpo":
        why = "each exit counts by the mean over its tokens, whose sum `loss: grpo` divides by their number"
        yield "loss", f"{recipe.loss}: {why}; set `loss: grpo`"


@variant(asks="boundaries", refuses=other_losses)
def early_exits(group: Group) -> Any:
    """Sum over the exits that contain a token of their advantages, each by its length; early right exits earn most.

    With several `answers` an exit, or J by likelihood, rewards are expectations (`decayed`); the paper has one answer.
    J of the prompt is not an exit.
    """
    of_each = (values.tolist() for values in (group.outcomes, group.penalties, group.lengths))
    rows = []
    for outcome, lost, tokens, (ends, along) in zip(*of_each, group.boundaries, strict=True):
        rewards = decayed([*along, outcome])
        rewards[-1] += lost
        rows.append(by_episode(exit_advantages(rewards, [*ends, tokens]), ends, tokens))
    return by_token(rows)


s_grpo = RLMethod("#AA4499", early_exits)
