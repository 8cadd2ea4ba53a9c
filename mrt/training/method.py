"""Training methods: what a model learns from. See Interfaces in docs/architecture.md.

A method is an object in `mrt/methods/*.py`, or in a file of a user's. So is a variant of RL (mrt.training.variant).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from mrt.core.fingerprint import PACKAGE
from mrt.core.settings import suggestion
from mrt.core.user_file import is_in_user_file, modules_in, named
from mrt.training.variant import Variant

READABLE = ("rollouts", "prover", "trees", "attempts", "tokenizer")  # what a method of fine-tuning may read
SPARE = "#332288"  # colour of a method that has none of its own


@dataclass(frozen=True)
class RLMethod:
    """A method of RL: its advantages, and what its prompts are."""

    colour: str = SPARE  # in figures; mostly of Okabe and Ito's palette, which colour-blind readers can tell apart
    advantages: Variant | None = None  # None: those of the recipe's `variant`
    prefixes: bool = False  # whether prompts may end inside a thought of the parent
    teacher = False
    asks_new_prompt = False
    only: Literal["thoughts", "backtracking"] | None = None
    reads: tuple[str, ...] = ()  # and the rollouts, if prompts have prefixes
    settings: tuple[str, type[BaseModel]] | None = None


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
    def of_own_traces(self) -> bool:
        """Whether its examples are traces of the parent, to which later iterations may add theirs."""
        return "rollouts" in self.reads and not self.teacher

    @property
    def of_trees(self) -> bool:
        """Whether its examples are made from solution trees."""
        return "trees" in self.reads


Method = RLMethod | SFTMethod


@cache
def known(*kinds: type) -> dict[str, Any]:
    """The objects of these kinds in the modules of mrt/methods, by name.

    Raises ValueError if a module cannot be imported, or two objects have one name.
    """
    objects: dict[str, Any] = {}
    for module in modules_in(Path(__file__).parents[1] / "methods", f"{PACKAGE.name}.methods"):
        for name, value in vars(module).items():
            if isinstance(value, kinds) and objects.setdefault(name, value) is not value:
                raise ValueError(f"{module.__name__}: another module has a {name} too; give it another name")
    return objects


def methods() -> dict[str, Method]:
    """The methods of mrt/methods by name."""
    return known(SFTMethod, RLMethod)


def variants() -> dict[str, Variant]:
    """The variants of mrt/methods by name."""
    return known(Variant)


def one_of(names: Callable[[], Iterable[str]]) -> Callable[[dict[str, Any]], None]:
    """For the schema of a text: one of these names, which are listed late, or `FILE.py:NAME`."""

    def extend(field: dict[str, Any]) -> None:
        text = next((each for each in field.get("anyOf", [field]) if each.get("type") == "string"), field)
        del text["type"]
        choices = [{"enum": [*names()], "type": "string"}, {"pattern": r"\.py:\w+$", "type": "string"}]
        field["anyOf"] = [*choices, *(each for each in field.get("anyOf", []) if each)]

    return extend


def chosen(reference: str, what: str, *kinds: type) -> Any:
    """What a setting names: NAME of mrt/methods, or `FILE.py:NAME`. Raises ValueError, with file and line of a file."""
    if not is_in_user_file(reference):
        objects = known(*kinds)
        if reference not in objects:
            raise ValueError(f"there is no {what} {reference!r}{suggestion(reference, objects)} (or FILE.py:NAME)")
        return objects[reference]
    value, file = named(reference)
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{file}: {reference.rpartition(':')[2]} is no {what}, a {names}")
    return value


def method_named(reference: str) -> Method:
    """The method that a model's `method` names. Raises ValueError as `chosen` does."""
    method: Method = chosen(reference, "method", SFTMethod, RLMethod)
    if isinstance(method, SFTMethod) and (unknown := [item for item in method.reads if item not in READABLE]):
        raise ValueError(f"{reference}: it reads {unknown[0]!r}, which is none of {', '.join(READABLE)}")
    if is_in_user_file(reference) and method.settings and method.settings[0] != "settings":
        raise ValueError(
            f"{reference}: settings of a method in a file are named `settings`, not {method.settings[0]!r}"
        )
    return method


def variant_named(reference: str) -> Variant:
    """The variant that `rl.variant` names. Raises ValueError as `chosen` does."""
    variant: Variant = chosen(reference, "variant", Variant)
    return variant


def advantages_of(method: str, variant: str) -> Variant:
    """The variant by which a method of RL trains: its own, or the one that the recipe names."""
    known_method = method_named(method)
    if isinstance(known_method, SFTMethod):
        raise ValueError(f"{method} is no method of RL")
    return known_method.advantages or variant_named(variant)


def is_chosen_by_recipe(method: str) -> bool:
    """Whether the recipe's `variant` says by which advantages a method of RL trains."""
    return getattr(method_named(method), "advantages", True) is None


def parts_of(method: str, variant: str = "") -> list[str]:
    """The definitions that a stage takes from a method's file, as a fingerprint takes them (`Stage.plugins`)."""
    if is_in_user_file(method):
        return [method, *(variant_parts(variant) if is_chosen_by_recipe(method) else [])]
    known_method = method_named(method)
    if isinstance(known_method, RLMethod):
        advantages = known_method.advantages
        return [f"{advantages.function.__module__}:{advantages.name}"] if advantages else variant_parts(variant)
    definitions: list[Any] = [known_method.examples]
    definitions += [known_method.settings[1]] if known_method.settings else []
    return [f"{each.__module__}:{each.__name__}" for each in definitions]


def variant_parts(variant: str) -> list[str]:
    """The definition of a variant, as a fingerprint takes it."""
    if is_in_user_file(variant):
        return [variant]
    function = variant_named(variant).function
    return [f"{function.__module__}:{function.__name__}"]
