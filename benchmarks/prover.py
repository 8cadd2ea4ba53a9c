"""Meta-prover throughput: ours against the authors' way, no prefix cache, Hugging Face, and the engine's own limit.

    python -m benchmarks prover

The contenders sample the same answers at the same prefixes: all in one submission with a prefix cache of short blocks
(ours, mrt.sampling.prover); one submission per trace, in order, with the engine's default settings (the authors' way);
one submission without a prefix cache; transformers' `generate`, in batches of 64 prompts. The floor is the engine's
time if it only decoded the answers' tokens at its saturated rate and prefilled each distinct prefix token once at its
prefill rate. The engine runs eagerly and in this process, because start-up is not compared. The seconds of vLLM's parts
and the number of tokens that its model computes are recorded too.

Workloads: traces of the toy base, with answers of natural length (stragglers); toy text in thoughts of 1,000 tokens
with 12 prefixes, and answers of equal length, short and longer; a model of 27M random parameters; toy text at the
lengths of real thoughts, if that data is there.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks import workload
from benchmarks.record import TOY_BASE, Goal, Record, Report, alone, has, markdown, middle
from mrt.core import vllm_environment
from mrt.episodes.parameterization import OpenEnded
from mrt.sampling.engine import Engine, Request

TITLE = "Meta-prover throughput"
ANSWERS, FIXED, STEP = 20, 8, 80  # answers per prefix; tokens per answer and per episode if fixed
LONGEST, REAL = 31_000, "lengths of real thoughts"  # tokens of a prompt and its answer
LONGER = "thoughts of 900 tokens, answers of 64"
DECODED = 24  # tokens per sequence to measure the decoding rate on
SETTINGS = {"ours": {}, "blocks of 128": {"block_size": 128}, "256 sequences": {"max_num_seqs": 256}}
PARTS = {
    "model": "forward pass",
    "sampling": "sampling",
    "scheduling": "scheduling",
    "tokens drawn": "appending tokens",
    "texts": "detokenizing",
    "taking up": "adding requests",
}  # of vLLM's time, as recorded (`taken_apart`) and as shown
GOALS = (("the authors' way", 2.5), ("no prefix cache", 10.0), ("transformers", 60.0))
GOALS_OF = ("toy", "thoughts of 1,000 tokens")
Run = Callable[[Sequence[Sequence[Request]]], int]  # requests of each trace -> number of generated tokens


class Exact(Engine):
    """Our engine; generates `fixed` tokens per answer if that is set."""

    fixed = 0

    def parameters(self, request: Request) -> Any:
        found = super().parameters(request)
        if self.fixed:
            found.ignore_eos, found.max_tokens = True, self.fixed
        return found


class Engines:
    """The contenders on one model, each with an engine of its own in this process."""

    def __init__(self, model: Path, longest: int = 1024) -> None:
        self.model, self.longest = str(model), longest
        self.settings = workload.ENGINE.model_copy(update={"max_model_len": longest})
        self.ours = Exact(self.model, self.settings)
        self.built: dict[str, Any] = {}

    def llm(self, name: str, **options: Any) -> Any:
        """vLLM with options other than ours, eager and in this process."""
        if name not in self.built:
            from vllm import LLM

            self.built[name] = LLM(
                self.model, dtype="float32", max_model_len=self.longest, enforce_eager=True,
                kv_cache_memory_bytes=int(self.settings.cpu_cache_gib * 2**30), **options,
            )  # fmt: skip
        return self.built[name]

    def one_submission(self, traces: Sequence[Sequence[Request]], engine: Engine | None = None, fixed: int = 0) -> int:
        self.ours.fixed = fixed
        requests = [request for trace in traces for request in trace]
        return sum(c.tokens for drawn in (engine or self.ours).generate(requests) for c in drawn)

    def authors(self, traces: Sequence[Sequence[Request]], fixed: int = 0) -> int:
        return sum(generated(self.llm("default"), trace, fixed, seeded=False) for trace in traces)

    def uncached(self, traces: Sequence[Sequence[Request]], fixed: int = 0) -> int:
        llm = self.llm(
            "uncached", block_size=32, max_num_seqs=self.settings.max_num_seqs, enable_prefix_caching=False,
            enable_chunked_prefill=False,
        )  # fmt: skip
        return generated(llm, [request for trace in traces for request in trace], fixed)

    def transformers(self, traces: Sequence[Sequence[Request]], fixed: int = 0, batch: int = 64) -> int:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.model, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32).eval()
        requests = [request for trace in traces for request in trace]
        drawn = 0
        for start in range(0, len(requests), batch):
            some = requests[start : start + batch]
            longest = some[0].decoding.max_tokens
            given = tokenizer(
                [str(r.prompt) for r in some], return_tensors="pt", padding=True, add_special_tokens=False
            )
            with torch.inference_mode():
                out = model.generate(
                    **given, do_sample=True, temperature=some[0].decoding.temperature, top_k=0, top_p=1.0,
                    num_return_sequences=some[0].n, max_new_tokens=fixed or longest, min_new_tokens=fixed or None,
                    pad_token_id=tokenizer.pad_token_id,
                )  # fmt: skip
            answers = out[:, given["input_ids"].shape[1] :]
            drawn += int((answers != tokenizer.pad_token_id).sum())
        return drawn

    def rates(self, prompts: Sequence[str]) -> tuple[float, float]:
        """Tokens per second of our engine when it only decodes, at these prompts' mean length, or only prefills."""
        llm, ids = self.ours.llm, self.ours.encode(prompts)
        length = max(32, int(sum(map(len, ids)) / len(ids)))
        seqs = min(self.settings.max_num_seqs, ANSWERS * len(ids), 4_000_000 // length)
        words = [token for one in ids for token in one]
        words *= 1 + 40 * length // len(words)
        llm.reset_prefix_cache()
        asked = [words[:length]] * seqs
        submit(llm, asked[:1], 1, 1)
        decoded = timed(lambda: submit(llm, asked, 1, 1 + DECODED)) - timed(lambda: submit(llm, asked, 1, 1))
        llm.reset_prefix_cache()
        others = [[*words[i : i + 1], *words[i + 7 : i + 6 + length]] for i in range(40)]
        read = timed(lambda: submit(llm, others, 1, 1))
        return seqs * DECODED / decoded, sum(map(len, others)) / read


def submit(llm: Any, ids: Sequence[Sequence[int]], n: int, tokens: int) -> int:
    """Sample n completions of exactly `tokens` tokens for each prompt; returns the number of generated tokens."""
    from vllm import SamplingParams

    parameters = SamplingParams(n=n, temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": list(one)} for one in ids], parameters, use_tqdm=False)
    return sum(len(o.token_ids) for output in outputs for o in output.outputs)


def generated(llm: Any, requests: Sequence[Request], fixed: int = 0, seeded: bool = True) -> int:
    """Number of tokens that vLLM generates in one call of `generate`, `fixed` per answer or until each ends.

    The authors' settings run without seeds: they use chunked prefill, with which a seeded request fails on a CPU.
    """
    from vllm import SamplingParams

    parameters = [
        SamplingParams(
            n=r.n, seed=r.seed if seeded else None, temperature=r.decoding.temperature,
            max_tokens=fixed or r.decoding.max_tokens, ignore_eos=bool(fixed),
        )
        for r in requests
    ]  # fmt: skip
    outputs = llm.generate([str(r.prompt) for r in requests], parameters, use_tqdm=False)
    return sum(len(o.token_ids) for output in outputs for o in output.outputs)


def timed(work: Callable[[], object]) -> float:
    since = time.perf_counter()
    work()
    return time.perf_counter() - since


def distinct(engine: Engine, traces: Sequence[Sequence[Request]]) -> int:
    """Number of prompt tokens to prefill if each distinct prefix is prefilled once."""
    total = 0
    for trace in traces:
        ids = sorted(engine.encode([str(r.prompt) for r in trace]))  # neighbours share the longest prefixes
        for before, here in pairwise([[], *ids]):
            total += len(here) - sum(
                1 for _ in takewhile(lambda both: both[0] == both[1], zip(before, here, strict=False))
            )
    return total


def counted(work: Callable[..., Any], part: str, found: Counter[str]) -> Callable[..., Any]:
    """Wrap a method of vLLM so that its seconds are added to a part."""

    def wrapper(*arguments: Any, **named: Any) -> Any:
        since = time.perf_counter()
        result = work(*arguments, **named)
        found[part] += time.perf_counter() - since  # type: ignore[assignment]
        if part == "scheduling":
            found["tokens computed"] += result.total_num_scheduled_tokens
            found["steps"] += 1
        return result

    return wrapper


@contextmanager
def taken_apart(llm: Any) -> Iterator[Counter[str]]:
    """Count vLLM's seconds by part, and the tokens that its model computes, until the end of the block.

    `model` is the forward pass; `sampling` draws tokens; `scheduling` chooses the requests of a step and their cache
    blocks; `tokens drawn` adds new tokens to requests, and `texts` to their texts; `taking up` adds requests.
    """
    core, found = llm.llm_engine.engine_core.engine_core, Counter[str]()
    places = (
        (core.model_executor, "execute_model"), (core.model_executor, "sample_tokens"),
        (core.scheduler, "schedule"), (core.scheduler, "update_from_output"),
        (llm.llm_engine.output_processor, "process_outputs"), (llm.llm_engine, "add_request"),
    )  # fmt: skip
    for part, (owner, method) in zip(PARTS, places, strict=True):
        setattr(owner, method, counted(getattr(owner, method), part, found))
    try:
        yield found
    finally:
        for owner, method in places:
            delattr(owner, method)


def compare(
    record: Record, name: str, engines: Engines, traces: Sequence[Sequence[Request]], *, fixed: int = 0,
    repeats: int = 3, transformers: Sequence[Sequence[Request]] = (), uncached: bool = True,
) -> None:  # fmt: skip
    """Time the contenders in turn on the traces' requests: "no prefix cache" once, transformers on a subset."""
    asked = sum(r.n for trace in traces for r in trace)
    contenders: dict[str, Run] = {
        "ours": lambda some: engines.one_submission(some, fixed=fixed),
        "the authors' way": lambda some: engines.authors(some, fixed),
    }
    if uncached:
        contenders["no prefix cache"] = lambda some: engines.uncached(some, fixed)
    drawn: dict[str, int] = {}
    for run in contenders.values():
        run(traces[:1])  # warm
    llms = {"ours": engines.ours.llm, "the authors' way": engines.built["default"]}
    llms |= {"no prefix cache": engines.built["uncached"]} if uncached else {}
    prompts = [str(r.prompt) for trace in traces for r in trace]
    read = distinct(engines.ours, traces)
    ids = engines.ours.encode(prompts)
    for turn in range(repeats):
        for who, run in contenders.items():
            if who == "no prefix cache" and turn:
                continue
            llms[who].reset_prefix_cache()
            with taken_apart(llms[who]) as parts:
                since = time.perf_counter()
                drawn[who] = run(traces)
                record.add(f"{name}: {who}", "seconds", time.perf_counter() - since)
            for part, value in parts.items():
                record.add(f"{name}: {who}", part, value)
        if turn > 1:
            continue
        decoding, reading = engines.rates(prompts)
        record.add(f"{name}: floor", "seconds", drawn["ours"] / decoding + read / reading)
        engines.ours.llm.reset_prefix_cache()
        submit(engines.ours.llm, ids, 1, 1)
        record.add(f"{name}: first tokens", "seconds", timed(lambda: submit(engines.ours.llm, ids, ANSWERS, 1)))
    for who, tokens in drawn.items():
        record.add(f"{name}: {who}", "tokens an answer", tokens / asked)
    record.add(name, "answers", asked)
    record.add(name, "traces", len(traces))
    record.add(name, "distinct prompt tokens", read)
    if transformers:
        share = asked / sum(r.n for trace in transformers for r in trace)
        record.add(f"{name}: transformers", "seconds", share * timed(lambda: engines.transformers(transformers, fixed)))


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
        toy = Engines(TOY_BASE)
        compare(record, "toy", toy, traces, repeats=repeats, transformers=traces[:4])
        record_settings(record, toy, traces[::2], repeats)
        text = "".join(at.prefix.text() for at in places)
        thousand = at_lengths(toy.ours, text, [[STEP] * 12] * (1 if quick else 8), traces[0][0])
        every_third = [thousand[0][::3]]  # of 13 prefixes, so that their mean length is that of all
        compare(
            record, "thoughts of 1,000 tokens", toy, thousand,
            fixed=FIXED, repeats=repeats, transformers=every_third,
        )  # fmt: skip
        if quick:
            return
        rest = at_lengths(toy.ours, text, [[STEP] * 11] * 4, traces[0][0])
        compare(record, LONGER, toy, rest, fixed=8 * FIXED, repeats=1, uncached=False)
        larger = Engines(workload.make_model(folder / "larger", width=512, layers=8))
        compare(record, "27M parameters", larger, traces[:3], fixed=FIXED, repeats=1, transformers=[traces[0][::2]])
        if lengths := workload.real_lengths(LONGEST - 1000, 2):
            long = Engines(workload.make_model(folder / "long", width=64, layers=2, longest=LONGEST), LONGEST)
            real = at_lengths(long.ours, text, lengths, traces[0][0])
            record.add(REAL, "longest", max(map(sum, lengths)))
            compare(record, REAL, long, real, fixed=FIXED, repeats=1, uncached=False)
        record.add("toy: ours", "peak GiB", peak(folder))


def at_lengths(engine: Engine, text: str, lengths: Sequence[list[int]], like: Request) -> list[list[Request]]:
    """Requests at the prefixes of toy thoughts whose episodes have these lengths."""
    traces = [workload.at_real_lengths(text[5000 * t :] + text, own, engine.tokenizer) for t, own in enumerate(lengths)]
    told = OpenEnded().force("")  # "Time is up."
    chat = str(like.prompt).removesuffix(told)  # `like` is at the empty prefix
    return [
        [
            Request(chat + prefix + told, ANSWERS, like.seed + ANSWERS * (1000 * t + j), like.decoding)
            for j, prefix in enumerate(trace)
        ]
        for t, trace in enumerate(traces)
    ]


def record_settings(record: Record, toy: Engines, traces: Sequence[Sequence[Request]], repeats: int) -> None:
    """Time our settings, each changed alone."""
    engines = {name: Engine(toy.model, toy.settings.model_copy(update=own)) for name, own in SETTINGS.items()}
    engines["ours"] = toy.ours
    toy.built |= engines  # kept alive: a deleted engine of vLLM tears down what all engines of a process share
    for engine in engines.values():
        toy.one_submission(traces[:2], engine)
    for _ in range(repeats):
        for name, engine in engines.items():
            engine.llm.reset_prefix_cache()
            record.add(f"settings: {name}", "seconds", timed(lambda e=engine: toy.one_submission(traces, e)))  # type: ignore[misc]


def peak(folder: Path) -> float:
    """Peak memory, in GiB, of a separate process that answers the toy traces."""
    return float(alone("benchmarks.prover", folder).splitlines()[-1])


def main() -> None:
    folder = Path(sys.argv[1])
    stage = workload.prover(folder, ANSWERS)
    traces = by_trace([((at.problem_id, at.sample), at.request) for at in stage.places(stage.traces(None))])
    Engines(TOY_BASE).one_submission(traces)
    status = Path("/proc/self/status").read_text()  # unlike getrusage's, its peak excludes the parent's
    print(int(status.partition("VmHWM:")[2].split()[0]) / 2**20)


WHY = {
    "the authors' way": "It computes {tokens:.1f} times as many tokens (blocks of 128; it shares prefixes, too) in"
    " {steps:.1f} times as many steps. But the model's forward pass is only {model:.0%} of our time; most of the rest"
    " is vLLM's Python code, which takes the same time for a request and a token in both.",
    "no prefix cache": "It computes {tokens:.1f} times as many tokens. But the model's forward pass is only {model:.0%}"
    " of our time, and even thoughts of 1,000 tokens are too short for more.",
    "transformers": "These thoughts are short; with thoughts of 1,000 tokens the goal is met.",
}
FLOOR = (
    "The limit counts each distinct prompt token once. But every answer also prefills the {again:.0f} prompt tokens"
    " that fill no cache block, to generate {drawn:.1f}. To sample only the first token of every answer takes"
    " {first:.0%} of our time; the limit and this make {both:.0%} of it."
)


def report(table: pl.DataFrame) -> Report:
    names = [case for case in table["case"].unique(maintain_order=True) if has(table, f"{case}: ours")]
    names = [name for name in names if name != "settings"]
    rows, goals, taken = [], [], []
    for name in names:
        ours = middle(table, f"{name}: ours", "seconds")
        asked, drawn = middle(table, name, "answers"), middle(table, f"{name}: ours", "tokens an answer")
        shares = {part: middle(table, f"{name}: ours", part) / ours for part in PARTS}
        computed = middle(table, f"{name}: ours", "tokens computed")  # an answer's last token is not computed
        again = computed / asked - (drawn - 1) - middle(table, name, "distinct prompt tokens") / asked
        taken.append([name, *(f"{share:.0%}" for share in shares.values()), f"{1 - sum(shares.values()):.0%}",
                      f"{again:.1f}", f"{drawn:.1f}"])  # fmt: skip
        cells: list[object] = [f"{name} ({asked:,.0f} answers)", ours]
        for who, least in GOALS:
            if not has(table, f"{name}: {who}"):
                cells.append("")
                continue
            times = middle(table, f"{name}: {who}", "seconds") / ours
            cells.append(f"{times:.1f}")
            if name in GOALS_OF:
                why = WHY[who]
                if has(table, f"{name}: {who}", "steps"):
                    more = {
                        what: middle(table, f"{name}: {who}", what) / middle(table, f"{name}: ours", what)
                        for what in ("tokens computed", "steps")
                    }
                    why = why.format(tokens=more["tokens computed"], steps=more["steps"], model=shares["model"])
                goals.append(Goal(f"meta-prover, {name}: times faster than {who}", times, least, why=why))
        floor, first = (middle(table, f"{name}: {what}", "seconds") / ours for what in ("floor", "first tokens"))
        cells += [f"{floor:.2f}", f"{first:.2f}"]
        if name in GOALS_OF:
            why = FLOOR.format(again=again, drawn=drawn, first=first, both=floor + first)
            if has(table, f"{LONGER}: ours"):
                share = middle(table, f"{LONGER}: floor", "seconds") / middle(table, f"{LONGER}: ours", "seconds")
                why += f" With answers of 64 tokens the share is {share:.2f}."
            goals.append(Goal(f"meta-prover, {name}: share of the engine's limit", floor, 0.85, why=why))
        rows.append(cells)
    text = [
        "All sample the same forced answers, 20 at every prefix. *The authors' way* is one submission per trace, in"
        " order, with vLLM's default settings. `times`: how many times our seconds another way takes (transformers was"
        " timed on a part of the work and scaled up). `share of the limit`: the shortest time that the engine could"
        " take, over our time; in it the engine decodes at its highest rate and prefills each distinct prefix token"
        " once. `first tokens`: the time of as many answers of one token at cached prefixes, over our time.",
        markdown(
            ("workload", "ours, seconds", *(f"{who}: times" for who, _ in GOALS), "share of the limit", "first tokens"),
            rows,
        ),
        "Shares of our seconds by part of vLLM: the model's forward pass, sampling tokens, scheduling, appending the"
        " sampled tokens to their requests, detokenizing, and adding requests; the rest is our own code. All but the"
        " forward pass is Python on one core. The last columns: the prompt tokens that an answer prefills although"
        " another answer has done so, because they fill no block of 32, and the tokens that it generates.",
        markdown(("workload", *PARTS.values(), "rest", "prefilled again", "generated"), taken),
    ]
    if has(table, "settings: ours"):
        base = middle(table, "settings: ours", "seconds")
        found = [(name, f"{middle(table, f'settings: {name}', 'seconds') / base:.2f}") for name in SETTINGS]
        text += [
            "One setting changed at a time; the time on the toy's traces over that with our settings (blocks of 32"
            " tokens, 1,024 sequences):",
            markdown(("setting", "time"), found),
        ]
    if has(table, REAL, "longest"):
        text.append(f"The longest of the real thoughts has {middle(table, REAL, 'longest'):,.0f} tokens.")
    if has(table, "toy: ours", "peak GiB"):
        gibibytes = middle(table, "toy: ours", "peak GiB")
        text.append(
            f"Peak memory of a process that answers the toy's traces: {gibibytes:.2f} GiB, 1 GiB of it the KV cache."
        )
    return Report(text, goals, {"times": draw(table, names)})


def draw(table: pl.DataFrame, names: Sequence[str]) -> Any:
    from mrt.figures.style import panels

    figure, (axis,) = panels(1, height=2.6)
    colours = {"floor": "#999999", "ours": "#D55E00", "the authors' way": "#0072B2", "no prefix cache": "#56B4E9",
               "transformers": "#CC79A7"}  # fmt: skip
    for i, (who, colour) in enumerate(colours.items()):
        here = [(n, middle(table, f"{name}: {who}", "seconds") / middle(table, f"{name}: ours", "seconds"))
                for n, name in enumerate(names) if has(table, f"{name}: {who}")]  # fmt: skip
        axis.barh([n + 0.15 * (i - 2) for n, _ in here], [v for _, v in here], 0.14, color=colour, label=who)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("time, times ours")
    figure.set_figwidth(6)
    figure.legend(loc="outside lower center", ncols=5)
    return figure


if __name__ == "__main__":
    main()
