"""A model's files, in a checkpoint folder or in a hub model's snapshot in the hub's cache, and its tokenizer.

Every stage loads weights and tokenizers from this folder. So all stages, including TRL's engine, use the requested
revision, and a node without a network works once the model was downloaded elsewhere.
"""

import functools
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mrt.core.digest import identity_of_model, local_folder

# Files that a model is loaded from: weights as safetensors, settings, tokenizer; never pickled weights.
FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
NOT = ("*/*", "consolidated*")  # other formats of the same weights
WEIGHTS = "model.safetensors"
GENERATION = "generation_config.json"
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
SAMPLE = "Wait, 5 + 3 = 8.\n\nSo it is \\boxed{8}."  # that a tokenizer has to give back
ANSWER = "An answer."  # in a chat that shows how answers end
MENDED: list[TemporaryDirectory[str]] = []  # kept as long as this process runs


def folder_of(model: str, revision: str | None = None) -> Path:
    """The folder of a checkpoint; for a hub model, of its snapshot, downloaded if the cache has no complete one.

    The network is not used if the cache has one. A branch is then at its commit of the time of the download.

    Args:
        model: checkpoint folder, or hub id.
        revision: commit, tag or branch of a hub model; `main` if None.

    Raises:
        FileNotFoundError: there is no such folder, and it is neither in the cache nor can it be downloaded.
    """
    if local_folder(model).is_dir():
        return local_folder(model)
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    why = ""
    for local in (True, False):
        try:
            folder = Path(
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
        if not (lacking := missing(folder)):
            return folder
        why = f"its snapshot lacks {', '.join(lacking)}"
    option = f" --revision {revision}" if revision else ""
    raise FileNotFoundError(
        f"{model}: there is no such folder, and the hub's model of this name (revision {revision or 'main'}) is neither"
        f" whole in the cache, {constants.HF_HUB_CACHE}, nor can it be downloaded from here. Where there is a network:"
        f" hf download {model}{option}\n({why})"
    )


@functools.cache
def identity(model: str, revision: str | None = None) -> str:
    """Identity of the weights that are loaded: as `identity_of_model`; for a hub model, its id and commit.

    A branch, and so a model without a revision, may be at another commit tomorrow. Once in a process, as gigabytes may
    be read for it.
    """
    if local_folder(model).is_dir():
        return identity_of_model(model)
    return f"{model}@{folder_of(model, revision).name}"


def cached(model: str, revision: str | None = None) -> Path | None:
    """The folder of a hub model's snapshot, if the hub's cache has a whole one."""
    file = in_cache(model, "config.json", revision)
    return file.parent if file and not missing(file.parent) else None


def in_cache(model: str, name: str, revision: str | None = None) -> Path | None:
    """A file of a hub model, if the hub's cache has it."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(model, name, revision=revision)
    except HFValidationError:  # no name of a hub model
        return None
    return Path(file) if isinstance(file, str) else None


def tokenizer_of(folder: Path, **options: Any) -> Any:
    """The tokenizer of a checkpoint folder; `name_or_path` is a folder that others, such as vLLM, can read it from.

    The settings of some checkpoints (R1-Distill-Llama) name a class that loses all spaces and line ends. The library
    transformers recognizes these by their ids on the hub, which a folder does not have. Then `tokenizer.json` alone is
    read, which is complete, and a copy without the wrong class is left in a temporary folder.

    Raises:
        ValueError: the tokenizer does not give a text back as it was.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    if not round_trips(tokenizer) and (folder / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast  # seldom needed

        MENDED.append(TemporaryDirectory(prefix="mrt-tokenizer-"))
        PreTrainedTokenizerFast.from_pretrained(folder).save_pretrained(MENDED[-1].name)
        if (folder / GENERATION).is_file():
            shutil.copy(folder / GENERATION, MENDED[-1].name)  # `ends_of` reads it
        tokenizer = AutoTokenizer.from_pretrained(MENDED[-1].name, **options)
    if not round_trips(tokenizer):
        text = round_trip(tokenizer)
        raise ValueError(f"{folder}: its tokenizer makes {text!r} of {SAMPLE!r}; answers could not be read")
    return tokenizer


def ends_of(tokenizer: Any) -> tuple[int, ...]:
    """The tokens at which a model's completions end: the tokenizer's end token and those of its generation settings.

    vLLM and TRL stop at each. The first is the one that the chat template writes after an answer, by which the model
    really ends: `<|im_end|>` or `<end_of_turn>`, where the tokenizer's is `<|endoftext|>` or `<eos>`.
    """
    model, names = tokenizer.name_or_path, (GENERATION, "config.json")
    is_folder = bool(model) and Path(model).is_dir()
    files = [Path(model, name) if is_folder else in_cache(model, name) for name in names]  # of a hub id, of `main`
    named = next((json.loads(file.read_text()).get("eos_token_id") for file in files if file and file.is_file()), None)
    ends = [tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])]
    first = [token for token in after_answers(tokenizer) if token in ends]
    return tuple(token for token in dict.fromkeys([*first[:1], *ends]) if token is not None)


def after_answers(tokenizer: Any) -> list[int]:
    """The tokens that a chat template writes after the last answer; none if it cannot write one."""
    chat = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": ANSWER}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False).partition(ANSWER)[2]
    except Exception:  # of the template's own kind: there is none, or it has no such roles
        return []
    tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens


def unnamed_end(tokenizer: Any) -> str | None:
    """The special token that a chat template writes after an answer, if the model ends at no token that it writes."""
    tokens, added = after_answers(tokenizer), tokenizer.added_tokens_decoder
    special = [str(added[token].content) for token in tokens if token in added and added[token].special]
    return special[0] if special and not set(tokens) & set(ends_of(tokenizer)) else None


def round_trip(tokenizer: Any) -> str:
    """The sample, encoded and decoded by a tokenizer."""
    ids = tokenizer.encode(SAMPLE, add_special_tokens=False)
    return str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))


def round_trips(tokenizer: Any) -> bool:
    """Whether a tokenizer gives the sample back; a space before it is no matter."""
    return round_trip(tokenizer).lstrip(" ") == SAMPLE


def shards(folder: Path) -> list[str]:
    """The files of a checkpoint's weights, there or not: those that its index names, else the one usual file."""
    index = folder / "model.safetensors.index.json"
    return sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else [WEIGHTS]


def has_chat_template(folder: Path) -> bool:
    """Whether a checkpoint folder's tokenizer has a chat template, in a separate file or among its settings."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    return (folder / "chat_template.jinja").is_file() or bool(settings.get("chat_template"))


def missing(folder: Path) -> list[str]:
    """The files that a checkpoint folder lacks: settings, all shards of the weights that its index names, tokenizer."""
    needed = ("config.json", "tokenizer_config.json", *shards(folder))
    lacking = [n for n in needed if not (folder / n).is_file()]
    return lacking if any((folder / n).is_file() for n in VOCABULARIES) else [*lacking, VOCABULARIES[0]]
