"""Meta-prover throughput: ours against the authors' way and the engine's own limit.

    python -m benchmarks prover

Both sample the same answers at the same prefixes: ours all in one submission with a prefix cache of short blocks
(mrt.sampling.prover); the authors' way is one submission per trace, in order, with the engine's default settings. The
floor is the engine's time if it only decoded the answers' tokens at its saturated rate and prefilled each distinct
prefix token once at its prefill rate. The engine runs eagerly and in this process, because start-up is not compared.

Workloads: traces of the toy base, with answers of natural length (stragglers); toy text in thoughts of 1,000 tokens
with 12 prefixes, and answers of equal length, short and longer.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks import workload
from benchmarks.record import ANSWERS, TOY_BASE, Goal, Record, Report, has, markdown, middle, timed
from mrt.core import vllm_environment
from mrt.episodes.parameterization import OpenEnded
from mrt.sampling.engine import Engine, Request
from mrt.training.flops import distinct

TITLE = "Meta-prover throughput"
FIXED, STEP = 8, 80  # tokens per answer and per episode if fixed
TOY, THOUSAND, LONGER = "toy", "thoughts of 1,000 tokens", "thoughts of 900 tokens, answers of 64"
DECODED = 24  # tokens per sequence to measure the decoding rate on
AUTHORS = "the authors' way"
Run = Callable[[Sequence[Sequence[Request]], int], int]  # requests of each trace, tokens an answer -> tokens


class Exact(Engine):
    """Our engine; generates `fixed` tokens per answer if that is set."""

    fixed = 0

    def parameters(self, request: Request) -> Any:
        found = super().parameters(request)
        if self.fixed:
            found.ignore_eos, found.max_tokens = True, self.fixed
        return found


class Engines:
    """Ours and vLLM's default engine on the toy base, each with an engine of its own in this process."""

    def __init__(self) -> None:
        from vllm import LLM

        self.ours = Exact(str(TOY_BASE), workload.ENGINE)
        self.default = LLM(
            str(TOY_BASE), dtype="float32", max_model_len=workload.ENGINE.max_model_len, enforce_eager=True,
            kv_cache_memory_bytes=int(workload.ENGINE.cpu_cache_gib * 2**30),
        )  # fmt: skip

    def one_submission(self, traces: Sequence[Sequence[Request]], fixed: int = 0) -> int:
        self.ours.fixed = fixed
        requests = [request for trace in traces for request in trace]
        return sum(completion.tokens for answers in self.ours.generate(requests) for completion in answers)

    def authors(self, traces: Sequence[Sequence[Request]], fixed: int = 0) -> int:
        return sum(generated(self.default, trace, fixed) for trace in traces)

    def rates(self, prompts: Sequence[str]) -> tuple[float, float]:
        """Tokens per second of our engine when it only decodes, at these prompts' mean length, or only prefills."""
        llm, ids = self.ours.llm, self.ours.encode(prompts)
        length = max(32, int(sum(map(len, ids)) / len(ids)))
        seqs = min(workload.ENGINE.max_num_seqs, ANSWERS * len(ids), 4_000_000 // length)
        words = [token for one in ids for token in one]
        words *= 1 + 40 * length // len(words)
        llm.reset_prefix_cache()
        prompt = [words[:length]]
        submit(llm, prompt, 1, 1)
        decoded = timed(submit, llm, prompt * seqs, 1, 1 + DECODED)[0] - timed(submit, llm, prompt * seqs, 1, 1)[0]
        llm.reset_prefix_cache()
        others = [[*words[i : i + 1], *words[i + 7 : i + 6 + length]] for i in range(40)]
        return seqs * DECODED / decoded, sum(map(len, others)) / timed(submit, llm, others, 1, 1)[0]


def submit(llm: Any, ids: Sequence[Sequence[int]], n: int, tokens: int) -> int:
    """Sample n completions of exactly `tokens` tokens for each prompt; returns the number of generated tokens."""
    from vllm import SamplingParams

    parameters = SamplingParams(n=n, temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": list(one)} for one in ids], parameters, use_tqdm=False)
    return sum(len(o.token_ids) for output in outputs for o in output.outputs)


def generated(llm: Any, requests: Sequence[Request], fixed: int = 0) -> int:
    """Number of tokens that vLLM generates in one call of `generate`, `fixed` per answer or until each ends.

    Without seeds: vLLM's default is chunked prefill, with which a seeded request fails on a CPU.
    """
    from vllm import SamplingParams

    parameters = [
        SamplingParams(
            n=r.n, temperature=r.decoding.temperature, max_tokens=fixed or r.decoding.max_tokens, ignore_eos=bool(fixed)
        )
        for r in requests
    ]
    outputs = llm.generate([str(r.prompt) for r in requests], parameters, use_tqdm=False)
    return sum(len(o.token_ids) for output in outputs for o in output.outputs)


def compare(
    record: Record, name: str, engines: Engines, traces: Sequence[Sequence[Request]], fixed: int, repeats: int
) -> None:
    """Time both ways in turn on the traces' requests, and measure the floor."""
    llm, ids = engines.ours.llm, engines.ours.encode([str(r.prompt) for trace in traces for r in trace])
    ways: dict[str, tuple[Run, Any]] = {
        "ours": (engines.one_submission, llm),
        AUTHORS: (engines.authors, engines.default),
    }
    for run, _ in ways.values():
        run(traces[:1], fixed)  # warm
    count, read, tokens = len(ids) * ANSWERS, distinct(ids)[0], {}
    for _ in range(repeats):
        for way, (run, engine) in ways.items():
            engine.reset_prefix_cache()
            seconds, tokens[way] = timed(run, traces, fixed)
            record.add(f"{name}: {way}", "seconds", seconds)
        decoding, reading = engines.rates([str(r.prompt) for trace in traces for r in trace])
        record.add(f"{name}: floor", "seconds", tokens["ours"] / decoding + read / reading)
        llm.reset_prefix_cache()
        submit(llm, ids, 1, 1)
        record.add(f"{name}: first tokens", "seconds", timed(submit, llm, ids, ANSWERS, 1)[0])
    for way, total in tokens.items():
        record.add(f"{name}: {way}", "tokens an answer", total / count)
    record.add(name, "answers", count)


def by_trace(requests: Sequence[tuple[object, Request]]) -> list[list[Request]]:
    found: dict[object, list[Request]] = {}
    for trace, request in requests:
        found.setdefault(trace, []).append(request)
    return list(found.values())


def measure(record: Record, quick: bool) -> None:
    vllm_environment.configure(cpu=True)
    repeats = 1 if quick else 3
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        workload.make_traces(folder, 4 if quick else 48)
        stage = workload.prover(folder, ANSWERS)
        places = list(stage.places(stage.traces(None)))
    traces = by_trace([((at.problem_id, at.sample), at.request) for at in places])
    engines = Engines()
    compare(record, TOY, engines, traces, 0, repeats)
    text = "".join(at.prefix.text() for at in places)
    for name, episodes, count, fixed in ((THOUSAND, 12, 8, FIXED), (LONGER, 11, 4, 8 * FIXED)):
        if not quick or name == THOUSAND:
            lengths = [[STEP] * episodes] * (1 if quick else count)
            compare(record, name, engines, at_lengths(engines.ours, text, lengths, traces[0][0]), fixed, repeats)


def at_lengths(engine: Engine, text: str, lengths: Sequence[list[int]], like: Request) -> list[list[Request]]:
    """Requests at the prefixes of toy thoughts whose episodes have these lengths."""
    traces = [workload.prefixes(text[5000 * t :] + text, each, engine.tokenizer) for t, each in enumerate(lengths)]
    stop = OpenEnded().force("")  # "Time is up."
    chat = str(like.prompt).removesuffix(stop)  # `like` is at the empty prefix
    return [
        [
            Request(chat + prefix + stop, ANSWERS, like.seed + ANSWERS * (1000 * t + j), like.decoding)
            for j, prefix in enumerate(trace)
        ]
        for t, trace in enumerate(traces)
    ]


def report(table: pl.DataFrame) -> Report:
    rows, goals = [], []
    for name in (name for name in (TOY, THOUSAND, LONGER) if has(table, f"{name}: ours")):
        ours, authors, floor, first = (
            middle(table, f"{name}: {way}", "seconds") for way in ("ours", AUTHORS, "floor", "first tokens")
        )
        times, floor, first = authors / ours, floor / ours, first / ours
        tokens = middle(table, f"{name}: ours", "tokens an answer")
        answers = f"{name} ({middle(table, name, 'answers'):,.0f} answers)"
        rows.append((answers, ours, f"{times:.1f}", f"{floor:.2f}", f"{first:.2f}", f"{tokens:.1f}"))
        if name != LONGER:
            why = "See [why](once.md#why-the-meta-prover-is-no-faster)."
            goals.append(Goal(f"meta-prover, {name}: times faster than {AUTHORS}", times, 2.5, why=why))
            goals.append(Goal(f"meta-prover, {name}: share of the engine's limit", floor, 0.85, why=why))
    text = [
        "Both sample the same forced answers, 20 at every prefix. *The authors' way* is one submission per trace, in"
        " order, with vLLM's default settings. `times`: how many times our seconds it takes. `share of the limit`: the"
        " shortest time that the engine could take, over our time; in it the engine decodes at its highest rate and"
        " prefills each distinct prefix token once. `first tokens`: the time of as many answers of one token at cached"
        " prefixes, over our time.",
        markdown(
            (
                "workload",
                "ours, seconds",
                f"{AUTHORS}: times",
                "share of the limit",
                "first tokens",
                "tokens an answer",
            ),
            rows,
        ),
    ]
    return Report(text, goals)
