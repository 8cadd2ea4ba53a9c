"""A training that ends when its model's whole lineage has taken a number of FLOPs (`flops` of both recipes).

Section 9 of the paper leaves matching methods by FLOPs open. A budget counts all that `mrt.training.cost` does: data,
the ancestors, and each step. A table of that module has the cost of data and ancestors before the training begins.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from mrt.core.artifacts import COST
from mrt.training.flops import Counts
from mrt.training.one_card import OneCard
from mrt.training.schedule import FEWEST, rate, too_few, warm

UNBOUNDED = 10**9  # steps; transformers wants a number


class Budgeted(OneCard):
    """The end of a training: a number of passes over its data, or a budget of FLOPs."""

    epochs: float | None = Field(1, gt=0, le=1000, description="Passes over the data.")
    flops: float | None = Field(
        None,
        gt=0,
        description="Instead of `epochs`: the training ends when the model's whole lineage has spent this number"
        " of FLOPs. Counted are completions and forced answers for training data, all ancestors, and"
        " each step (docs/sweep.md).",
    )

    @model_validator(mode="after")
    def _ends_one_way(self) -> Self:
        """One of two settings ends a training. That of a model takes the place of a shared one."""
        given = self.model_fields_set
        if self.flops is None:
            if self.epochs is None:
                raise ValueError("epochs: null leaves nothing that ends the training; set flops")
            if "epochs" in given:
                self.flops = None  # now set: it lies over shared `flops`
        elif "epochs" in given and self.epochs is not None:
            raise ValueError(
                "flops and epochs both end the training; leave one out (`epochs: null` takes back that of another file)"
            )
        else:
            self.epochs = None
        return self


def contradictions(recipe: Any) -> Iterator[tuple[str, str]]:
    """(setting, mistake) of a recipe, once the settings of a model lie over the shared ones."""
    if recipe.flops is not None and recipe.evaluate_steps:
        yield "evaluate_steps", "with flops nobody knows beforehand which steps a training has; leave one out"


class Budget(NamedTuple):
    """The FLOPs of a lineage, and the part of a training in them."""

    whole: float  # FLOPs of the lineage
    before: float  # of them, those taken before the first step
    iterations: int = 1  # steps that learn from each batch; a training ends after the last of them

    @property
    def left(self) -> float:
        """FLOPs for the training."""
        return self.whole - self.before

    def steps(self, done: int, spent: float) -> float:
        """How many steps the training has, if further ones cost the mean of the first ones; at least `done`.

        Args:
            done: steps so far, at least one.
            spent: their FLOPs.
        """
        return max(float(done), done * self.left / spent)

    def rate(self, step: int, spent: float, warmup: float, kind: str) -> float:
        """The learning rate of a step (from 1), as a share of its peak; above 0 in every step.

        It is that of a training of `steps` steps, so it follows the share of the budget that is spent.

        Args:
            step: the step.
            spent: FLOPs of the steps so far, this one with them.
            warmup: share of the budget left for training in which it warms up.
            kind: its decay.
        """
        steps = self.steps(step, spent)
        return rate(step, steps, warm(steps, warmup), kind)

    def is_over(self, done: int, spent: float) -> bool:
        """Whether a training ends after these steps: one more batch would end farther from the budget, on average."""
        return done > 0 and done % self.iterations == 0 and spent + self.batch(done, spent) / 2 >= self.left

    def batch(self, done: int, spent: float) -> float:
        """Mean FLOPs of a batch, in all steps that learn from it."""
        return spent / done * self.iterations

    def check(self, done: int, spent: float) -> None:
        """Raise ValueError if the first batch ended so far beyond the budget that none would have been closer."""
        first = self.batch(done, spent)
        if done == self.iterations and self.left < first / 2:
            raise ValueError(
                f"flops: the first step takes {first:.3g} FLOPs, and the data left {self.left:.3g} of {self.whole:.3g};"
                " raise flops, lower batch_size, or make data that cost less"
            )

    def in_words(self, what: str, count: int, batch: int, warmup: float) -> str:
        """The data of a training, examples or problems (`what`), and the parts of its budget."""
        how = "a step" if self.iterations == 1 else f"a batch, each for {self.iterations} steps"
        return (
            f"{count} {what}, {batch} {how}, until {self.whole:.4g} FLOPs are spent: {self.before:.4g} before the"
            f" training, {self.left:.4g} in it, of which the first {warmup:.0%} warm up"
        )


def budget_of(recipe: Any, spent: Path | None) -> Budget | None:
    """The budget of a training by this recipe; None without `flops`.

    Args:
        recipe: SFT's or RL's.
        spent: cost of data and ancestors, a table of `mrt.training.cost`.

    Raises ValueError if that is not given, or is no less than the budget.
    """
    if recipe.flops is None:
        return None
    for name, wrong in contradictions(recipe):
        raise ValueError(f"{name}: {wrong}")
    if spent is None:
        raise ValueError("flops: it counts data and ancestors too; give --spent, a table of mrt.training.cost")
    table = COST.read(spent)
    budget = Budget(recipe.flops, float(table["flops"].sum()), getattr(recipe, "num_iterations", None) or 1)
    if budget.left <= 0:
        parts = "; ".join(f"{model}'s {phase} {flops:.3g}" for model, phase, flops in table.select(NAMED).iter_rows())
        raise ValueError(
            f"flops: {budget.before:.3g} FLOPs are spent before the training, of {budget.whole:.3g} ({parts}); raise"
            " flops, or make data that cost less: fewer problems, training.samples or forced answers"
        )
    return budget


NAMED = ("trained_model", "phase", "flops")


class EndsOnBudget:
    """A trainer that a `budget` of FLOPs ends; its learning rate follows the spent share. Without a budget, neither.

    `spent` counts its FLOPs. Those of a step are complete before its last backward pass begins, so the rate of a step
    follows from totals that include it. They are equal in all processes, and in a training that resumes.
    """

    budget: Budget | None = None
    expected_steps: int | None = None
    share = 1.0  # the learning rate of a step over its peak
    spent: Counts
    args: Any
    accelerator: Any
    control: Any
    optimizer: Any
    lr_scheduler: Any
    state: Any

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Keeps `share`, which `compute_loss` sets."""
        from torch.optim.lr_scheduler import LambdaLR

        if self.budget is None:
            return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda _: self.share)
        return self.lr_scheduler

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        """The loss; that of a step's last rows sets the rate, as DeepSpeed takes the step in the backward pass."""
        loss = super().compute_loss(*arguments, **options)  # type: ignore[misc]
        if self.budget and self.accelerator.sync_gradients:
            step, spent = self.state.global_step + 1, self.spent.so_far(self)["flops"]
            self.share = self.budget.rate(step, spent, self.args.warmup_steps, self.args.lr_scheduler_type.value)
            self.expected_steps = round(self.budget.steps(step, spent))
            for group in self.optimizer.param_groups:
                group["lr"] = self.args.learning_rate * self.share
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the rate that the step had, and end the training where its budget is spent."""
        if self.budget is None or "loss" not in logs:
            super().log(logs, start_time)  # type: ignore[misc]
            return
        super().log({**logs, "learning_rate": self.args.learning_rate * self.share}, start_time)  # type: ignore[misc]
        step, spent = self.state.global_step, logs["flops"]
        self.budget.check(step, spent)
        steps = round(self.budget.steps(step, spent))
        if step == self.budget.iterations and steps < FEWEST and self.accelerator.is_main_process:
            print(f"warning: {too_few(steps, 'what this budget of FLOPs leaves')}", flush=True)
        if self.is_over():
            self.state.max_steps, self.control.should_training_stop = step, True

    def is_over(self) -> bool:
        """Whether there is no step left."""
        over = bool(super().is_over())  # type: ignore[misc]
        return over or (
            self.budget is not None
            and self.budget.is_over(self.state.global_step, self.spent.logged(self).get("flops", 0.0))
        )
