"""How many GPUs a job asks for: what follows from a model's architecture and the GPU.

Sampling holds the weights in 16 bits, and at least as many bytes of key-value cache, on as few GPUs as that takes
(tensor parallelism). Training holds 16 bytes a parameter (float32 weights, gradients, and Adam's two moments) spread
over all GPUs (ZeRO-3), and on each the activations of its micro-batch; RL gives the engine its share of each GPU too.
"""

import json
from functools import cache
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

GIB = 2**30


class Hardware(NamedTuple):
    """A GPU, from its maker's data sheet: memory in GiB, dense bfloat16 FLOPs a second, memory bytes a second."""

    memory: float
    flops: float
    bandwidth: float


GPUS = {
    "a100-40gb": Hardware(40, 312e12, 1.56e12),
    "a100-80gb": Hardware(80, 312e12, 2.04e12),
    "l40s": Hardware(48, 362e12, 0.86e12),
    "h100": Hardware(80, 989e12, 3.35e12),
    "h200": Hardware(141, 989e12, 4.8e12),
    "b200": Hardware(180, 2250e12, 8.0e12),
}


class Architecture(BaseModel):
    """A transformer's sizes, as its `config.json` has them."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    parameters: int = Field(ge=1, description="Parameters, embeddings included.")
    layers: int = Field(ge=1, description="num_hidden_layers")
    hidden: int = Field(ge=1, description="hidden_size")
    heads: int = Field(ge=1, description="num_attention_heads")
    kv_heads: int = Field(ge=1, description="num_key_value_heads")
    head_dim: int = Field(ge=1, description="head_dim; else hidden_size / num_attention_heads")
    vocabulary: int = Field(ge=1, description="vocab_size")

    @property
    def cache_bytes(self) -> int:
        """Key-value cache of a token, in bytes, in 16 bits."""
        return 4 * self.layers * self.kv_heads * self.head_dim

    def training_bytes(self, tokens: int) -> int:
        """Activations of a micro-batch of so many tokens: layers' inputs, one layer recomputed, logits in 32 bits."""
        return tokens * (2 * self.hidden * (self.layers + 20) + 8 * self.vocabulary)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The architecture of a checkpoint folder; parameters are counted from the headers of its safetensors."""
        raw = json.loads((folder / "config.json").read_text())
        heads = raw["num_attention_heads"]
        return cls(
            parameters=sum(parameters_in(file) for file in folder.glob("*.safetensors")),
            layers=raw["num_hidden_layers"],
            hidden=raw["hidden_size"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            vocabulary=raw["vocab_size"],
        )


@cache
def architecture_of(folder: Path) -> Architecture:
    """The architecture of a checkpoint folder, read once."""
    return Architecture.read(folder)


def parameters_in(file: Path) -> int:
    """How many numbers a safetensors file holds; its header alone is read."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


class Cluster(BaseModel):
    """GPUs that an experiment is sized for; without them every job asks for CPUs alone."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    gpu: Literal[tuple(GPUS)] | None = Field(None, description="GPU; tensor and data parallelism follow from it.")  # type: ignore[valid-type]
    slurm_type: str | None = Field(
        None, description="Type of GPU to ask SLURM for, as `sinfo -o %G` names it; any if not given."
    )
    gpus_per_node: int = Field(8, ge=1, le=1024, description="GPUs of a node; a training on more spans nodes.")
    cpus_per_gpu: int = Field(8, ge=1, le=1024, description="CPU cores asked for with each GPU.")
    shards: int = Field(
        1,
        ge=1,
        le=10_000,
        description="Jobs that a model's sampling on a problem set is spread over.",
    )
    training_gpus: int | None = Field(
        None, ge=1, le=10_000, description="GPUs of a training job; as many as its memory takes if not given."
    )
    training_nodes: int | None = Field(
        None, ge=1, le=1024, description="Nodes of a training job; as few as have its GPUs if not given."
    )

    @property
    def hardware(self) -> Hardware | None:
        return GPUS[self.gpu] if self.gpu else None


NUMBERS = [2**i for i in range(13)]  # of GPUs


def sampling_gpus(architecture: Architecture, gpu: Hardware, share: float = 0.9) -> int:
    """GPUs that one engine is spread over: the fewest with room for the weights, and as much again for the cache.

    Raises ValueError if so many do not divide the attention heads.
    """
    for n in NUMBERS:
        if 2 * 2 * architecture.parameters <= n * share * gpu.memory * GIB:
            if architecture.heads % n:
                raise ValueError(f"{architecture.heads} attention heads cannot be spread over {n} GPUs")
            return n
    raise ValueError(f"{architecture.parameters:,} parameters do not fit on 4096 GPUs")


def training_gpus(architecture: Architecture, gpu: Hardware, tokens: int, engine_share: float = 0.0) -> int:
    """GPUs of a training job under ZeRO-3 whose micro-batch has so many tokens; the engine of RL takes its share.

    Raises ValueError if the activations alone do not fit on a GPU.
    """
    room = (0.95 - engine_share) * gpu.memory * GIB - architecture.training_bytes(tokens)
    if room <= 0:
        raise ValueError(
            f"a micro-batch of {tokens:,} tokens takes {architecture.training_bytes(tokens) / GIB:.0f} GiB of"
            f" {(0.95 - engine_share) * gpu.memory:.0f} that a GPU has for it; lower micro_batch_size"
        )
    return next(n for n in NUMBERS if 16 * architecture.parameters <= n * room)
