"""What vLLM is told by environment variables; they count from its import on."""

import os

ALWAYS = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
ON_CPU = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, which steps it
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # jobs side by side must not pin one core
}


def tell(cpu: bool) -> None:
    """Set them, except those that are set."""
    for name, value in (ALWAYS | (ON_CPU if cpu else {})).items():
        os.environ.setdefault(name, value)
