"""The command line of a stage is its documented interface: a pydantic model whose fields become options.

    python -m mrt.sampling --help

A group of settings is given whole as JSON (`--recipe '{"epochs": 2}'`) or field by field (`--recipe.epochs 2`).
"""

import sys
from typing import NoReturn

from pydantic import ValidationError
from pydantic_settings import BaseSettings, CliApp, PydanticBaseSettingsSource, SettingsConfigDict


class Stage(BaseSettings):
    """Base of every stage: fields are options, `cli_cmd` does the work."""

    model_config = SettingsConfigDict(extra="forbid", cli_kebab_case=False, cli_avoid_json=True)

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
    spec = sys.modules["__main__"].__spec__
    name = spec.name if spec else stage.__module__
    try:
        CliApp.run(stage)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors()]
        fail("\n".join([f"{name}: {len(lines)} option(s) are not right:", *lines]))
    except (ValueError, FileNotFoundError) as error:
        fail(f"{name}: {error}")


def fail(message: str) -> NoReturn:
    """Print a message for people on standard error and exit with code 1."""
    print(message, file=sys.stderr)
    sys.exit(1)
