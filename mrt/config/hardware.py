"""Specifications of GPUs and sizes of models, to size jobs with (`mrt/config/memory.py` says what fits)."""

import json
from difflib import get_close_matches
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from mrt.core.hub import WEIGHTS, shards
from mrt.core.settings import Settings
from mrt.training.one_card import NOT_LINEAR

GIB = 2**30


class Hardware(NamedTuple):
    """A GPU: memory available to a process in GiB, dense bfloat16 FLOPs a second, memory bytes a second."""

    memory: float
    flops: float
    bandwidth: float


# FLOPs (dense, accumulated in float32) and bandwidth are from NVIDIA's data sheets. The memory is as CUDA's
# mem_get_info reports it. The data sheets give 24, 24, 24, 24, 48, 40, 80, 80, 141 and 180 GB: error correction takes a
# sixteenth of GDDR6.
GPUS = {
    "rtx4090": Hardware(23.6, 165e12, 1.01e12),
    "l4": Hardware(22.0, 121e12, 0.30e12),
    "a10": Hardware(22.0, 125e12, 0.60e12),
    "a10g": Hardware(22.0, 70e12, 0.60e12),  # of Amazon's G5: as much memory as the A10, fewer FLOPs
    "l40s": Hardware(44.4, 362e12, 0.86e12),
    "a100-40gb": Hardware(39.4, 312e12, 1.56e12),
    "a100-80gb": Hardware(79.2, 312e12, 2.04e12),
    "h100": Hardware(79.1, 989e12, 3.35e12),
    "h200": Hardware(139.7, 989e12, 4.8e12),
    "b200": Hardware(178.3, 2250e12, 8.0e12),
}


class Architecture(Settings):
    """A transformer's sizes, as its `config.json` has them."""

    parameters: int = Field(ge=1, description="Parameters, embeddings included.")
    layers: int = Field(ge=1, description="num_hidden_layers")
    hidden: int = Field(ge=1, description="hidden_size")
    intermediate: int = Field(ge=1, description="intermediate_size")
    heads: int = Field(ge=1, description="num_attention_heads")
    kv_heads: int = Field(ge=1, description="num_key_value_heads")
    head_dim: int = Field(ge=1, description="head_dim; else hidden_size / num_attention_heads")
    vocabulary: int = Field(ge=1, description="vocab_size")
    context: int = Field(ge=1, description="max_position_embeddings")

    @property
    def cache_bytes(self) -> int:
        """Bytes of the key-value cache of a token, in 16 bits."""
        return 4 * self.layers * self.kv_heads * self.head_dim

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The architecture of a checkpoint folder; parameters are counted from the headers of its safetensors.

        Raises UnknownSizes if its configuration does not give all sizes by their usual names, or if it has no
        safetensors, or not all of them.
        """
        raw = sizes_in(folder)
        usual = ("num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
        if missing := [name for name in (*usual, "max_position_embeddings") if name not in raw]:
            problem = f"{folder / 'config.json'} does not say {', '.join(missing)}"
            raise UnknownSizes(f"{problem}: give the model its sizes, models.NAME.architecture")
        heads = raw["num_attention_heads"]
        return cls(
            parameters=sum(map(parameters_in, weights_in(folder))),
            layers=raw["num_hidden_layers"],
            hidden=raw["hidden_size"],
            intermediate=raw["intermediate_size"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            vocabulary=raw["vocab_size"],
            context=raw["max_position_embeddings"],
        )


def sizes_in(folder: Path) -> dict[str, Any]:
    """The entries of a checkpoint folder's `config.json` about its language model."""
    raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return raw.get("text_config", raw)  # of a model that sees images too


class UnknownSizes(ValueError):
    """Nothing tells how large a model is."""


@cache
def architecture_of(folder: Path) -> Architecture:
    """The architecture of a checkpoint folder, read once."""
    return Architecture.read(folder)


def weights_in(folder: Path) -> list[Path]:
    """The safetensors of a checkpoint folder, each weight once: beside them may lie others of the same weights.

    These are the shards that its index names; without one, `model.safetensors`; else all but Mistral's `consolidated*`.
    Raises UnknownSizes if there are none, or if a shard is not there.
    """
    files = [folder / name for name in shards(folder)]
    if files == [folder / WEIGHTS] and not files[0].is_file():
        files = [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith("consolidated")]
    if lacking := [file.name for file in files if not file.is_file()]:
        raise UnknownSizes(f"{folder} lacks {', '.join(lacking)}, which its index names: complete the folder")
    if not files:
        problem = f"{folder} has no safetensors, in which parameters are counted"
        raise UnknownSizes(f"{problem}: give the model its sizes, models.NAME.architecture")
    return files


def shapes_in(file: Path) -> dict[str, list[int]]:
    """The shape of each weight in a safetensors file; its header alone is read."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}


def parameters_in(file: Path) -> int:
    """How many numbers a safetensors file holds."""
    return sum(map(prod, shapes_in(file).values()))


def linear_layers(folder: Path) -> list[str]:
    """Names of the layers of a checkpoint folder whose weight is a matrix, but for those of words; without their path.

    Empty if it has no safetensors.
    """
    try:
        shapes = [item for file in weights_in(folder) for item in shapes_in(file).items()]
    except UnknownSizes:
        return []
    matrices = [name.removesuffix(".weight") for name, shape in shapes if len(shape) == 2]
    return sorted({name.rpartition(".")[2] for name in matrices} - set(NOT_LINEAR))


class Card(BaseModel):
    """A GPU: a listed name, or any name with its specifications, which also override those of a listed GPU."""

    gpu: str | None = Field(
        None,
        description=f"GPU: {', '.join(GPUS)}; or any name, with the three numbers below. If given, jobs request"
        " GPUs, and tensor and data parallelism follow from it.",
    )
    gpu_memory: float | None = Field(None, ge=1, le=2048, description="GPU memory in GiB: the driver's MiB / 1024.")
    gpu_flops: float | None = Field(None, ge=1e12, le=1e18, description="Dense bfloat16 FLOPs a second, e.g. 1.65e+14.")
    gpu_bandwidth: float | None = Field(
        None, ge=1e10, le=1e15, description="Memory bandwidth in bytes a second, e.g. 1.0e+12."
    )

    @property
    def hardware(self) -> Hardware | None:
        """The GPU's numbers; None without a GPU. Raises ValueError if they are not known."""
        given = {"memory": self.gpu_memory, "flops": self.gpu_flops, "bandwidth": self.gpu_bandwidth}
        specified = {name: value for name, value in given.items() if value is not None}
        if self.gpu is None:
            if specified:
                raise ValueError(
                    f"gpu_{next(iter(specified))} is of a GPU that has no name; give it one, `gpu: mine` say"
                )
            return None
        if self.gpu in GPUS:
            return GPUS[self.gpu]._replace(**specified)
        if len(specified) < len(given):
            lacking = ", ".join(f"gpu_{name}" for name in given if name not in specified)
            near = get_close_matches(self.gpu.lower(), GPUS, n=1)
            instead = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(GPUS)}."
            raise ValueError(
                f"{self.gpu!r} is not known; {instead} Any other is given by its numbers, of which {lacking} are not"
                " there: gpu_memory in GiB, gpu_flops (dense, bfloat16) and gpu_bandwidth (bytes) a second, from its"
                " data sheet"
            )
        return Hardware(**specified)


class Cluster(Card):
    """GPUs that an experiment is sized for; without them jobs request only CPUs."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    slurm_type: str | None = Field(
        None,
        pattern=r"^[a-zA-Z0-9_.]+$",
        description="Type of GPU to request from SLURM, as `sinfo -o %G` names it; by default any. Snakemake's"
        " SLURM plugin accepts only letters, digits, `_` and `.`. For a type with `-`, choose its"
        " nodes by a partition (`slurm/partitions.yaml`) or a `constraint`.",
    )
    max_runtime: int | None = Field(
        None,
        ge=10,
        description="Maximum time limit of a job, in minutes, as partitions set it. Sampling and training that"
        " reach it resume in the next attempt.",
    )
    gpus_per_node: int = Field(8, ge=1, le=1024, description="GPUs of a node; a training on more GPUs spans nodes.")
    cpus_per_gpu: int = Field(8, ge=1, le=1024, description="CPU cores requested with each GPU.")
    shards: int = Field(
        1,
        ge=1,
        le=10_000,
        description="Jobs that share the sampling from a model.",
    )
    training_gpus: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="GPUs of a training job; by default all of a node, or of as many nodes as its memory requires.",
    )
    training_nodes: int | None = Field(
        None, ge=1, le=1024, description="Nodes of a training job; by default as few as its GPUs need."
    )
