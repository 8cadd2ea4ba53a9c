"""How a training is spread over devices: rows of a step, and joining its processes."""

import os
from pathlib import Path
from typing import Any


def batches(batch_size: int, micro_batch_size: int) -> tuple[int, int]:
    """(rows that a device holds at once, how often it does so a step) so that all devices have `batch_size` a step.

    Raises ValueError if the devices do not divide it.
    """
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    if batch_size % devices:
        raise ValueError(f"batch_size {batch_size} is not spread evenly over {devices} devices; train on fewer GPUs")
    own = batch_size // devices
    micro = next(n for n in range(min(micro_batch_size, own), 0, -1) if own % n == 0)
    return micro, own // micro


def join_processes(deepspeed: Path | None, cpu: bool) -> None:
    """Join the processes of a distributed run, as must be done before ZeRO spreads a model over them."""
    if deepspeed:
        from deepspeed import init_distributed

        init_distributed(dist_backend="gloo" if cpu else "nccl")


def parameters(model: Any) -> int:
    """How many parameters a model has, spread over processes or not."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
