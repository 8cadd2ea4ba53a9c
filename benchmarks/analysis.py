"""Analysis: exact [maj@p]_j against the authors' Monte Carlo; measures on tables of the paper's full size.

    python -m benchmarks analysis

[maj@p]_j: on the case study's table (16 traces of 15 problems, 12 prefixes, 8 answers; p = 1, 2, 4, 8), exactly by
`mrt.analysis.votes.maj_at_k_table`, and as the authors estimate it (Section 5, Figure 3): 100,000 random subsets per
prefix and p, vectorised. Only a few prefixes are estimated, and the time is scaled up.

Full size: 5 models on 5 benchmarks, 20 samples a problem, 40 prefixes a sample, 20 forced answers a prefix; synthetic.
The stages run as in the workflow, each in a process of its own, whose peak memory the kernel reports. Only one model's
tables are made and measured; the others' are as large. The intervals are those of the figures, over the measured
tables.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.record import ROOT, Goal, Record, Report, alone, has, markdown, middle

TITLE = "Analysis"
TRACES, PROBLEMS, PREFIXES, ANSWERS, VOTES = 16, 15, 12, 8, (1, 2, 4, 8)  # of the case study
DRAWS = 100_000
BENCHMARKS = {"AIME 2024": 30, "AIME 2025": 30, "AMC 2023": 40, "AMC 2022 and 2023": 83, "Minerva": 272}  # problems
MODELS, SAMPLES, LONG, FORCED = 5, 20, 40, 20  # samples a problem, prefixes a sample, forced answers a prefix
LARGEST = "Minerva"
STAGES = {
    "progress": "mrt.analysis.progress --prover prover.parquet --grades grades.parquet",
    "prefixes": "mrt.analysis.evaluate --measure prefixes --prover prover.parquet --grades grades.parquet",
    "regret": "mrt.analysis.evaluate --measure regret --progress progress.parquet",
    "episode_regret": "mrt.analysis.evaluate --measure episode_regret --prefixes prefixes.parquet",
    "maj": "mrt.analysis.evaluate --measure maj --rollouts rollouts.parquet --grades rollouts.grades.parquet",
    "accuracy": "mrt.analysis.evaluate --measure accuracy --problems problems.parquet --rollouts rollouts.parquet"
    " --grades rollouts.grades.parquet",
}
GIB = 2**30

# A process's reported peak memory is at least its parent's, so the parent is a small one.
MEASURED = """
import resource, subprocess, sys, time
since = time.perf_counter()
done = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL)
print(time.perf_counter() - since, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(done.returncode)
"""


def peak(*arguments: object) -> tuple[float, float]:
    """Seconds and peak GiB of `python ARGUMENTS`. Raises RuntimeError with its errors if it fails."""
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, arguments))}\n{done.stderr[-3000:]}")
    seconds, size = map(float, done.stdout.split())
    return seconds, size / GIB


# --- maj@p ------------------------------------------------------------------------------------------------------------


def estimate(clusters: np.ndarray, correct: np.ndarray, votes: int, rng: np.random.Generator) -> float:
    """maj@votes of one prefix from DRAWS random subsets; ties give 1/2."""
    subsets = np.argsort(rng.random((DRAWS, clusters.size)), axis=1)[:, :votes]
    labels = np.unique(clusters[clusters >= 0])
    counts = (clusters[subsets][:, :, None] == labels).sum(axis=1)
    winners = (counts == counts.max(axis=1, keepdims=True)) & (counts > 0)
    right = np.array([correct[clusters == label].any() for label in labels])
    return float(np.mean((winners & right).any(axis=1) * np.where(winners.sum(axis=1) > 1, 0.5, 1.0)))


def measure_maj(record: Record, drawn: int, repeats: int) -> None:
    from mrt.analysis.votes import _credits, maj_at_k_table

    rng = np.random.default_rng(0)
    groups = TRACES * PROBLEMS * PREFIXES
    clusters = rng.integers(-1, 5, groups * ANSWERS)
    index = np.arange(clusters.size)
    table = pl.DataFrame({"prefix": index // ANSWERS, "cluster": clusters, "correct": clusters == 2})
    record.add("maj@p", "answers", table.height)
    record.add("maj@p", "prefixes", groups)
    for repeat in range(repeats):
        _credits.cache_clear()
        since = time.perf_counter()
        exact = maj_at_k_table(table, ["prefix"], VOTES)
        record.add("maj@p, exact", "seconds", time.perf_counter() - since)
        estimates = []
        since = time.perf_counter()
        for prefix in range(repeat * drawn, (repeat + 1) * drawn):
            here = slice(prefix * ANSWERS, (prefix + 1) * ANSWERS)
            estimates += [estimate(clusters[here], clusters[here] == 2, votes, rng) for votes in VOTES]
        record.add("maj@p, Monte Carlo", "seconds", (time.perf_counter() - since) * groups / drawn)
        same = exact["maj"].to_numpy()[repeat * drawn * len(VOTES) : (repeat + 1) * drawn * len(VOTES)]
        record.add("maj@p, Monte Carlo", "largest error", np.abs(same - estimates).max())


# --- Full size --------------------------------------------------------------------------------------------------------


def make(folder: Path, problems: int) -> None:
    """Write tables of one model on a benchmark of `problems` problems: rollouts, forced answers and their grades."""
    i = pl.int_range(problems * SAMPLES * LONG * FORCED, eager=True).rename("i").to_frame().lazy()
    here, trace, prefix = pl.col("i"), pl.col("i") // (LONG * FORCED), pl.col("i") // FORCED % LONG
    hard = trace.hash(1) % 1_000 / 1_000  # a trace's difficulty, at most 1
    right = here.hash(2) % 1_000_000 / 1_000_000 < (1 - hard) * (0.4 + prefix / 80)
    other = (here.hash(3) % 7).cast(pl.Int64)  # which wrong answer; the last is unparseable
    key = {
        "problem_id": pl.format("problem-{}", trace // SAMPLES),
        "sample": trace % SAMPLES,
        "prefix": prefix,
        "answer_index": here % FORCED,
    }
    verdict = {
        "answer": other.cast(pl.String),
        "parsed": right | (other < 6),
        "correct": right,
        "cluster": pl.when(right).then(0).when(other == 6).then(-1).otherwise(other + 1).cast(pl.Int64),
    }
    said = (
        "The steps up to here lead to {}, as the sum of the first terms is {}. So the answer is what was found above."
    )
    text = pl.format(said + r" \boxed", here.hash(4), here.hash(5)) + pl.lit("{") + other.cast(pl.String) + pl.lit("}")
    before = 400 * prefix + trace % SAMPLES
    ninety = pl.lit(90, pl.Int64)
    sizes = {"tokens": 60 + here % 50, "problem_tokens": ninety, "prefix_tokens": before, "prompt_tokens": before + 120}
    ended = {"finish_reason": pl.lit("stop"), "mean_logprob": pl.lit(-0.3)}
    i.select(**key, text=text, **sizes, **ended).sink_parquet(folder / "prover.parquet")
    i.select(**key, **verdict).sink_parquet(folder / "grades.parquet")
    traces = i.filter(here % (LONG * FORCED) == 0)
    one = {name: key[name] for name in ("problem_id", "sample")}
    long = pl.concat_str([text] * 200)  # about 26,000 characters
    rollout = {"prompt": text, "text": long, "tokens": 400 * LONG + here % 50, "prompt_tokens": ninety}
    begun = {"inside": pl.lit(True), "thinking": pl.lit(None, pl.String)}
    traces.select(**one, **rollout, **ended, **begun).sink_parquet(folder / "rollouts.parquet")
    traces.select(**one, **verdict).sink_parquet(folder / "rollouts.grades.parquet")
    empty = pl.lit(None, pl.String)
    traces.filter(trace % SAMPLES == 0).select(
        *(key["problem_id"].alias("id"), text.alias("problem"), verdict["answer"].alias("answer")),
        solution=empty,
        difficulty=pl.lit(None, pl.Float64),
        source=empty,
        split=empty,
    ).sink_parquet(folder / "problems.parquet")


def measure_intervals(folders: list[str]) -> None:
    """Seconds of the intervals of one model's regret at every budget and of its maj@p at every prefix."""
    from mrt.analysis.intervals import interval_table

    since = time.perf_counter()
    for folder in folders:
        interval_table(pl.read_parquet(f"{folder}/regret.parquet"), ["budget"], "regret")
        votes = pl.read_parquet(f"{folder}/prefixes.parquet", columns=["problem_id", "prefix", "p", "maj"])
        interval_table(votes, ["prefix", "p"], "maj")
    print(time.perf_counter() - since)


def measure_full_size(record: Record, benchmarks: dict[str, int]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="benchmark_"))
    try:
        for name, problems in benchmarks.items():
            place = folder / name
            place.mkdir()
            alone("benchmarks.analysis", "make", place, problems)
            record.add(name, "answers", problems * SAMPLES * LONG * FORCED)
            record.add(name, "GiB on disk", sum(file.stat().st_size for file in place.iterdir()) / GIB)
            for stage, command in STAGES.items():
                words = [str(place / word) if word.endswith(".parquet") else word for word in command.split()]
                seconds, size = peak("-m", *words, "--out", place / f"{stage}.parquet")
                record.add(f"{name}: {stage}", "seconds", seconds)
                record.add(f"{name}: {stage}", "GiB", size)
        seconds, size = peak("-m", "benchmarks.analysis", "intervals", *sorted(folder.iterdir()))
        record.add("intervals", "seconds", seconds)
        record.add("intervals", "GiB", size)
    finally:
        shutil.rmtree(folder)


def measure(record: Record, quick: bool) -> None:
    measure_maj(record, 2 if quick else 10, 1 if quick else 3)
    measure_full_size(record, {LARGEST: 4} if quick else BENCHMARKS)


def report(table: pl.DataFrame) -> Report:
    exact, drawn = (middle(table, f"maj@p, {how}", "seconds") for how in ("exact", "Monte Carlo"))
    error = table.filter(pl.col("quantity") == "largest error")["value"].to_numpy().max()
    names = [name for name in BENCHMARKS if table.filter(pl.col("case") == name).height]
    answers = sum(middle(table, name, "answers") for name in names)
    rows, total, highest = [], 0.0, 0.0
    for stage in STAGES:
        seconds = [middle(table, f"{name}: {stage}", "seconds") for name in names]
        size = max(middle(table, f"{name}: {stage}", "GiB") for name in names)
        rows.append((stage, middle(table, f"{LARGEST}: {stage}", "seconds"), size, MODELS * sum(seconds)))
        total, highest = total + MODELS * sum(seconds), max(highest, size)
    # records made before the intervals were from variance components have a bootstrap
    case, name = ("intervals", "intervals") if has(table, "intervals") else ("bootstrap", "bootstrap (2,000 resamples)")
    seconds, size = middle(table, case, "seconds"), middle(table, case, "GiB")
    rows.append((name, "", size, MODELS * seconds))
    total, highest = total + MODELS * seconds, max(highest, size)
    rows.append(("all, one after the other", "", highest, total))
    report = Report(
        [
            f"[maj@p]_j of {middle(table, 'maj@p', 'answers'):,.0f} answers at"
            f" {middle(table, 'maj@p', 'prefixes'):,.0f} prefixes, p = {', '.join(map(str, VOTES))}: the exact value"
            f" takes {exact:.2f} s. {DRAWS:,} draws for each prefix and p, as the authors do it, take {drawn:,.0f} s"
            f" (scaled up from a few prefixes), {drawn / exact:,.0f} times as long, and are off by up to {error:.4f}.",
            f"The measures at full size: {len(names)} benchmarks, {SAMPLES} samples a problem, {LONG} prefixes a"
            f" sample, {FORCED} forced answers a prefix: {answers / 1e6:.2f} million answers a model,"
            f" {MODELS * answers / 1e6:.1f} million of {MODELS} models. Every stage is a process of its own, and its"
            f" seconds include the start of the process. {LARGEST} is the largest benchmark"
            f" ({middle(table, LARGEST, 'answers') / 1e6:.2f} million answers). One model was"
            f" measured; the seconds of {MODELS} models are {MODELS} times those.",
            markdown(("measure", f"s on {LARGEST}, one model", "peak GiB", f"s, sum of {MODELS} models"), rows),
        ],
        [
            Goal("Exact [maj@p]_j, times as fast as 100,000 draws", drawn / exact, 100),
            Goal("Measures of the largest benchmark, peak GiB of a process", highest, 4, True),
        ],
    )
    report.figures["full_size"] = draw(table, names)
    return report


def draw(table: pl.DataFrame, names: list[str]) -> Any:
    from mrt.figures.style import MARKERS, SPARE_COLOURS, legend, panels

    figure, axes = panels(2)
    for axis, (quantity, label) in zip(axes, (("seconds", "seconds"), ("GiB", "peak GiB")), strict=True):
        for stage, colour, marker in zip(STAGES, SPARE_COLOURS, MARKERS, strict=False):
            size = [middle(table, name, "answers") / 1e6 for name in names]
            axis.plot(
                size,
                [middle(table, f"{name}: {stage}", quantity) for name in names],
                color=colour,
                marker=marker,
                markersize=3.5,
                label=stage,
            )
        axis.set(xlabel="million answers of one model on a benchmark", ylabel=label, ylim=(0, None), xlim=(0, None))
    legend(figure, axes[0])
    return figure


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        measure_intervals(sys.argv[2:])
