"""GRPO: the outcome is the reward (Section 7.1)."""

from typing import Any

from mrt.training.method import RLMethod
from mrt.training.variant import Group, variant


@variant(gives="rewards")
def outcome(group: Group) -> Any:
    """The 0/1 outcome, less what length costs."""
    return group.rewards


grpo = RLMethod("#0072B2", outcome)
