"""vLLM as one function: many requests in, their completions out, in one submission.

The same code runs on a GPU and on a CPU. On a CPU the engine core stays in this process and runs eagerly in float32.
Its key-value cache has a fixed size and blocks of 32 tokens: only short blocks let prefixes of different length share
cache. It prefills whole prompts, because a seeded request cannot be prefilled in chunks there.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from mrt.core import accelerator, vllm_environment
from mrt.core.hub import folder_of, tokenizer_of
from mrt.core.settings import Settings
from mrt.episodes.thinking import Thinking, special_ids
from mrt.sampling.scoring import Scored, as_written, log_probability, readable, reading
from mrt.sampling.tokens import Reader, decode, encode, end_of


class EngineSettings(Settings):
    """How the sampling engine is built; only `max_model_len` and `dtype` change the distribution that is sampled."""

    max_model_len: int | None = Field(
        None,
        ge=16,
        le=10_000_000,
        description="Longest prompt plus completion, in tokens; by default the model's limit.",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Type of the weights: auto (float32 on a CPU), bfloat16, float16, float32."
    )
    max_num_seqs: int = Field(512, ge=1, le=1_000_000, description="Sequences decoded at once.")
    block_size: int | None = Field(
        None, ge=1, le=1024, description="Tokens per cache block; default: 32 on a CPU, vLLM's on a GPU."
    )
    cpu_cache_gib: float = Field(1.0, gt=0, le=10_000, description="Key-value cache on a CPU, in GiB.")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of the GPU's memory that vLLM may take.")
    tensor_parallel_size: int | None = Field(
        None, ge=1, le=1024, description="GPUs per model; by default as many as `cluster.gpu` needs, or one."
    )


class Decoding(Settings):
    """How completions are sampled."""

    temperature: float = Field(0.7, ge=0, le=10, description="Sampling temperature (Appendix D).")
    top_p: float = Field(1.0, gt=0, le=1, description="Probability mass kept by nucleus sampling.")
    max_tokens: int = Field(8192, ge=1, le=10_000_000, description="Longest completion, in tokens (Appendix D).")
    logprobs: bool = Field(False, description="Keep the mean token log-probability (costs about a quarter more time).")
    stop: tuple[str, ...] = Field((), description="Stop strings; they end a completion and are not part of it.")

    def stopped_by(self, *texts: str) -> "Decoding":
        """The same settings with these stop strings added."""
        return self.model_copy(update={"stop": (*self.stop, *texts)})


class Text(Protocol):
    """A string, or an object rendered to one on demand: all prompts of a long thought may not fit in memory at once."""

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Request:
    """A prompt, the number of completions `n` and how to draw them, and the seed: completion i (from 0) has seed + i.

    Requests of lower `priority` run first, so that a follow-up still finds the text before it in the prefix cache. With
    `scored`, nothing is sampled: the one completion is `opening` and this text, and its log-probability that of the
    text (see `Engine.scored`).
    """

    prompt: Text
    n: int
    seed: int
    decoding: Decoding
    priority: int = 0
    scored: str = ""
    opening: str = ""


@dataclass(frozen=True)
class Completion:
    """A completion: its text, its length in tokens, `stop`, `length` or `scored`, and the mean token log-probability in
    nats."""

    text: str
    tokens: int
    finish_reason: str
    mean_logprob: float | None


def engine_options(settings: EngineSettings, cpu: bool) -> dict[str, Any]:
    """vLLM's options for these settings on a CPU or a GPU; sampling and RL share them."""
    options: dict[str, Any] = {"dtype": settings.dtype, "max_num_seqs": settings.max_num_seqs}
    if settings.block_size or cpu:
        options["block_size"] = settings.block_size or 32
    if (settings.tensor_parallel_size or 1) > 1:  # vLLM would compile a kernel for it on a Hopper with nvcc
        options["compilation_config"] = {"pass_config": {"fuse_allreduce_rms": False}}
    if cpu:
        options |= {"dtype": "float32"} if settings.dtype == "auto" else {}
        options |= {"enforce_eager": True, "enable_chunked_prefill": False}
        options["kv_cache_memory_bytes"] = int(settings.cpu_cache_gib * 2**30)
    return options


def seed_of(*parts: object) -> int:
    """A 62-bit seed hashed from the parts of a request's name, so that different names never share samples."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 2


class Engine:
    """A model for sampling; texts are encoded without adding special tokens. vLLM starts with the first request."""

    def __init__(self, model: Path | str, settings: EngineSettings, revision: str | None = None) -> None:
        self.model, self.settings, self.revision = str(model), settings, revision
        self.thinking: Thinking | None = None  # how the model writes thoughts: its tags may be special tokens

    @cached_property
    def kept(self) -> dict[int, str]:
        """The special tokens that completions keep: those of the tags of a thought. Set `thinking` before."""
        return special_ids(self.tokenizer, self.thinking)

    @cached_property
    def folder(self) -> Path:
        """The folder that the model is loaded from."""
        return folder_of(self.model, self.revision)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer; reading it does not start vLLM."""
        return tokenizer_of(self.folder)

    @cached_property
    def llm(self) -> Any:
        """vLLM with the model loaded, on the CPU or on GPUs that this process holds until it ends."""
        settings = self.settings
        accelerator.claim(settings.tensor_parallel_size or 1)
        cpu = not accelerator.on_gpu()
        vllm_environment.configure(cpu)
        from vllm import LLM

        return LLM(
            str(self.folder),
            tokenizer=self.tokenizer.name_or_path,
            max_model_len=settings.max_model_len,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            tensor_parallel_size=settings.tensor_parallel_size or 1,
            worker_extension_cls="mrt.sampling.worker.Worker",
            enable_prefix_caching=True,
            scheduling_policy="priority",
            **engine_options(settings, cpu),
        )

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """Token ids of texts, without special tokens."""
        return list(encode(self.tokenizer, texts))

    def count(self, texts: Iterable[Text]) -> list[int]:
        """Number of tokens of each text; neither the texts nor their tokens are ever held all at once."""
        return [len(ids) for ids in encode(self.tokenizer, map(str, texts))]

    def stream(self, waiting: deque[Request]) -> Iterator[tuple[int, list[Completion]]]:
        """Yield (request number, its completions) as requests finish.

        Requests are numbered in the order of the queue. The queue is emptied; requests added meanwhile are submitted
        too. They go to the engine by priority, then number, which is also the engine's order. Only as many are
        submitted as keep it busy, because a waiting prompt takes memory there. A prompt that fills the model's context
        gets empty completions with finish_reason `length`: truncation is data, not an error.
        """
        if not waiting:
            return
        from tqdm import tqdm

        engine, longest = self.llm.llm_engine, self.llm.model_config.max_model_len
        reader = Reader(self.tokenizer)
        line: list[tuple[int, int, Request]] = []  # (priority, number, request), not in the engine yet
        running: dict[str, tuple[Request, list[int]]] = {}  # request, `end_of` its prompt
        number = sequences = 0  # how many sequences are in the engine
        enough = 2 * self.settings.max_num_seqs  # those that run, and as many waiting
        with tqdm(total=0, unit=" requests", mininterval=2) as bar:
            while waiting or line or running:
                bar.total += len(waiting)
                while waiting:
                    heappush(line, (waiting[0].priority, number, waiting.popleft()))
                    number += 1
                batch = []
                while line and sequences < enough:
                    batch.append(heappop(line))
                    sequences += batch[-1][2].n
                prompts = map(self.with_scored, reader.read([str(r.prompt) for *_, r in batch]), (r for *_, r in batch))
                for (_, index, request), ids in zip(batch, prompts, strict=True):
                    if len(ids) >= longest:
                        bar.update()
                        sequences -= request.n
                        yield index, [Completion("", 0, "length", None)] * request.n
                        continue
                    parameters = reading() if request.scored else self.parameters(request)
                    engine.add_request(str(index), {"prompt_token_ids": ids}, parameters, priority=request.priority)
                    running[str(index)] = request, end_of(self.tokenizer, ids)
                for output in engine.step() if running else []:
                    if output.finished:
                        request, before = running[output.request_id]
                        if request.scored and not readable(output, self.as_written(request).target):
                            whole = {"prompt_token_ids": output.prompt_token_ids}
                            engine.add_request(output.request_id, whole, reading(cached=False), priority=-1)
                            continue
                        bar.update()
                        del running[output.request_id]
                        sequences -= request.n
                        if request.scored:
                            yield int(output.request_id), [self.scored(output, request)]
                            continue
                        outputs = sorted(output.outputs, key=lambda o: o.index)
                        yield int(output.request_id), [self.completion(o, request.decoding, before) for o in outputs]

    def parameters(self, request: Request) -> Any:
        """vLLM's parameters of a request."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        decoding = request.decoding
        return SamplingParams(
            n=request.n,
            seed=request.seed,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            max_tokens=decoding.max_tokens,
            stop=list(decoding.stop) or None,
            detokenize=vllm_reads(self.tokenizer, decoding.stop),
            skip_special_tokens=not self.kept,
            spaces_between_special_tokens=not self.kept,
            logprobs=0 if decoding.logprobs else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def as_written(self, request: Request) -> Scored:
        """The tokens of the scored text and of its opening."""
        return as_written(self.tokenizer, request.opening, request.scored)

    def with_scored(self, ids: list[int], request: Request) -> list[int]:
        """The prompt's token ids, followed by those of the opening and the scored text."""
        if not request.scored:
            return ids
        before, target, _ = self.as_written(request)
        return [*ids, *before, *target]

    def scored(self, output: Any, request: Request) -> Completion:
        """The scored text as a completion; `tokens` counts its opening, itself and an end.

        Its log-probability after the opening, divided by `tokens`, is `mean_logprob`.
        """
        scored = self.as_written(request)
        tokens = len(scored.before) + len(scored.target) + 1
        logprob = log_probability(self.tokenizer, output, scored)
        return Completion(request.scored, tokens, "scored", logprob / tokens)

    def completion(self, output: Any, decoding: Decoding, before: Sequence[int]) -> Completion:
        """Convert a completion of vLLM's; `before` is `end_of` its prompt."""
        text, count = text_of(self.tokenizer, output, decoding.stop, before, self.kept), len(output.token_ids)
        mean = output.cumulative_logprob / count if decoding.logprobs and count else None
        return Completion(text, count, "stop" if output.finish_reason == "stop" else "length", mean)

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """Completions of each request, in order."""
        completions = dict(self.stream(deque(requests)))
        return [completions[index] for index in range(len(requests))]


def vllm_reads(tokenizer: Any, stop: Sequence[str]) -> bool:
    """Whether vLLM has to detokenize completions itself.

    vLLM decodes the whole prompt again for each completion; with long prompts this takes longer than sampling. So we
    detokenize instead, unless there are stop strings to look for or the tokenizer is not a fast one.
    """
    return bool(stop) or not tokenizer.is_fast


def text_of(
    tokenizer: Any, output: Any, stop: Sequence[str], before: Sequence[int], kept: Mapping[int, str] | None = None
) -> str:
    """The text of a completion of vLLM's; `before` is `end_of` its prompt, `kept` the special tokens that it shows."""
    if vllm_reads(tokenizer, stop) and not (kept and tokenizer.is_fast):
        return str(output.text)
    by_text = isinstance(output.stop_reason, str)
    ended = output.finish_reason == "stop" and not by_text  # by a stop token, which adds no text
    text = decode(tokenizer, before, output.token_ids[:-1] if ended else output.token_ids, kept or {})
    return text[: min(place for end in stop if (place := text.find(end)) >= 0)] if by_text else text
