"""Digests of what determines a result besides code: settings as canonical JSON, files, weights."""

import hashlib
import json
from collections.abc import Collection, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mrt.core.settings import Settings, defaults

DIGITS = 16  # hexadecimal digits of a digest: 64 bits


def digest(*parts: str | bytes) -> str:
    """A hash of the parts, in hexadecimal."""
    state = hashlib.blake2b(digest_size=DIGITS // 2)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8))
        state.update(data)
    return state.hexdigest()


def off(value: object) -> bool:
    """Whether this value turns a setting off: by convention, None and False do."""
    return value is None or value is False


def slice_of(settings: BaseModel, without: Collection[str] = ()) -> str:
    """A group of settings as canonical JSON, perhaps without some fields: rules keep it in their params and pass it on.

    A field that is None or False, and is so by default, is left out. So a new option of this kind changes no slice and
    no fingerprint.
    """
    return json.dumps(told(settings, settings.model_dump(mode="json", exclude=set(without))), sort_keys=True)


def told(settings: object, dumped: object) -> object:
    """The output of `model_dump`, without the fields that are off and are off by default."""
    if isinstance(settings, BaseModel) and isinstance(dumped, dict):
        fields = type(settings).model_fields
        return {
            name: told(getattr(settings, name), value)
            for name, value in dumped.items()
            if not (off(value) and off(fields[name].default))
        }
    if isinstance(settings, dict) and isinstance(dumped, dict):
        return {name: told(settings.get(name), value) for name, value in dumped.items()}
    if isinstance(settings, list | tuple) and isinstance(dumped, list) and len(settings) == len(dumped):
        return [told(one, value) for one, value in zip(settings, dumped, strict=True)]
    return dumped


def compact(value: Any, below: Any = None) -> Any:
    """Settings as JSON values, without fields at their default: the code of the stage has the defaults.

    The defaults of a group are those `below` it, of the setting that holds it, or else of its class
    (`mrt.core.settings`). The field `kind` stays, since it tells one parameterization from the other.
    """
    if isinstance(value, BaseModel):
        default = dict(below) if type(below) is type(value) else defaults(type(value))
        own = {name: getattr(value, name) for name in default}
        filled_in = default if isinstance(value, Settings) else {}
        return {n: compact(v, filled_in.get(n)) for n, v in own.items() if n == "kind" or v != default[n]}
    if isinstance(value, dict):
        return {name: compact(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [compact(each) for each in value]
    return str(value) if isinstance(value, Path | date) else value


def options_of(**options: Any) -> str:
    """Options of a stage as one JSON, in canonical form; those that are off (None, False) are left out."""
    return json.dumps({name: compact(v) for name, v in options.items() if not off(v)}, sort_keys=True)


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
