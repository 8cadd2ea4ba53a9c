"""How time and memory of every stage grow as problems, prefixes, samples and answers are doubled four times.

    python -m benchmarks scaling

Each stage is run by its own command on synthetic tables (`benchmarks/tables.py`) of sizes 1, 2, 4, 8 and 16: one
dimension grows and the others stay fixed. The exponent is the slope of log seconds, or log MiB, over the last two
doublings, where constant costs weigh least; it is 1 if twice the input takes twice as much. Stages that sample run with
an engine that answers at once (`benchmarks/stages.py`): what is left is this project's own work, for which a fast
engine would wait. Cases with vLLM itself, or with the trainer, run smaller sizes in one process per case, whose start
is not counted.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.record import ROOT, TOY_BASE, Goal, Record, Report, exponent, markdown, middle
from benchmarks.tables import MAKERS

INSIDE = {"SET": "problems", "EVALUATION": "others", "TABLES": "progress"}  # tables that a command names within JSON
TITLE = "Scaling: what twice the input takes"
DOUBLINGS = (1, 2, 4, 8, 16)
BOUND = 1.15
TEXT = """Each row is a stage on synthetic tables, of which one dimension doubles four times. Seconds are the time of
the stage's work (of two runs the faster one, where it is short); MiB is the growth of its peak resident memory. The
exponent is the slope of log(value) over log(size) in the last two doublings. No exponent is given where the whole
growth is below 0.2 s or 16 MiB. Stages that sample ran with an engine that answers at once, so that their own work
shows; those with vLLM and the trainer ran at smaller sizes, each in its own process.

Episodes have a fixed length. A thought of twice as many episodes is twice as long, and the prompts of its prefixes
are together four times as long. The text that they share is tokenized once (`mrt/sampling/tokens.py`) if no token of
the tokenizer can reach across the end of a line; with any other tokenizer each prompt is tokenized whole, and the
time is quadratic. Prompts are made when the engine needs them. Copying stays quadratic, as a request holds all its
token ids.

The dashed line is linear growth. Lines above the bound of the exponent are orange."""
WHY = {
    "prover, prefixes: exponent of seconds": "In part it is quadratic: a request holds all token ids of its prompt.",
}
SHORT = 3.0  # seconds; what takes less is run again, and the faster run counts
LEAST = {"seconds": 0.2, "MiB": 16.0}  # with less growth, from the smallest to the largest size, no exponent is given
SIZES = {"problems": 20, "samples": 1, "prefixes": 8, "answers": 4}


@dataclass(frozen=True)
class Case:
    """A stage's command, and the smallest size of each dimension that grows."""

    name: str
    command: str  # {kind} stands for a table, {out} for the folder
    grows: dict[str, int]
    sizes: dict[str, int] = field(default_factory=dict)  # other dimensions that differ from SIZES
    engine: str | None = None
    again: bool = False  # whether the second run is the one that counts

    def kinds(self) -> list[str]:
        """The tables that it reads."""
        inside = [kind for word, kind in INSIDE.items() if word in self.command.split()]
        return [*inside, *(kind for kind in MAKERS if f"{{{kind}}}" in self.command)]


SAMPLED = f"--model {TOY_BASE} --names m --names d"
EVALUATE = "mrt.analysis.evaluate --out {out}/table.parquet --measure"
PROVED = "--prover {prover} --grades {prover_grades}"
CASES = [
    Case(
        "problems", "mrt.problems.build --name d --set SET --disjoint {others} --out {out}/d.parquet", {"problems": 250}
    ),
    Case(
        "contamination",
        "mrt.problems.contamination --problems {problems} --evaluation EVALUATION --out {out}/c.parquet",
        {"problems": 250},
    ),
    Case(
        "sampling",
        f"mrt.sampling.rollouts {SAMPLED} --problems {{problems}} --out {{out}}/r.parquet --samples SAMPLES",
        {"problems": 100, "samples": 50},
        engine="at once",
    ),
    Case("episodes", "mrt.episodes.cut --rollouts {rollouts} --out {out}/e.parquet", {"samples": 100, "prefixes": 800}),
    Case(
        "prover",
        f"mrt.sampling.prover {SAMPLED} --rollouts {{rollouts}} --episodes {{episodes}} --out {{out}}/p.parquet"
        f" --prover.answers 4",
        {"samples": 4, "prefixes": 16},
        engine="at once",
    ),
    Case(
        "prover, all kept",
        f"mrt.sampling.prover {SAMPLED} --rollouts {{rollouts}} --episodes {{episodes}} --out {{out}}/p.parquet"
        f" --prover.answers 4 --cache.folder {{out}}/cache",
        {"samples": 6},
        engine="at once",
        again=True,
    ),
    Case(
        "budget_forcing",
        f"mrt.sampling.budget_forcing {SAMPLED} --rollouts {{rollouts}} --episodes {{episodes}} --out"
        f" {{out}}/p.parquet --out_thoughts {{out}}/t.parquet",
        {"samples": 3},
        engine="at once",
    ),
    Case(
        "linearized",
        f"mrt.sampling.linearized {SAMPLED} --problems {{problems}} --out {{out}}/l.parquet"
        f" --linearized.window 64 --linearized.attempts ATTEMPTS --cache.folder {{out}}/cache",
        {"attempts": 5, "problems": 10},
        {"attempts": 8},
        engine="at once",
    ),
    Case(
        "grading of rollouts",
        "mrt.grading.grade --problems {problems} --answers {rollouts} --out {out}/g.parquet --workers 1",
        {"problems": 250, "samples": 200},
    ),
    Case(
        "grading of forced answers",
        "mrt.grading.grade --problems {problems} --answers {prover} --out {out}/g.parquet --workers 1",
        {"prefixes": 80, "answers": 40},
    ),
    Case(
        "progress",
        f"mrt.analysis.progress {PROVED} --out {{out}}/x.parquet",
        {"problems": 1000, "prefixes": 400, "answers": 200},
    ),
    Case(
        "sets, STaR",
        "mrt.training.sets --method star --rollouts {rollouts} --grades {grades} --out {out}/s.parquet --out_rules"
        " {out}/r.parquet",
        {"samples": 1200},
    ),
    Case(
        "sets, MRT",
        "mrt.training.sets --method mrt --rollouts {rollouts} --grades {grades} --episodes {episodes} --progress"
        " {progress} --prover {prover} --prover_grades {prover_grades} --out {out}/s.parquet --out_rules"
        " {out}/r.parquet",
        {"samples": 100, "prefixes": 800},
    ),
    Case(
        "prompts",
        "mrt.training.prompts --prefixes 1 --forced true --problems {problems} --episodes {episodes} --out"
        " {out}/p.parquet",
        {"problems": 2000, "prefixes": 1600},
    ),
    Case(
        "accuracy",
        f"{EVALUATE} accuracy --problems {{problems}} --rollouts {{rollouts}} --grades {{grades}}",
        {"samples": 1000},
    ),
    Case(
        "maj",
        f"{EVALUATE} maj --rollouts {{rollouts}} --grades {{grades}}",
        {"problems": 4000, "samples": 100},
        {"samples": 8, "prefixes": 2},
    ),
    Case("prefixes", f"{EVALUATE} prefixes {PROVED}", {"prefixes": 200, "answers": 50}, {"answers": 8}),
    Case("regret", f"{EVALUATE} regret --progress {{progress}}", {"problems": 5000, "prefixes": 5000}),
    Case("episode_regret", f"{EVALUATE} episode_regret --prefixes {{prefixes}}", {"problems": 200, "prefixes": 500}),
    Case("budget_forcing, measure", f"{EVALUATE} budget_forcing {PROVED}", {"problems": 1000}),
    Case("linearized, measure", f"{EVALUATE} linearized {PROVED}", {"prefixes": 4000}, {"answers": 1}),
    Case(
        "figure of progress",
        "mrt.figures.progress --tables TABLES --models MODELS --out {out}/f",
        {"problems": 50},
    ),
]


REAL = [  # with vLLM and with the trainer: all sizes of a case in one process, after an uncounted first run
    Case(
        "sampling with vLLM",
        f"mrt.sampling.rollouts {SAMPLED} --problems {{problems}} --out {{out}}/r.parquet --decoding.max_tokens 32",
        {"problems": 32},
    ),
    Case(
        "prover with vLLM",
        f"mrt.sampling.prover {SAMPLED} --rollouts {{rollouts}} --episodes {{episodes}} --out {{out}}/p.parquet"
        " --prover.answers 2 --prover.decoding.max_tokens 8",
        {"samples": 1},
        {"prefixes": 4, "problems": 10},
    ),
    Case(
        "train.sft",
        f"mrt.training.sft --model {TOY_BASE} --set {{examples}} --out {{out}}/m --history {{out}}/h --state {{out}}/s"
        " --recipe.epochs 1 --recipe.batch_size 8 --recipe.micro_batch_size 8 --recipe.bf16 false"
        " --recipe.gradient_checkpointing false",
        {"samples": 2},
        {"prefixes": 4, "problems": 8},
    ),
]


class Stages:
    """The process that runs commands (`benchmarks/stages.py`)."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.stages"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **what: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline() or '{"error": "the process has ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["found"]

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def arguments(case: Case, sizes: dict[str, int], out: Path) -> list[str]:
    """The command for tables in the folder `out`."""
    paths = {kind: str(out / f"{kind}.parquet") for kind in case.kinds()}
    given = {
        "SET": {"file": str(out / "problems.parquet"), "split": "train", "disjoint_from": ["others"]},
        "EVALUATION": {"others": str(out / "others.parquet")},
        "TABLES": {"progress": {"m": {"d": str(out / "progress.parquet")}}},
        "MODELS": {"m": {"label": "M"}},
    }
    words = [
        json.dumps(given[word]) if word in given else word.format(out=out, **paths) for word in case.command.split()
    ]
    return [str(sizes[word.lower()]) if word in ("SAMPLES", "ATTEMPTS") else word for word in words]


def measure(record: Record, quick: bool = False) -> None:
    stages = Stages()
    try:
        for case in CASES[:: 4 if quick else 1]:
            for grows, least in case.grows.items():
                for factor in DOUBLINGS[:2] if quick else DOUBLINGS:
                    sizes = {**SIZES, **case.sizes, grows: least * factor}
                    with tempfile.TemporaryDirectory() as folder:
                        stages.ask(make=[folder, case.kinds(), sizes])
                        command = arguments(case, sizes, Path(folder))
                        for _ in range(2 if case.again else 1):
                            ((seconds, mebibytes),) = stages.ask(commands=[command], engine=case.engine)
                        if seconds < SHORT and not quick:
                            ((again, _),) = stages.ask(commands=[command], engine=case.engine)
                            seconds = min(seconds, again)
                    record.add(f"{case.name}, {grows}", "seconds", seconds, least * factor)
                    record.add(f"{case.name}, {grows}", "MiB", mebibytes, least * factor)
        for case in REAL[:1] if quick else REAL:
            together(stages, case, DOUBLINGS[:2] if quick else DOUBLINGS, record)
    finally:
        stages.close()


def together(stages: Stages, case: Case, factors: Sequence[int], record: Record) -> None:
    """Measure the sizes of a case in one process, after an uncounted run of the smallest."""
    ((grows, least),) = case.grows.items()
    with tempfile.TemporaryDirectory() as folder:
        commands = []
        for turn, factor in enumerate((1, *factors)):
            sizes = {**SIZES, **case.sizes, grows: least * factor}
            out = Path(folder) / str(turn)
            out.mkdir()
            stages.ask(make=[str(out), case.kinds(), sizes])
            commands.append(arguments(case, sizes, out))
        taken = stages.ask(commands=commands, engine="vllm")
    for factor, (seconds, _) in zip(factors, taken[1:], strict=True):
        record.add(f"{case.name}, {grows}", "seconds", seconds, least * factor)


def curves(table: pl.DataFrame) -> Iterator[tuple[str, str, list[float], list[float]]]:
    """(case, quantity, sizes, medians) of all that was measured at several sizes."""
    rows = table.filter(pl.col("case") != "whole")
    for case, quantity in rows.select("case", "quantity").unique(maintain_order=True).iter_rows():
        sizes = sorted(rows.filter(case=case, quantity=quantity)["size"].unique())
        yield case, quantity, sizes, [middle(rows, case, quantity, size) for size in sizes]


def report(table: pl.DataFrame) -> Report:
    from mrt.figures.style import panels

    report, rows, found = Report(), [], list[tuple[float, str]]()
    drawn, axes = panels(2, columns=2)
    for axis, quantity in zip(axes, LEAST, strict=True):
        axis.set(
            xscale="log",
            yscale="log",
            xlabel="size, in sizes of the smallest",
            ylabel=f"{quantity}, in those of the smallest",
        )
        axis.plot(DOUBLINGS, DOUBLINGS, color="#000000", linestyle="--", linewidth=0.8)
    for case, quantity, sizes, values in curves(table):
        told = values[-1] - values[0] >= LEAST[quantity] and len(sizes) > 3
        k = exponent(sizes[-3:], values[-3:]) if told else 0.0
        span = f"{sizes[0]:g} to {sizes[-1]:g}"
        rows.append((case, quantity, span, values[0], values[-1], f"{k:.2f}" if told else "too little to tell"))
        if told:
            found.append((k, f"{case}: exponent of {quantity}"))
            colour = "#D55E00" if k > BOUND else "#999999"
            axes[list(LEAST).index(quantity)].plot(
                np.divide(sizes, sizes[0]),
                np.divide(values, values[0]),
                color=colour,
                linewidth=0.9,
                zorder=2 + (k > BOUND),
            )
    below = [k for k, _ in found if k <= BOUND]
    report.goals = [
        Goal(name, k, BOUND, at_most=True, why=WHY.get(name, "See the table.")) for k, name in found if k > BOUND
    ]
    if below:
        others = f"largest exponent of {len(below)} of {len(found)} (stage, what grows, time or memory)"
        report.goals.append(Goal(others, max(below), BOUND, at_most=True))
    report.text += [
        TEXT,
        markdown(("stage, what grows", "quantity", "sizes", "at the least", "at the most", "exponent"), rows),
    ]
    report.figures["growth"] = drawn
    return report
