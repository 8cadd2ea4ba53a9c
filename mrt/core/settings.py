"""The base of all settings: a field that does not exist, and a number that is none, are errors."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings; its fields have bounds, a default and a description with its place in the paper."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
