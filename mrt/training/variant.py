"""RL variants: pure functions of a group that give rewards or advantages. See Interfaces in docs/architecture.md."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import Parameter, signature
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from mrt.core.plugins import Function, located

Asks = Literal["nothing", "stop", "prefix", "boundaries", "continuations", "budgets"]
Gives = Literal["advantages", "rewards", "centred rewards"]
Boundaries = tuple[Sequence[int], Sequence[float]]  # tokens up to each place in a completion, and J or V there
Refuses = Callable[[Any], Iterable[tuple[str, str]]]  # the fields of a recipe with which it would be another, and why


@dataclass(frozen=True)
class Group:
    """The completions of one prompt: tensors of one value a completion, on the CPU."""

    outcomes: Any  # r: 1 if the answer is right, else 0
    penalties: Any  # 0 or less: the penalty of an overlong completion (`overlong_buffer`)
    lengths: Any  # tokens
    J: Any = None  # asks prefix, boundaries: J(mu; z_0:j) of the prompt; asks continuations: V of the prompt
    boundaries: Sequence[Boundaries] = ()  # asks boundaries, continuations, budgets: of each completion; not its end
    stopped: Any = None  # asks stop: whether the completion was to answer at once

    @property
    def rewards(self) -> Any:
        """Outcomes, less what length costs [completions]."""
        return self.outcomes + self.penalties

    def part(self, which: slice) -> "Group":
        """The group of these completions alone."""
        return replace(self, **{name: values[which] for name, values in vars(self).items() if values is not None})


@dataclass(frozen=True)
class Variant(Function):
    """A pure function of a group, its kind of query to mu (`asks`), and its kind of result (`gives`)."""

    asks: Asks
    gives: Gives
    refuses: Refuses

    @property
    def asks_mu(self) -> bool:
        """Whether J is estimated for it; a completion after the stop phrase is sampled like the others."""
        return self.asks in ("prefix", "boundaries", "budgets")

    @property
    def forces(self) -> bool:
        """Whether answers are forced, for which it needs the texts of the template."""
        return self.asks_mu or self.asks == "stop"

    @property
    def forces_at_prompts(self) -> bool:
        """Whether answers are forced at the prompts themselves."""
        return self.forces and self.asks != "budgets"

    @property
    def cuts(self) -> bool:
        """Whether completions are cut into episodes."""
        return self.asks in ("boundaries", "continuations")

    @property
    def asks_along(self) -> bool:
        """Whether something is estimated inside completions, so that their tokens differ in their advantages."""
        return self.cuts or self.asks == "budgets"

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The settings that it reads, by name."""
        return dict(list(signature(self.function).parameters.items())[1:])

    def queries(self, prompts: float, completions: float, episodes: float, budgets: float = 0) -> float:
        """Prefixes at which it asks, given how many prompts, completions, and episodes and budgets of one there are.

        Completions of a group share the prefix of their prompt.
        """
        inside = completions * (1 + episodes)
        counts = {"prefix": prompts, "boundaries": inside, "continuations": inside, "budgets": completions * budgets}
        return counts.get(self.asks, 0.0)

    def check(self, fields: Container[str], settings: Collection[str]) -> None:
        """Raise ValueError if a parameter has no value, or a setting no parameter, given the fields of the recipe."""
        free = {name: parameter for name, parameter in self.parameters.items() if name not in fields}
        lacking = [name for name, each in free.items() if name not in settings and each.default is Parameter.empty]
        if lacking:
            raise ValueError(f"the {self.name} variant needs `settings: {{{lacking[0]}: ...}}`")
        if unknown := [name for name in settings if name not in free]:
            has = f"those of {self.name} are {', '.join(free)}" if free else f"{self.name} has none"
            raise ValueError(f"settings: no parameter {', '.join(unknown)}; {has}")


def none_refused(recipe: Any) -> tuple[()]:
    """The refusals of a variant that works with every recipe."""
    return ()


def variant(
    asks: Asks = "nothing", gives: Gives = "advantages", refuses: Refuses = none_refused
) -> Callable[[Callable[..., Any]], Variant]:
    """Decorate a function of a group (Variant in docs/architecture.md).

    Args:
        asks: `nothing`; `stop`, half of the completions answer at once; `prefix`, J at each prompt; `boundaries`, J at
            the end of each episode too. `continuations`: at the same places, the mean outcome of continuations.
            `budgets`: J where a thought is cut at token budgets.
        gives: `advantages` as they are; `rewards` or `centred rewards`, from which TRL makes advantages.
        refuses: a function of a recipe that gives (field, why) for each value with which it would be another method.

    Raises:
        ValueError: for another word, and for rewards with J or V, since these follow after them.
    """
    for name, word, words in (("asks", asks, get_args(Asks)), ("gives", gives, get_args(Gives))):
        if word not in words:
            raise ValueError(f"{name}: {word!r} is none of {', '.join(words)}")
    if asks not in ("nothing", "stop") and gives != "advantages":
        raise ValueError(f"a variant that asks mu at {asks} gives advantages, not {gives}")
    return lambda function: Variant(function, asks, gives, refuses)


def values_of(variant: Variant, group: Group, settings: Mapping[str, Any]) -> Any:
    """The values of a variant for a group [completions], or [completions, tokens]: a float32 tensor on the CPU.

    Raises ValueError if the values are not finite, or not as many as there are completions.
    """
    import torch

    read = {name: settings[name] for name in variant.parameters if name in settings}
    with located(variant.function):
        values = torch.as_tensor(variant.function(group, **read), dtype=torch.float32)
    count = len(group.outcomes)
    if values.dim() not in (1, 2) or len(values) != count or (values.dim() == 2 and variant.gives != "advantages"):
        wanted = f"[{count}]" + (f" or [{count}, tokens]" if variant.gives == "advantages" else "")
        raise ValueError(
            f"variant {variant.name}: {variant.gives} of shape {list(values.shape)}; it has to be {wanted}"
        )
    if not values.isfinite().all():
        raise ValueError(f"variant {variant.name}: {variant.gives} that are infinite or NaN, of {group}")
    return values


def by_token(rows: Sequence[Any]) -> Any:
    """A tensor [completions, tokens] of rows of different lengths, with 0 after the end of each."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    return pad_sequence([torch.as_tensor(row, dtype=torch.float32) for row in rows], batch_first=True)


def by_episode(values: npt.ArrayLike, ends: Sequence[int], tokens: int) -> npt.NDArray[np.float64]:
    """Values of the parts of a completion as values of its tokens [tokens].

    Args:
        values: of each part [parts].
        ends: tokens up to the end of each part but the last, increasing [parts - 1].
        tokens: tokens of the completion.
    """
    return np.repeat(np.asarray(values, dtype=np.float64), np.diff([0, *ends, tokens]))
