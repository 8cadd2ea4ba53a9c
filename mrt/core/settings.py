"""Base class of all settings: unknown fields, infinite numbers and NaN are errors. And merges of configurations."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, model_validator

Group = TypeVar("Group", bound="Settings")


class Settings(BaseModel):
    """A group of settings; its fields have bounds, a default and a description with a reference to the paper.

    A group within it that is given in part keeps the field's default for the rest: `decoding: {max_tokens: 400}` leaves
    the temperature as it is where nothing is given.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _complete_groups(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(given)
        for name, field in cls.model_fields.items() if isinstance(given, dict) else ():
            if not isinstance(given.get(name), dict):
                continue
            group, default = getattr(made, name), field.get_default(call_default_factory=True)
            if isinstance(default, Settings) and type(group) is type(default):
                unset = type(default).model_construct(set(), **dict(default))  # only given fields count as set
                setattr(made, name, overlaid(unset, group))
        return made


def unrepeated(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of its pairs (`object_pairs_hook`); raises ValueError for a repeated key.

    Python's own reading would take the last one.
    """
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"the key {key!r} stands twice; keep one of them")
        mapping[key] = value
    return mapping


def defaults(group: type[BaseModel]) -> dict[str, Any]:
    """The default of each field."""
    return {name: field.get_default(call_default_factory=True) for name, field in group.model_fields.items()}


def overlaid(below: Group, above: Group | None) -> Group:
    """A group, with what another sets of it, and of the groups within it."""
    if above is None:
        return below
    given = {name: getattr(above, name) for name in above.model_fields_set}
    groups = {name: (getattr(below, name), value) for name, value in given.items() if isinstance(value, Settings)}
    both = {name: overlaid(*pair) for name, pair in groups.items() if type(pair[0]) is type(pair[1])}
    return below.model_copy(update=given | both)


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two configurations merged as Snakemake merges them: groups key by key, all else replaced."""
    both = {
        k: laid_over(below[k], v) if isinstance(v, dict) and isinstance(below.get(k), dict) else v
        for k, v in above.items()
    }
    return {**below, **both}


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the list of known names."""
    names = list(known)
    near = get_close_matches(wrong, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names) or 'none'}"
