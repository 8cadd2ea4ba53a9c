"""The rates of finished runs on this machine's CPU: seconds a token of each rule, and lengths of texts.

Both are those of models of one size, as a larger one is slower and writes other texts. They are read from the logs of
this folder, `logs/<experiment>`, and from the results of the same name beside those that are planned for. Only jobs
that had nothing in the caches count.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import polars as pl

from mrt.config.hardware import UnknownSizes, architecture_of
from mrt.core.digest import local_folder
from mrt.core.hub import cached
from mrt.core.storage import read_provenance

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
    """Seconds a token by rule, and mean lengths, of models by their parameters; empty where nothing has run."""

    sums: dict[tuple[str, int | None], Sums] = field(default_factory=lambda: defaultdict(Sums))
    lengths: dict[tuple[str, int | None], list[float]] = field(default_factory=lambda: defaultdict(list))

    def seconds(self, rule: str, parameters: int | None) -> float | None:
        """Seconds a token of a rule's jobs."""
        sums = self.sums.get((rule, parameters))
        return sums.seconds / sums.tokens if sums and sums.tokens and sums.seconds > 0 else None

    def length(self, name: str, parameters: int | None) -> float | None:
        """The median of the jobs that have run: tokens of a `rollout`, `answer`, `prompt`; `episodes` of a thought."""
        values = self.lengths.get((name, parameters))
        return median(values) if values else None

    def in_words(self, sizes: Collection[int | None]) -> str:
        """Where the hours of a plan for models of these sizes are from, if from finished runs."""
        rates = [(rule, size, rate) for rule, size in self.sums if size in sizes and (rate := self.seconds(rule, size))]
        several = len({size for _, size, _ in rates}) > 1
        shown = [
            f"{rule} {1 / rate:,.0f}" + (f" ({size / 1e6:,.0f}M)" if several and size else "")
            for rule, size, rate in rates
        ]
        return f"as finished runs here took them, in tokens a second: {', '.join(shown)}" if shown else ""

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
        """Count a job that sampled these tables; not one that read off probabilities."""
        text = log.read_text(errors="replace")
        counts, took = COUNTED.findall(text), TOOK.search(text)
        if not took or not tables or len(counts) != len(tables) or any(int(cached) for cached, _ in counts):
            return
        size = parameters_of_sampler(tables[0])
        scored = pl.col("finish_reason") == "scored"
        if size is None or any(pl.scan_parquet(table).select(scored.any()).collect().item() for table in tables):
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
                self.lengths[name, size].append(float(mean))
            if rule == "force_answers":
                thoughts = table.parents[2] / "rollouts" / log.parts[-3] / table.name
                episodes = rows.group_by("problem_id", "sample").agg(pl.col("prefix").max())
                mean = episodes.select(pl.col("prefix").mean()).collect().item()
                if thoughts.is_file() and (of_thoughts := parameters_of_sampler(thoughts)):  # mu may be another model
                    self.lengths["episodes", of_thoughts].append(float(mean))
            else:
                self.lengths["prompt", size].append(float(rows.select(pl.col("prompt_tokens").mean()).collect().item()))
        self.sums[rule, size].seconds += max(float(took[1]) - start, 0.0)
        self.sums[rule, size].tokens += tokens

    def add_trained(self, log: Path, history: Path) -> None:
        """Count a training of SFT that ran and was not taken from the kept ones."""
        text = log.read_text(errors="replace")
        took, size = TOOK.search(text), parameters_of(history.with_name(log.stem))
        if took and size and "cached checkpoint is taken" not in text and history.is_file():
            tokens = pl.scan_parquet(history).select(pl.col("num_tokens").max()).collect().item()
            self.sums["train", size].seconds += float(took[1])
            self.sums["train", size].tokens += float(tokens)


def parameters_of(folder: Path | None) -> int | None:
    """Parameters of a checkpoint; None if it is not there any more."""
    try:
        return architecture_of(folder).parameters if folder else None
    except (OSError, UnknownSizes):
        return None


def parameters_of_sampler(table: Path) -> int | None:
    """Parameters of the model that sampled a table, which its provenance names."""
    options = (read_provenance(table) or {}).get("options", {})
    model, revision = options.get("model", ""), options.get("revision")
    folder = local_folder(model)
    return parameters_of(folder if folder.is_dir() else cached(model, revision)) if model else None


def tables_of(folder: Path, log: Path) -> Iterator[Path]:
    """The tables of a pool: of all evaluation sets, or of one training set."""
    request = re.search(r'"requests": \[([^\]]*)\]', log.read_text(errors="replace"))
    for file in re.findall(r"([^/\"]+)\.json", request[1]) if request else ():
        if (table := folder / f"{file}.parquet").is_file():
            yield table
