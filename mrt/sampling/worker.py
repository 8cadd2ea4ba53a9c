"""What vLLM's worker processes import, as their `worker_extension_cls`: so they join the stage and end with it.

vLLM's processes do not notice that the stage has been killed, and would keep the GPU's memory for ever. On one GPU the
engine core imports this, on several each worker.
"""

from mrt.core import accelerator

accelerator.join()


class Worker:
    """Adds nothing to vLLM's worker."""
