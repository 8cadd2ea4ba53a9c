"""The folder of a model's files: a checkpoint folder, or a hub model's snapshot in the hub's cache.

Every stage loads weights and tokenizers from this folder. So all stages, including TRL's engine, use the requested
revision, and a node without a network works once the model was downloaded elsewhere.
"""

import json
from pathlib import Path

# Files that a model is loaded from: weights as safetensors, settings, tokenizer; never pickled weights.
FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
NOT = ("*/*", "consolidated*")  # other formats of the same weights
WEIGHTS = "model.safetensors"
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def folder_of(model: str, revision: str | None = None) -> Path:
    """The folder of a checkpoint; for a hub model, of its snapshot, downloaded if the cache has no complete one.

    The network is not used if the cache has one. A branch is then what it was when it was downloaded.

    Args:
        model: checkpoint folder, or hub id.
        revision: commit, tag or branch of a hub model; `main` if None.

    Raises:
        FileNotFoundError: there is no such folder, and it is neither in the cache nor can it be downloaded.
    """
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    why = ""
    for local in (True, False):
        try:
            found = Path(
                snapshot_download(
                    model,
                    revision=revision,
                    allow_patterns=list(FILES),
                    ignore_patterns=list(NOT),
                    local_files_only=local,
                )
            )
        except LocalEntryNotFoundError as error:
            why = str(error).strip()
            continue
        except (OSError, ValueError) as error:  # not there, no access, no name of a hub model
            why = str(error).strip()
            break
        if not (lacking := missing(found)):
            return found
        why = f"its snapshot lacks {', '.join(lacking)}"
    asked = f" --revision {revision}" if revision else ""
    raise FileNotFoundError(
        f"{model}: there is no such folder, and the hub's model of this name (revision {revision or 'main'}) is neither"
        f" whole in the cache, {constants.HF_HUB_CACHE}, nor can it be downloaded from here. Where there is a network:"
        f" hf download {model}{asked}\n({why})"
    )


def cached(model: str, revision: str | None = None) -> Path | None:
    """The folder of a hub model's snapshot, if the hub's cache has a whole one."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:  # no name of a hub model
        return None
    return Path(file).parent if isinstance(file, str) and not missing(Path(file).parent) else None


def shards(folder: Path) -> list[str]:
    """The files of a checkpoint's weights, there or not: those that its index names, else the one usual file."""
    index = folder / "model.safetensors.index.json"
    return sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else [WEIGHTS]


def has_chat_template(folder: Path) -> bool:
    """Whether a checkpoint folder's tokenizer has a chat template, in a file of its own or among its settings."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    return (folder / "chat_template.jinja").is_file() or bool(settings.get("chat_template"))


def missing(folder: Path) -> list[str]:
    """The files that a checkpoint folder lacks: settings, all shards of the weights that its index names, tokenizer."""
    needed = ("config.json", "tokenizer_config.json", *shards(folder))
    lacking = [n for n in needed if not (folder / n).is_file()]
    return lacking if any((folder / n).is_file() for n in VOCABULARIES) else [*lacking, VOCABULARIES[0]]
