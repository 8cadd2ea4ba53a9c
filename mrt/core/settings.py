"""Base class of all settings: unknown fields, infinite numbers and NaN are errors."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings; its fields have bounds, a default and a description with a reference to the paper."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
