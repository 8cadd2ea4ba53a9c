"""Digests of what determines a result besides code: settings as canonical JSON, files, weights."""

import hashlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

DIGITS = 16  # hexadecimal digits of a digest: 64 bits


def digest(*parts: str | bytes) -> str:
    """A hash of the parts, in hexadecimal."""
    state = hashlib.blake2b(digest_size=DIGITS // 2)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8))
        state.update(data)
    return state.hexdigest()


def turns_off(value: object) -> bool:
    """Whether this value turns a setting off: by convention, None and False do."""
    return value is None or value is False


def canonical(value: Any, without: Collection[str] = ()) -> Any:
    """Settings as JSON values, perhaps without some fields, in the one form that params and keys compare.

    All values are included, defaults too, so that a stage gets the settings of the plan. Only a field is left out that
    is off (`turns_off`) and would be by default: of its class, and of the setting that holds its group. So a new option
    of this kind changes no params and no keys.
    """
    values = switched_on(value, to_jsonable_python(value))  # as their types say: a number of a float field is a float
    return {name: each for name, each in values.items() if name not in without} if without else values


def switched_on(value: Any, dumped: Any, default: Any = None) -> Any:
    """The `dumped` value, without fields that are off and are off by default; `default` is that of its setting."""
    if isinstance(value, BaseModel):
        fields, filled_in = type(value).model_fields, dict(default) if type(default) is type(value) else {}
        defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()} | filled_in
        return {
            name: switched_on(getattr(value, name), each, defaults[name])
            for name, each in dumped.items()
            if not (turns_off(each) and turns_off(fields[name].default) and turns_off(defaults[name]))
        }
    if isinstance(value, dict):
        return {name: switched_on(value.get(name), each) for name, each in dumped.items()}
    if isinstance(value, list | tuple):
        return [switched_on(one, each) for one, each in zip(value, dumped, strict=True)]
    return dumped


def slice_of(settings: BaseModel, without: Collection[str] = ()) -> str:
    """A group of settings as canonical JSON, perhaps without some fields."""
    return json.dumps(canonical(settings, without), sort_keys=True)


def options_of(**options: Any) -> str:
    """Options of a stage as canonical JSON; those that are off are left out."""
    return json.dumps(
        {name: canonical(value) for name, value in options.items() if not turns_off(value)}, sort_keys=True
    )


def digest_of_files(paths: Sequence[Path]) -> str:
    """Hash of the names and contents of files; for a folder, of all files in it."""
    parts: list[str | bytes] = []
    for path in paths:
        for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "blake2b").digest()
            parts += [str(file.relative_to(path)) if path.is_dir() else file.name, content]
    return digest(*parts)


def local_folder(model: str) -> Path:
    """The folder of a checkpoint: relative to the working folder; that of a shipped base, to the package."""
    shipped = Path(__file__).parents[2] / model
    return shipped if model.startswith("mrt/toy/") and not Path(model).is_dir() else Path(model)


def identity_of_model(model: str, revision: str | None = None) -> str:
    """Identity of a model's weights and tokenizer: a hash of its folder's files, or its hub id and revision."""
    folder = local_folder(model)
    if not folder.is_dir():
        return f"{model}@{revision}"
    return digest_of_files(
        sorted(f for f in folder.iterdir() if f.suffix in (".json", ".safetensors", ".jinja", ".txt", ".model"))
    )
