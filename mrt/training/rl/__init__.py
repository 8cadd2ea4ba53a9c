"""Reinforcement learning: GRPO, MRT (RL), a length penalty (Sections 6.2, 7.1, 8.2; Algorithm 2; Table 3), and kin.

    python -m mrt.training.rl --model results/base --prompts results/prompts/mrt_rl_1.parquet --method mrt_rl \\
        --history history.parquet --state state --out results/models/mrt_rl_1

The trainer is TRL's GRPOTrainer with vLLM in the same process. Methods and variants (`mrt/methods/`) add the reward and
the advantage of each completion i in a group of G; r_i is its 0/1 outcome.

| method | prompt | advantage A_i |
|---|---|---|
| grpo | x | (r_i - mean r) / std r |
| length_penalty | x | s_i - mean s; s_i = r_i (1 - alpha sigmoid(z_i)), z_i: length, as below |
| mrt_rl, explicit | x, z_0:j | r_i + alpha (r_i - J(mu; z_0:j)), not normalised over the group |
| mrt_rl, implicit | x, z_0:j | as grpo, but half of the group has the stop phrase in its prompt |
| mrt_rl, per_episode | x, z_0:j | r_i + alpha (J_(t+1) - J_t) for a token of episode z_t; r_i for J_(t+1) of the last |
| mrt_rl, termination | x, z_0:j | r_i - J(mu; z_0:j), as the authors' RL code has it |
| grpo_prefixes | x, z_0:j | as grpo |
| vineppo | x | V_(t+1) - V_t for a token of episode z_t; V: mean outcome of continuations, r_i after the last episode |
| s_grpo | x | of the exits that contain a token, decaying rewards less their mean (mrt.methods.s_grpo) |
| brpo | x | sum of J / m over m token budgets after a token, less BRPO's baseline (mrt.methods.brpo) |

z_i is the length of completion i, standardised over the right ones of its group. The length penalty's advantage is not
divided by the deviation: where all of a group are right, alpha would cancel.

J(mu; z_0:j) is estimated from G further forced answers of the current policy at the prefix. With `estimate: likelihood`
it is the probability of the gold answer under this policy at the prefix. J is the same for the whole group, so
subtracting the group's mean would cancel it; the explicit advantage is therefore not normalised (Algorithm 2, line 11,
"in place of"). J does not depend on the completion, so it is a baseline: the expected gradient is 1 + alpha times that
of the outcome, under the distribution of prefixes. This does not hold with `loss: grpo`, which weighs completions by
their length (docs/rl.md). In the implicit variant J enters through the group's mean. This is a baseline too, because
the stop phrase is in the prompt; the stopped half trains mu. Equation 3 itself holds the contexts c_j-1 fixed and
differentiates the progress of each episode alone; `per_episode` has this gradient, in which nothing cancels by
telescoping. With `centred`, the group's mean outcome is subtracted from the outcome term (docs/rl.md).
"""

from mrt.training.rl.recipe import RL
from mrt.training.rl.stage import Train

__all__ = ["RL", "Train"]
