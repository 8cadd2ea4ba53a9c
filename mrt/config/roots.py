"""The given models that lineages begin with: their weights, the sizes that all descendants share, and their context."""

from pathlib import Path

from mrt.config import lineage
from mrt.config.hardware import Architecture, UnknownSizes, architecture_of, sizes_in
from mrt.config.schema import Config
from mrt.core.hub import cached


def weights(config: Config, name: str) -> str | None:
    """Checkpoint folder or hub id of a model that is not trained, shipped toy bases included."""
    model = config.models[name]
    toy = Path("mrt", "toy", "weights_attempts" if config.backtracking else "weights")
    return str(toy) if model.toy else model.path


def folder(config: Config, name: str) -> Path | None:
    """Folder of the given model that a model's lineage begins with, if it is on this machine."""
    root = lineage.root(config, name)
    given = weights(config, root)
    if given is None or Path(given, "config.json").is_file():
        return Path(given) if given else None
    return cached(given, config.models[root].revision)


def architecture(config: Config, name: str) -> Architecture:
    """A model's sizes, which are those of the root of its lineage; raises UnknownSizes."""
    root = lineage.root(config, name)
    if declared := config.models[root].architecture:
        return declared
    if (checkpoint := folder(config, name)) is None:
        given = weights(config, root)
        raise UnknownSizes(
            f"models.{root}.architecture: nothing tells how large {given or root} is. Give its sizes here, or,"
            f" for a model of the hub, download it first: hf download {given or 'NAME'}"
        )
    return architecture_of(checkpoint)


def context(config: Config, name: str) -> int | None:
    """The longest text, in tokens, that a model can read; None of a model that is not downloaded yet."""
    if declared := config.models[lineage.root(config, name)].architecture:
        return declared.context
    checkpoint = folder(config, name)
    return sizes_in(checkpoint).get("max_position_embeddings") if checkpoint else None
