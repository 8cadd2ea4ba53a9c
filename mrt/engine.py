"""vLLM behind one function: many requests in, their completions out, in one submission.

The same code runs on a GPU and on a CPU. On a CPU the engine core stays in this process, runs eagerly in float32 with a
stated cache and blocks of 32 tokens (short blocks are what makes prefixes of different length really share), and
prefills whole prompts, because a seeded request cannot be cut into chunks there.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class EngineSettings(BaseModel):
    """How the sampling engine is built; nothing here changes what is sampled, except `max_model_len` and `dtype`."""

    model_config = ConfigDict(extra="forbid")

    max_model_len: int | None = Field(
        None, ge=16, description="Longest prompt plus completion, in tokens; else the model's."
    )
    dtype: str = Field("auto", description="Weights' type: auto (float32 on a CPU), bfloat16, float16, float32.")
    max_num_seqs: int = Field(512, ge=1, description="Sequences decoded at once.")
    block_size: int | None = Field(None, description="Tokens a cache block; else 32 on a CPU, vLLM's choice on a GPU.")
    cpu_cache_gib: float = Field(1.0, gt=0, description="Key-value cache on a CPU, in GiB.")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of the GPU's memory that vLLM may take.")
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs a model is spread over.")


class Decoding(BaseModel):
    """How completions are drawn."""

    model_config = ConfigDict(extra="forbid")

    temperature: float = Field(0.7, ge=0, description="Sampling temperature (Appendix D).")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus of the distribution that is sampled from.")
    max_tokens: int = Field(8192, ge=1, description="Longest completion, in tokens (Appendix D).")
    logprobs: bool = Field(False, description="Keep the mean token log-probability (costs about a quarter more time).")


@dataclass(frozen=True)
class Request:
    """A prompt, how many completions to draw for it, and the seed of the first; the i-th is drawn with seed + i."""

    prompt: str
    n: int
    seed: int


@dataclass(frozen=True)
class Completion:
    """A completion: its text, its length in tokens, `stop` or `length`, and the mean token log-probability in nats."""

    text: str
    tokens: int
    finish: str
    mean_logprob: float | None


def seed_of(*parts: object) -> int:
    """A seed of 62 bits from whatever names a request, so that requests of different names never share samples."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 2


class Engine:
    """A model loaded for sampling. `tokenizer` is the model's; texts are encoded without adding special tokens."""

    def __init__(self, model: Path | str, settings: EngineSettings, revision: str | None = None) -> None:
        import torch

        cpu = not torch.cuda.is_available()
        if cpu:
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # jobs side by side must not pin one core
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from vllm import LLM

        options: dict[str, Any] = {"block_size": settings.block_size} if settings.block_size else {}
        if cpu:
            options = {
                "block_size": settings.block_size or 32,
                "enforce_eager": True,
                "kv_cache_memory_bytes": int(settings.cpu_cache_gib * 2**30),
                "enable_chunked_prefill": False,
            }
        self.llm = LLM(
            str(model),
            revision=revision,
            dtype="float32" if cpu and settings.dtype == "auto" else settings.dtype,
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            tensor_parallel_size=settings.tensor_parallel_size,
            enable_prefix_caching=True,
            **options,
        )
        self.tokenizer = self.llm.get_tokenizer()
        self.max_model_len: int = self.llm.model_config.max_model_len

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, no special tokens added."""
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []

    def generate(self, requests: Sequence[Request], decoding: Decoding) -> list[list[Completion]]:
        """Completions of each request, in order. A prompt that fills the model's context gets empty completions with
        finish `length`: truncation is data, not an error."""
        from vllm import SamplingParams

        prompts = self.encode([r.prompt for r in requests])
        fits = [i for i, ids in enumerate(prompts) if len(ids) < self.max_model_len]
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompts[i]} for i in fits],
            [
                SamplingParams(
                    n=requests[i].n,
                    seed=requests[i].seed,
                    temperature=decoding.temperature,
                    top_p=decoding.top_p,
                    max_tokens=decoding.max_tokens,
                    logprobs=0 if decoding.logprobs else None,
                )
                for i in fits
            ],
            use_tqdm=True,
        )
        results = [[Completion("", 0, "length", None)] * r.n for r in requests]
        for i, output in zip(fits, outputs, strict=True):
            results[i] = [
                Completion(
                    text=o.text,
                    tokens=len(o.token_ids),
                    finish="stop" if o.finish_reason == "stop" else "length",
                    mean_logprob=o.cumulative_logprob / len(o.token_ids) if decoding.logprobs and o.token_ids else None,
                )
                for o in sorted(output.outputs, key=lambda o: o.index)
            ]
        return results
