"""The command line of a stage is its documented interface: a pydantic model whose fields become options.

    python -m mrt.sampling.rollouts --help

A group of settings is given whole as JSON (`--recipe '{"epochs": 2}'`) or field by field (`--recipe.epochs 2`). Rules
give all options that decide the result as one JSON (`--settings`), and those that do not as another (`--execution`).
"""

import json
import os
import sys
import time
from abc import abstractmethod
from typing import Any, ClassVar, NoReturn

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliApp, PydanticBaseSettingsSource, SettingsConfigDict

from mrt.core import storage
from mrt.core.fingerprint import fingerprint, reached, versions

PLACES = {"out", "out_rules", "log", "history", "state", "cache"}  # options that say where things go, not what they are
GROUPS = {"settings", "execution"}  # options that hold others


class Stage(BaseSettings):
    """Base of every stage: fields are options, `cli_cmd` does the work."""

    model_config = SettingsConfigDict(extra="forbid", cli_kebab_case=False, cli_avoid_json=True)

    settings: dict[str, Any] = Field({}, description="Options by name, as one JSON: those that decide the result.")
    execution: dict[str, Any] = Field({}, description="Options by name, as one JSON: those that decide no result.")
    track_versions: bool = Field(True, description="Count the versions of decisive libraries into the fingerprint.")

    timed: ClassVar[bool] = True  # whether it says at the end how long it took

    @model_validator(mode="before")
    @classmethod
    def _options_of_groups(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The options of `settings` and `execution` as if given by themselves; what is given by itself goes before."""
        groups = [json.loads(g) if isinstance(g := given.get(name, {}), str) else g for name in sorted(GROUPS)]
        return {**groups[0], **groups[1], **{name: value for name, value in given.items() if name not in GROUPS}}

    @classmethod
    def module(cls) -> str:
        """The module that the stage is run as."""
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        return spec.name if spec and spec.name.startswith("mrt.") else cls.__module__

    @abstractmethod
    def cli_cmd(self) -> None:
        """The work of the stage."""

    def carry_out(self) -> None:
        """Do the work; the tables that are written meanwhile say what made them."""
        name = self.module()
        storage.provenance = {
            "stage": name,
            "options": self.model_dump(mode="json", exclude_none=True, exclude=PLACES | GROUPS),
            "code": fingerprint(name, with_versions=self.track_versions),
            "definitions": reached(name).definitions,
            "versions": versions(name) if self.track_versions else {},
        }
        since = time.monotonic()
        self.cli_cmd()
        if self.timed:
            print(f"took {time.monotonic() - since:.1f} s", flush=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Options come from the command line alone: an environment variable of an option's name means nothing."""
        return (init_settings,)


def run(stage: type[Stage]) -> None:
    """Parse the command line and run the stage; what the user can mend ends as one line and exit code 1."""
    name = stage.module()
    try:
        CliApp.run(stage, cli_cmd_method_name="carry_out")
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors()]
        fail("\n".join([f"{name}: {len(lines)} option(s) are not right:", *lines]))
    except BrokenPipeError:  # `| head` has read enough; what is still in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        fail(f"{name}: {error}")


def fail(message: str) -> NoReturn:
    """Print a message for people on standard error and exit with code 1."""
    print(message, file=sys.stderr)
    sys.exit(1)
