"""Distributed training: splitting a step over devices, and joining the processes; padding the rows of a pass."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LENGTHS = 4  # length buckets of a micro-batch of RL, and of its prompts


def batches(batch_size: int, micro_batch_size: int) -> tuple[int, int]:
    """(micro-batch size, gradient accumulation steps) of each device, so that a step has `batch_size` rows in all.

    Raises ValueError if `batch_size` is not divisible by the number of devices.
    """
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    if batch_size % devices:
        raise ValueError(f"batch_size {batch_size} is not spread evenly over {devices} devices; train on fewer GPUs")
    share = batch_size // devices
    micro = next(n for n in range(min(micro_batch_size, share), 0, -1) if share % n == 0)
    return micro, share // micro


def join_processes(deepspeed: Path | None, cpu: bool) -> None:
    """Join the processes of a distributed run; ZeRO needs this before it shards a model over them.

    DeepSpeed's operator for messages in shared memory is off, because it would be compiled here. A process that is
    killed while it compiles leaves a lock that all later trainings of this user wait for, without end.
    """
    if deepspeed:
        from deepspeed import init_distributed, ops

        ops.__compatible_ops__["deepspeed_shm_comm"] = False
        init_distributed(dist_backend="gloo" if cpu else "nccl")


def count(parameter: Any) -> int:
    """Numbers that a parameter has, whether it is sharded over processes (ZeRO-3) or not."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def parameters(model: Any) -> int:
    """Number of parameters of a model, sharded or not."""
    return sum(map(count, model.parameters()))


def padded_left(texts: Sequence[Any]) -> tuple[Any, Any]:
    """Token ids and mask [texts, longest] of texts that end together; tensors of token ids in, tensors out."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids = pad_sequence(list(texts), batch_first=True, padding_side="left")
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True, padding_side="left")
    return ids, mask
