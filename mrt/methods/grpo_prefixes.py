"""GRPO from the prompts of MRT (RL): problems followed by a prefix of one of the parent's thoughts.

The control for MRT (RL): the same prompts and the same number of completions, with the outcome as the only reward.
Shao et al., 2024 (arXiv 2402.03300) have prompts without prefixes. With equal `prefixes`, `max_prompt_length` and seed,
a model of this method and one of `mrt_rl` get equal prompts in the same order.
"""

from mrt.methods.grpo import outcome
from mrt.training.method import RLMethod

grpo_prefixes = RLMethod("#44AA99", outcome, prefixes=True)
