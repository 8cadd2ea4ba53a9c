"""Base class of all settings: unknown fields, infinite numbers and NaN are errors. And a merge of configurations."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings; its fields have bounds, a default and a description with a reference to the paper."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two configurations merged as Snakemake merges them: groups key by key, all else replaced."""
    both = {
        k: laid_over(below[k], v) if isinstance(v, dict) and isinstance(below.get(k), dict) else v
        for k, v in above.items()
    }
    return {**below, **both}
