"""The rates of finished runs on this machine's CPU: seconds a token of each rule, and lengths of texts.

They are read from the logs of this folder, `logs/<experiment>`, and from the results of the same name beside those that
are planned for. Only jobs that had nothing in the caches count.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import polars as pl

TOOK = re.compile(r"^took ([\d.]+) s", re.MULTILINE)  # mrt/core/cli.py
COUNTED = re.compile(r"^(\d+) completions cached, (\d+) to sample", re.MULTILINE)  # mrt/sampling/cache.py
KINDS = {"sample_rollouts": "rollouts", "force_answers": "prover", "force_budget": "budget_forcing"}


@dataclass
class Sums:
    """Sums over jobs of a rule: seconds after their starts, and tokens that were generated or trained on."""

    seconds: float = 0.0
    tokens: float = 0.0


@dataclass
class Rates:
    """Seconds a token by rule, and mean lengths; empty where nothing has run."""

    sums: dict[str, Sums] = field(default_factory=lambda: defaultdict(Sums))
    lengths: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def seconds(self, rule: str) -> float | None:
        """Seconds a token of a rule's jobs."""
        sums = self.sums.get(rule)
        return sums.seconds / sums.tokens if sums and sums.tokens and sums.seconds > 0 else None

    def length(self, name: str) -> float | None:
        """The median of the jobs that have run: tokens of a `rollout`, `answer`, `prompt`; `prefixes` of a thought."""
        values = self.lengths.get(name)
        return median(values) if values else None

    def in_words(self) -> str:
        """Where the hours of a plan are from, if from finished runs."""
        rates = {rule: self.seconds(rule) for rule in self.sums}
        shown = ", ".join(f"{rule} {1 / rate:,.0f}" for rule, rate in rates.items() if rate)
        return f"as finished runs here took them, in tokens a second: {shown}" if shown else ""

    @classmethod
    def left_by(cls, results: Path, start: float) -> "Rates":
        """The rates of the runs beside these results; a job takes `start` seconds until it works."""
        rates = cls()
        for folder in sorted(each for each in results.absolute().parent.glob("*") if each.is_dir()):
            for rule, kind in KINDS.items():
                for log in sorted(Path("logs", folder.name, rule).glob("*/*/*.log")):
                    rates.add_sampled(rule, log, list(tables_of(folder / kind / log.parts[-3], log)), start)
            for log in sorted(Path("logs", folder.name, "train").glob("*.log")):
                rates.add_trained(log, folder / "models" / f"{log.stem}.log.parquet")
        return rates

    def add_sampled(self, rule: str, log: Path, tables: list[Path], start: float) -> None:
        """Count a job that sampled these tables."""
        text = log.read_text(errors="replace")
        counts, took = COUNTED.findall(text), TOOK.search(text)
        if not took or not tables or len(counts) != len(tables) or any(int(cached) for cached, _ in counts):
            return
        tokens = 0
        for table in tables:
            rows = pl.scan_parquet(table)
            tokens += int(rows.select(pl.col("tokens").sum()).collect().item())
            if rule == "force_budget":
                thoughts = table.with_name(f"{table.stem}.thoughts.parquet")
                tokens += int(pl.scan_parquet(thoughts).select(pl.col("tokens").sum()).collect().item())
                continue
            mean = rows.select(pl.col("tokens").mean()).collect().item()
            names = ["answer"] if rule == "force_answers" else ["rollout", f"rollout of {log.parts[-3]}"]
            for name in names:
                self.lengths[name].append(float(mean))
            if rule == "force_answers":
                prefixes = rows.select("problem_id", "sample", "prefix").unique().collect()
                self.lengths["prefixes"].append(prefixes.height / prefixes.n_unique(["problem_id", "sample"]))
            else:
                self.lengths["prompt"].append(float(rows.select(pl.col("prompt_tokens").mean()).collect().item()))
        self.sums[rule].seconds += max(float(took[1]) - start, 0.0)
        self.sums[rule].tokens += tokens

    def add_trained(self, log: Path, history: Path) -> None:
        """Count a training of SFT that ran and was not taken from the kept ones."""
        text = log.read_text(errors="replace")
        took = TOOK.search(text)
        if took and "cached checkpoint is taken" not in text and history.is_file():
            tokens = pl.scan_parquet(history).select(pl.col("num_tokens").max()).collect().item()
            self.sums["train"].seconds += float(took[1])
            self.sums["train"].tokens += float(tokens)


def tables_of(folder: Path, log: Path) -> Iterator[Path]:
    """The tables of a pool: of all evaluation sets, or of one training set."""
    request = re.search(r'"requests": \[([^\]]*)\]', log.read_text(errors="replace"))
    for file in re.findall(r"([^/\"]+)\.json", request[1]) if request else ():
        if (table := folder / f"{file}.parquet").is_file():
            yield table
