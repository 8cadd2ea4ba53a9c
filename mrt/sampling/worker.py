"""vLLM's worker processes import this as their `worker_extension_cls`, so that they join the stage and end with it.

vLLM's processes do not notice that the stage has been killed, and would keep the GPU's memory for ever. With one
GPU the engine core imports this, with several GPUs each worker does.
"""

from mrt.core import accelerator

accelerator.join()


class Worker:
    """Adds nothing to vLLM's worker."""
