"""Training methods: the examples or the advantages of a training. See Interfaces in docs/architecture.md.

A method is an object in `mrt/methods/*.py`, or in a file of a user's. So is a variant of RL (mrt.training.variant).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from mrt.core.plugins import Kind, is_in_user_file
from mrt.training.variant import Variant

READABLE = ("rollouts", "prover", "trees", "attempts", "tokenizer")  # artifacts that a method of fine-tuning may read
SPARE = "#332288"  # colour of a method without one


@dataclass(frozen=True)
class RLMethod:
    """A method of RL: its advantages and its prompts."""

    colour: str = SPARE  # in figures; mostly of Okabe and Ito's palette, which colour-blind readers can tell apart
    advantages: Variant | None = None  # None: those of the recipe's `variant`
    prefixes: bool = False  # whether prompts may end inside a thought of the parent
    teacher = False
    asks_new_prompt = False
    only: Literal["thoughts", "backtracking"] | None = None
    reads: tuple[str, ...] = ()  # and the rollouts, if prompts have prefixes
    settings: tuple[str, type[BaseModel]] | None = None

    @property
    def parts(self) -> tuple[Any, ...]:
        """The definitions that decide the training signal."""
        return self.advantages.parts if self.advantages else ()


@dataclass(frozen=True)
class SFTMethod:
    """A method of fine-tuning: how its examples are made, and from which artifacts."""

    colour: str
    reads: tuple[str, ...]  # rollouts, prover, trees; attempts; tokenizer
    examples: Callable[..., Any]
    settings: tuple[str, type[BaseModel]] | None = None  # their name in a model of the configuration, and their class
    teacher: bool = False  # whether it may learn from another model than its parent
    asks_new_prompt: bool = False  # whether it learns another prompt than its parent's
    only: Literal["thoughts", "backtracking"] | None = None

    @property
    def parts(self) -> tuple[Any, ...]:
        """The definitions that decide the training signal."""
        return (self.examples, *((self.settings[1],) if self.settings else ()))

    @property
    def of_own_traces(self) -> bool:
        """Whether its examples are traces of the parent, to which later iterations may add theirs."""
        return "rollouts" in self.reads and not self.teacher

    @property
    def of_trees(self) -> bool:
        """Whether its examples are made from solution trees."""
        return "trees" in self.reads


Method = RLMethod | SFTMethod


METHODS = Kind("method", "methods", (SFTMethod, RLMethod))
VARIANTS = Kind("variant", "methods", (Variant,))


def methods() -> dict[str, Method]:
    """The methods of mrt/methods by name."""
    return METHODS.all()


def variants() -> dict[str, Variant]:
    """The variants of mrt/methods by name."""
    return VARIANTS.all()


def one_of(names: Callable[[], Iterable[str]]) -> Callable[[dict[str, Any]], None]:
    """For the schema of a text: one of these names, which are listed late, or `FILE.py:NAME`."""

    def extend(field: dict[str, Any]) -> None:
        text = next((each for each in field.get("anyOf", [field]) if each.get("type") == "string"), field)
        del text["type"]
        choices = [{"enum": [*names()], "type": "string"}, {"pattern": r"\.py:\w+$", "type": "string"}]
        field["anyOf"] = [*choices, *(each for each in field.get("anyOf", []) if each)]

    return extend


def method_named(reference: str) -> Method:
    """The method that a model's `method` names. Raises ValueError as `Kind.find` does."""
    method: Method = METHODS.find(reference)
    if isinstance(method, SFTMethod) and (unknown := [item for item in method.reads if item not in READABLE]):
        raise ValueError(f"{reference}: it reads {unknown[0]!r}, which is none of {', '.join(READABLE)}")
    if is_in_user_file(reference) and method.settings and method.settings[0] != "settings":
        raise ValueError(
            f"{reference}: settings of a method in a file are named `settings`, not {method.settings[0]!r}"
        )
    return method


def variant_named(reference: str) -> Variant:
    """The variant that `rl.variant` names. Raises ValueError as `Kind.find` does."""
    variant: Variant = VARIANTS.find(reference)
    return variant


def advantages_of(method: str, variant: str) -> Variant:
    """The variant by which a method of RL trains: fixed by the method, or named by the recipe."""
    known_method = method_named(method)
    if isinstance(known_method, SFTMethod):
        raise ValueError(f"{method} is no method of RL")
    return known_method.advantages or variant_named(variant)


def is_chosen_by_recipe(method: str) -> bool:
    """Whether the recipe's `variant` says by which advantages a method of RL trains."""
    return getattr(method_named(method), "advantages", True) is None


def parts_of(method: str, variant: str = "") -> list[str]:
    """The definitions that a stage takes from a method's file, as a fingerprint takes them (`Stage.plugins`)."""
    return METHODS.starts(method) + (VARIANTS.starts(variant) if variant and is_chosen_by_recipe(method) else [])
