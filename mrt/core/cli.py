"""The command line of a stage is its documented interface: a pydantic model whose fields become options.

    python -m mrt.sampling.rollouts --help

A group of settings is passed whole as JSON (`--recipe '{"epochs": 2}'`) or field by field (`--recipe.epochs 2`). Rules
pass all options that affect the result as one JSON (`--settings`), and those that do not as another (`--execution`),
which has lists of files too. `--settings -` reads it from standard input: Linux takes no argument of more than 128 KiB,
and a figure of many runs has as many files.
"""

import json
import os
import shlex
import sys
import time
from abc import abstractmethod
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliApp, PydanticBaseSettingsSource, SettingsConfigDict

from mrt.core import storage
from mrt.core.fingerprint import fingerprint, reached, versions
from mrt.core.lock import held, refuse_if_superseded
from mrt.core.settings import laid_over, unrepeated

PLACES = {"out", "out_rules", "log", "history", "state", "cache"}  # options that only say where files are
GROUPS = {"settings", "execution"}  # options that contain other options


class Stage(BaseSettings):
    """Base of every stage: fields are options, `cli_cmd` does the work."""

    model_config = SettingsConfigDict(extra="forbid", cli_kebab_case=False, cli_avoid_json=True)

    settings: dict[str, Any] = Field({}, description="JSON of options by name: those that affect the result.")
    execution: dict[str, Any] = Field({}, description="JSON of options by name: those that do not affect the result.")
    track_versions: bool = Field(True, description="Include versions of decisive libraries in the fingerprint.")

    timed: ClassVar[bool] = True  # whether the stage prints its duration at the end

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """In --help, a stage's own options come first."""
        fields = cls.__pydantic_fields__
        for name in Stage.__pydantic_fields__:
            fields[name] = fields.pop(name)

    @model_validator(mode="before")
    @classmethod
    def _options_of_groups(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Unpack the groups into single options; an option given by itself takes precedence."""
        single = {name: value for name, value in given.items() if name not in GROUPS}
        # a recipe has fields in both
        return laid_over(given.get("execution", {}), given.get("settings", {})) | single

    @classmethod
    def module(cls) -> str:
        """The module that the stage is run as."""
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if not spec and sys.argv[0].endswith(".py"):  # a user's file (`mrt.core.user_file`)
            return sys.argv[0]
        return spec.name.removesuffix(".__main__") if spec and spec.name.startswith("mrt.") else cls.__module__

    def plugins(self) -> tuple[str, ...]:
        """The definitions that the stage loads by their names (`mrt.core.plugins.Kind.starts`)."""
        return ()

    def lock(self) -> Path | None:
        """The lock that the stage holds while it works (mrt/core/lock.py), if it samples or trains."""
        return None

    @abstractmethod
    def cli_cmd(self) -> None:
        """The work of the stage."""

    def carry_out(self) -> None:
        """Do the work; the tables that it writes record their provenance."""
        name, plugins = self.module(), self.plugins()
        refuse_if_superseded()
        check_planned(name, *plugins)
        storage.provenance = {
            "stage": name,
            "options": self.model_dump(mode="json", exclude_none=True, exclude=PLACES | GROUPS),
            "code": fingerprint(name, *plugins, with_versions=self.track_versions),
            "definitions": reached(name, *plugins).definitions,
            "versions": versions(name, *plugins) if self.track_versions else {},
            **({"plugins": plugins} if plugins else {}),
        }
        # a rule's command has groups, and its log says what to run by hand
        if GROUPS & {argument.removeprefix("--") for argument in sys.argv}:
            print(shlex.join([*command_of(name), *sys.argv[1:]]), flush=True)
        since, lock = time.monotonic(), self.lock()
        with held(lock) if lock else nullcontext():
            self.cli_cmd()
        refuse_if_superseded()
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
        """Options come from the command line only: environment variables named like an option are ignored."""
        return (init_settings,)


def command_of(stage: str) -> list[str]:
    """The command that runs a stage: a module, or a user's file."""
    runner = [f"{__package__}.user_file"] if stage.endswith(".py") else []  # spelled out, it would count as reached
    return ["python", "-m", *runner, stage]


def check_planned(stage: str, *plugins: str) -> None:
    """Raise ValueError if a stage's code differs from the code that its run of Snakemake was planned with.

    Snakemake would record the planned code. `MRT_PLANNED` names the file of the plan's fingerprints. Without it, by
    hand, the current code is run.
    """
    file = Path(os.environ.get("MRT_PLANNED", ""))
    if not file.is_file():
        return
    planned = {name: hashed for name, hashed, _ in json.loads(file.read_text())}
    if planned.get(" ".join((stage, *plugins))) not in (None, reached(stage, *plugins).hashed):
        raise ValueError(
            "its code has changed since this run of Snakemake began, which would record the code of then;"
            " nothing was made. Start snakemake again: it plans with the code that is there now"
        )


def run(stage: type[Stage]) -> None:
    """Parse the command line and run the stage; an error that the user can fix ends as a message and exit code 1."""
    name = stage.module()
    sys.argv[1:] = [sys.stdin.read() if argument == "-" else argument for argument in sys.argv[1:]]
    stage.model_config["cli_prog_name"] = " ".join(command_of(name))  # not the name of a file, in --help
    try:
        for argument in sys.argv[1:]:
            refuse_repeated_keys(argument)
        CliApp.run(stage, cli_cmd_method_name="carry_out")
    except ValidationError as error:
        sys.exit(
            f"{name}: {error.error_count()} option(s) are not right:\n"
            + "\n".join(f"  {'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors())
        )
    except BrokenPipeError:  # `| head` has read enough; discard the rest of the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        if name.endswith(".py"):  # in a user's own code the line matters too
            raise
        sys.exit(f"{name}: {error}")


def refuse_repeated_keys(argument: str) -> None:
    """Raise ValueError if an option that is a JSON object has a key twice."""
    if argument.startswith("{"):
        with suppress(json.JSONDecodeError):  # which pydantic explains
            json.loads(argument, object_pairs_hook=unrepeated)
