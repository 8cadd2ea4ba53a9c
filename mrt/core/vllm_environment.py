"""What vLLM is told by environment variables; they count from its import on."""

import os

ALWAYS = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
ON_CPU = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, which steps it
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # jobs side by side must not pin one core
}


ON_GPU = {
    # vLLM forks its engine core unless it sees that CUDA is initialized, and CUDA does not go through a fork. Whoever
    # asked torch for a GPU before vLLM was imported may have initialized it unseen.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # FlashInfer's sampler is compiled when it is first used, in vLLM's warm-up, which fails where there is no nvcc and
    # takes minutes where there is. Requests with a seed, and all of ours have one, cannot use it (vLLM #49497).
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}


def tell(cpu: bool) -> None:
    """Set them, except those that are set."""
    for name, value in (ALWAYS | (ON_CPU if cpu else ON_GPU)).items():
        os.environ.setdefault(name, value)
