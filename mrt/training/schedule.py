"""How many steps a training takes, on which examples, and at which learning rates.

Every step learns. The learning rate rises from 1/w of its peak in the first of w warm-up steps, and falls towards 0,
which it would reach after the last step. The schedules of transformers begin at 0. In RL passes over the problems are
laid end to end, so the numbers of times that two problems are trained on differ by at most one.
"""

import math
from collections.abc import Callable, Iterator, Sequence, Sized
from itertools import islice
from statistics import fmean
from typing import Annotated, Any

from pydantic import AfterValidator, Field

FEWEST = 10  # steps; by fewer a model is hardly changed at the rates that are usual
LEAST_RATE = 1e-10  # a step of AdamW below it is rounded away in float32, where weights are about 0.01
NO_GRADIENT = "no step had a gradient: what is left is the parent, but for weight decay"


def ascending(steps: list[int]) -> list[int]:
    """Raise ValueError if a step occurs twice, or before a smaller one."""
    if sorted(set(steps)) != steps:
        raise ValueError("from the smallest to the largest step, each once")
    return steps


Steps = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1), AfterValidator(ascending)]


def too_few(steps: int, what: str, *, most: bool = False) -> str | None:
    """The warning of a training of too few steps, with the remedy; None if it has enough.

    Args:
        steps: of the training; with `most`, the most that it can have.
        what: the data that it learns from, as `4 examples`.
    """
    if steps >= FEWEST:
        return None
    number = f"{'at most ' if most else ''}{steps} step{'s' * (steps != 1)}"
    return (
        f"{number} on {what}: fewer than {FEWEST} hardly teach anything. Lower batch_size, raise epochs (or flops), or"
        " have more to learn from: more problems, more training.samples, looser rules"
    )


def did_not_fall(losses: Sequence[float], epochs: Sequence[float]) -> str | None:
    """The warning of a loss that is not lower in the last epoch than in the first; None if it is, or is not known.

    An epoch has all examples, so that two of them compare. Of a training of fewer than two, the first and the last
    third of the steps are compared.

    Args:
        losses, epochs: loss of each step, and the passes over the examples by its end [steps].
    """
    if len(losses) < 2:
        return None
    last, third = epochs[-1], len(losses) // 3 or 1
    before, after = losses[:third], losses[-third:]
    if last >= 2:
        ends = list(zip(losses, epochs, strict=True))
        before = [loss for loss, end in ends if end <= 1 + 1e-6]
        after = [loss for loss, end in ends if end > last - 1 + 1e-6]
    if not before or not after or fmean(after) < fmean(before):
        return None
    parts = ("epoch", "epoch") if last >= 2 else ("steps", "ones")
    return (
        f"the loss did not fall: {fmean(before):.4g} in the first {parts[0]}, {fmean(after):.4g} in the last"
        f" {parts[1]}. Change learning_rate, lower batch_size or raise epochs; `mrt show` shows what the set holds"
    )


def steps_of(count: int, batch: int, epochs: float) -> int:
    """Steps of SFT: each epoch takes all examples, its last step those that are left."""
    return math.ceil(epochs * math.ceil(count / batch))  # as transformers rounds it


def carried_steps_of(count: int, batch: int, epochs: float) -> int:
    """Steps of RL, which all take `batch` problems: the rest of an epoch is carried over to the next."""
    return max(1, math.ceil(round(epochs * count / batch, 6)))


def in_words(
    what: str, count: int, batch: int, epochs: float, warmup: float, *, carried: bool = False, iterations: int = 1
) -> str:
    """A summary of a training: its steps, those that warm up, and the examples left out or trained on again.

    Args:
        what: `examples` or `problems`.
        count, batch: how many there are, and how many a step takes.
        epochs: passes over them.
        warmup: share of the steps that warm up.
        carried: whether all steps are whole (`carried_steps_of`).
        iterations: steps that learn from each batch.
    """
    batches = (carried_steps_of if carried else steps_of)(count, batch, epochs)
    steps = batches * iterations
    if not carried and batch > count:
        text = f"{count} {what}, all in each step (batch_size is {batch}), epochs: {epochs:g}: {steps} steps, the first"
        return f"{text} {warm(steps, warmup)} warm up"
    how = "a step" if iterations == 1 else f"a batch, each for {iterations} steps"
    text = f"{count} {what}, {batch} {how}, epochs: {epochs:g}: {steps} steps, the first {warm(steps, warmup)} warm up"
    if (used := batches * batch) < count:
        return f"{text}; {used} of the {what} are trained on, {count - used} are left out (epochs is below 1)"
    if carried and (more := used - round(epochs * count)) > 0:
        return f"{text}; {more} of the {what} fill the last step, once more than epochs says"
    if not carried and count % batch:
        return f"{text}; the last step of an epoch takes {count % batch}"
    return text


def warm(steps: float, warmup: float) -> int:
    """How many steps warm up: this share of them, at least one, which has the peak rate if it is alone."""
    return max(1, math.ceil(round(steps * warmup, 6)))


def rate(step: int, steps: float, warming: int, kind: str) -> float:
    """The learning rate of a step (from 1), as a share of its peak; above 0 in every step.

    It rises from 1 / `warming` to 1 in the steps that warm up. Then `linear` and `cosine` fall towards 0, which they
    would reach one step after the last. The schedules of transformers begin at 0, so that their first step learns
    nothing. These rates are those of a training that is a step longer, without that step.
    """
    if step <= warming:
        return step / warming
    return SHAPES[kind](max(0.0, (steps + 1 - step) / (steps + 1 - warming)))


SHAPES: dict[str, Callable[[float], float]] = {  # of the share of the steps that is left
    "linear": lambda left: left,
    "cosine": lambda left: 0.5 * (1 - math.cos(math.pi * left)),
    "constant_with_warmup": lambda left: 1.0,
}


class EveryStepLearns:
    """A trainer whose learning rate follows `rate`, and which stops where there is no gradient to go on with.

    transformers makes the schedules that `rate` lacks, and those with `lr_scheduler_kwargs`.
    """

    args: Any
    optimizer: Any
    lr_scheduler: Any
    state: Any

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        from torch.optim.lr_scheduler import LambdaLR

        kind, warmup = self.args.lr_scheduler_type.value, self.args.warmup_steps  # steps, or below 1 their share
        if kind not in SHAPES or self.args.lr_scheduler_kwargs:
            return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]
        if self.lr_scheduler is None:
            warming = int(warmup) if warmup >= 1 else warm(num_training_steps, warmup)

            def share(done: int) -> float:
                return rate(done + 1, num_training_steps, warming, kind)

            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, share)
        return self.lr_scheduler

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Raise ValueError if a gradient is infinite or NaN: so are the weights from here on."""
        super().log(logs, start_time)  # type: ignore[misc]
        if not math.isfinite(norm := float(logs.get("grad_norm", 0.0))):
            raise ValueError(f"step {self.state.global_step}: the norm of the gradient is {norm}; lower learning_rate")


def carried(problems: Sized, batch: int, epoch: int, order: Callable[[int], list[int]]) -> Iterator[list[int]]:
    """The batches of an epoch, all whole, from passes over the problems laid end to end; `order` is that of a pass.

    An epoch has as many batches as hold all problems. Its last one may begin the next pass, which the next epoch goes
    on with: so every problem is seen as often as any other, but for one time.
    """
    count = len(problems)
    first = epoch * math.ceil(count / batch) * batch

    def endless() -> Iterator[int]:
        taken, at = divmod(first, count)
        while True:
            yield from order(taken)[at:]
            taken, at = taken + 1, 0

    each = endless()
    for _ in range(math.ceil(count / batch)):
        yield list(islice(each, batch))
