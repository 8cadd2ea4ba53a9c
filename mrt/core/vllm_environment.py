"""Environment variables that configure vLLM; set them before it is imported."""

import os

ALWAYS = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
ON_CPU = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # run the engine in this process, which steps it
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # concurrent jobs must not pin the same core
}


ON_GPU = {
    # vLLM forks its engine core unless it sees that CUDA is initialized, and CUDA does not survive a fork. Code that
    # queried torch for a GPU before vLLM was imported may have initialized CUDA without vLLM noticing.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # FlashInfer's sampler is compiled when it is first used, in vLLM's warm-up: this fails without nvcc and takes
    # minutes with it. Requests with a seed cannot use this sampler (vLLM #49497), and all of ours have one.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}


def configure(cpu: bool) -> None:
    """Set these variables, except those that are already set."""
    for name, value in (ALWAYS | (ON_CPU if cpu else ON_GPU)).items():
        os.environ.setdefault(name, value)
