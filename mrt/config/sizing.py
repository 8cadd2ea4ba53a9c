"""The GPUs of an engine, and the nodes and processes of a training: what `memory` says of a model's sizes."""

from typing import Any

from mrt.config import lengths, lineage, memory, roots
from mrt.config.schema import Config
from mrt.training.rl.recipe import RL

PROMPT = 2048  # tokens: an upper bound for a problem's prompt, to size trainings


def accepted(config: Config, name: str) -> int:
    """Longest text, in tokens, that a model's engine accepts."""
    return lengths.longest(config, name) or roots.architecture(config, name).context


def engine_size(config: Config, name: str) -> memory.Engine:
    """The size of the engine that samples from a model."""
    settings, width = config.engine, 4 if config.engine.dtype == "float32" else 2
    return memory.Engine(accepted(config, name), settings.max_num_seqs, settings.gpu_memory_utilization, width)


def rl_engine_size(config: Config, name: str) -> memory.Engine:
    """The size of the engine beside a model's RL training (trl/generation/vllm_generation.py)."""
    return engine_size(config, name)._replace(share=engine_share(config, name), batched=4096)


def engine_share(config: Config, name: str) -> float:
    """Share of each GPU's memory that the engine takes during a model's training."""
    recipe = lineage.recipe(config, name)
    return recipe.gpu_memory_utilization if isinstance(recipe, RL) and recipe.vllm_mode != "server" else 0.0


def sampling_gpus(config: Config, name: str) -> int:
    """Number of GPUs of the engine that samples from a model; 0 if jobs are sized for CPUs.

    Raises ValueError if the engine does not fit.
    """
    if not (hardware := config.cluster.hardware):
        return 0
    architecture, engine = roots.architecture(config, name), engine_size(config, name)
    if gpus := config.engine.tensor_parallel_size:
        if gpus > config.cluster.gpus_per_node:
            raise ValueError(f"engine.tensor_parallel_size {gpus} is more than a node's GPUs (gpus_per_node)")
        if not memory.divides(architecture, gpus):
            raise ValueError(f"engine.tensor_parallel_size {gpus} does not divide its {architecture.heads} heads")
        return memory.check_engine(architecture, engine, hardware, gpus)
    return memory.sampling_gpus(architecture, engine, hardware, config.cluster.gpus_per_node)


def tensor_parallel_size(config: Config, name: str) -> int:
    """Number of devices that a model's engine is spread over; without `cluster.gpu`, as many as the setting says."""
    return sampling_gpus(config, name) or config.engine.tensor_parallel_size or 1


def training_size(config: Config, name: str) -> memory.Training:
    """The size of a model's training on a GPU."""
    recipe = lineage.recipe(config, name)
    options = recipe.bf16, recipe.gradient_checkpointing
    less: dict[str, Any] = {"rank": recipe.lora.rank if recipe.lora else 0, "base": 2 if recipe.base else 4}
    less |= {"optim": recipe.optim} if recipe.optim else {}
    if not isinstance(recipe, RL):
        return memory.Training(recipe.micro_batch_size, recipe.max_length, *options, **less)
    length = PROMPT + lengths.prefix(config, name) + recipe.decoding.max_tokens
    reference = recipe.beta > 0 and not recipe.lora  # which is the model without its adapters
    others = reference, recipe.mu == "parent" and lineage.variant(config, name).asks_mu
    length = min(length, accepted(config, name))
    return memory.Training(recipe.micro_batch_size, length, *options, *others, rl=True, **less)


def training_processes(config: Config, name: str) -> tuple[int, int]:
    """(nodes, processes per node) of a model's training: one process per GPU, by default all of one or more nodes.

    With `lora`, and with most optimizers, it is one process, whatever `cluster` says (`OneCard.alone`).
    Raises ValueError if the training does not fit on the GPUs requested, or on any number of GPUs.
    """
    cluster, per_node, alone = config.cluster, config.cluster.gpus_per_node, lineage.recipe(config, name).alone
    if hardware := cluster.hardware:
        sizes = roots.architecture(config, name), training_size(config, name), hardware, engine_share(config, name)
        if alone:
            memory.check_training(*sizes, 1)
    if alone:
        return 1, 1
    if hardware:
        whole_nodes = per_node * cluster.training_nodes if cluster.training_nodes else None
        total = cluster.training_gpus or whole_nodes or memory.training_gpus(*sizes, per_node)
        memory.check_training(*sizes, total)
    else:
        total = cluster.training_gpus or cluster.training_nodes or 1
    nodes = cluster.training_nodes or -(-total // per_node)
    if total % nodes:
        raise ValueError(f"its {total} GPUs (cluster.training_gpus) cannot be divided over {nodes} nodes")
    if hardware and total // nodes > per_node:
        raise ValueError(f"{total // nodes} GPUs of a node are asked for, which has {per_node} (cluster.gpus_per_node)")
    return nodes, total // nodes


def check_training(config: Config, name: str) -> None:
    """Raise ValueError if a model cannot be trained on its GPUs."""
    nodes, processes = training_processes(config, name)
    recipe = lineage.recipe(config, name)
    if recipe.batch_size % (nodes * processes):
        raise ValueError(f"batch_size {recipe.batch_size} is not divided by its {nodes} x {processes} GPUs")
    if not isinstance(recipe, RL) or recipe.vllm_mode == "server":
        return
    shared = tensor_parallel_size(config, name)  # in RL the processes of a node share engines
    if shared > 1 and processes % shared:
        raise ValueError(f"its engine, on {shared} GPUs, does not divide the {processes} of a node")
    if hardware := config.cluster.hardware:
        sizes = roots.architecture(config, name), rl_engine_size(config, name), hardware
        most = 1 if recipe.alone else memory.NUMBERS[-1]
        what = "the engine of its RL (rl.gpu_memory_utilization)"
        memory.check_engine(*sizes, sampling_gpus(config, name), what, most)
