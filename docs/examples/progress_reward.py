"""A reward of progress for other trainers: `compute_score` for verl, `reward_func` for slime.

verl (0.3 to 0.7): `custom_reward_function.path=docs/examples/progress_reward.py`
slime (0.1 and 0.2): `--custom-rm-path progress_reward.reward_func --reward-key score`, with this folder in PYTHONPATH

J is estimated beforehand (`mrt.progress.J_by_likelihood`) and carried by the row: a list under `J`, before the
completion and, where known, after each of its episodes but the last. `alpha` weighs progress. `inside` is false where
the prompt opens no thought. `thinking` has the two texts of a model that does not think in `<think>`, `open` and
`close`. `task` is that of `mrt.progress.outcome`.
"""

import json
from typing import Any

from mrt.progress import Thinking, outcome, progress

DEFAULTS = {"J": None, "alpha": 1.0, "inside": True, "thinking": {}, "task": None}


def rewards(completion: str, answer: str, row: dict[str, Any]) -> dict[str, Any]:
    """r + alpha (r - J), and its parts by episode: alpha (J_(t+1) - J_t), and r for the last (Section 6.2)."""
    # a row of Parquet has nulls where other rows have values
    row = DEFAULTS | {name: value for name, value in row.items() if value is not None}
    if row["J"] is None:
        raise ValueError(f"the row of the answer {answer!r} has no J; add a list, J before the completion first")
    r = outcome(completion, answer, inside=row["inside"], thinking=Thinking(**row["thinking"]), task=row["task"])
    of_episodes = row["alpha"] * progress([*row["J"], r])
    of_episodes[-1] += r
    parts = json.dumps(of_episodes.tolist())  # a text: verl makes an array of each entry, of equal lengths
    return {"score": float(of_episodes.sum()), "outcome": r, "episode_rewards": parts}


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **others: Any
) -> dict[str, Any]:
    """The reward of a completion in verl, whose `extra_info` has J."""
    return rewards(solution_str, ground_truth, extra_info or {})


async def reward_func(args: Any, sample: Any, **others: Any) -> dict[str, Any]:
    """The reward of a sample in slime, whose `metadata` has J."""
    return rewards(sample.response, sample.label, sample.metadata)
