"""Training logs, one row per step: of a training run here, or of a model that was trained elsewhere.

    python -m mrt.training.log --history star_1.history.parquet --out star_1.log.parquet
    python -m mrt.training.log --file deepscaler.csv --out results/mine/models/deepscaler.log.parquet

Figures 10, 11 and 15 are drawn from them; the paper draws Figure 11 from DeepScaleR's own log in this way. This is a
stage of its own, so that adding a column does not retrain a model.
"""

from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.core.cli import Stage, run
from mrt.core.storage import read_table, write_table
from mrt.problems.sources import read_file, read_rows
from mrt.training.cost import flops

RL_LOG = {"step": pl.Int64, "reward": pl.Float64, "completion_tokens": pl.Float64}
"""Columns that every RL log has: the step, the mean reward, the mean tokens of a completion."""
SFT_COLUMNS = ("step", "epoch", "loss", "learning_rate", "grad_norm", "entropy", "mean_token_accuracy", "num_tokens")
RL_COLUMNS = {  # name in the log: TRL's name
    "step": "step",
    "reward": "reward",
    "outcome": "outcome",
    "progress": "progress",
    "J_prefix": "J_prefix",
    "completion_tokens": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "clip_ratio": "clip_ratio/region_mean",
    "kl": "kl",
    "entropy": "entropy",
    "logp_difference": "sampling/sampling_logp_difference/mean",
    "tokens_sampled": "tokens_sampled",
    "tokens_forced": "tokens_forced",
    "tokens_read": "tokens_read",
    "num_tokens": "num_tokens",
    "parameters": "parameters",
    "flops": "flops",
    "seconds": "step_time",
    "seconds_sampling": "seconds_sampling",
    "seconds_grading": "seconds_grading",
    "seconds_forced": "seconds_forced",
}


def sft_log(history: list[dict[str, Any]]) -> pl.DataFrame:
    """The log of supervised fine-tuning; `flops` is cumulative."""
    steps = [entry for entry in history if entry.get("loss") is not None]
    rows = [{name: float(entry[name]) for name in SFT_COLUMNS} for entry in steps]
    table = pl.DataFrame(rows, schema=dict.fromkeys(SFT_COLUMNS, pl.Float64))
    step = pl.col("num_tokens").diff()  # a resumed trainer counts from 0 again
    step = pl.when(step > 0).then(step).otherwise("num_tokens")
    size = int(steps[0]["parameters"]) if steps else 0
    return table.with_columns(pl.col("step").cast(pl.Int64), step.cum_sum().alias("num_tokens")).with_columns(
        pl.lit(size).alias("parameters"), flops(size, trained=pl.col("num_tokens")).alias("flops")
    )


def rl_log(history: list[dict[str, Any]]) -> pl.DataFrame:
    """The log of RL; columns that a method does not have are null."""
    steps = [entry for entry in history if entry.get("reward") is not None]
    rows = [{name: entry.get(theirs) for name, theirs in RL_COLUMNS.items()} for entry in steps]
    whole = {"tokens_sampled", "tokens_forced", "tokens_read", "num_tokens", "parameters"}
    schema = {name: RL_LOG.get(name, pl.Int64 if name in whole else pl.Float64) for name in RL_COLUMNS}
    return pl.DataFrame(rows, schema=schema, strict=False)


def log_of(history: Path) -> pl.DataFrame:
    """The log of a training run here, from its trainer's history (Parquet)."""
    entries = read_table(history).to_dicts()
    return rl_log(entries) if any(entry.get("reward") is not None for entry in entries) else sft_log(entries)


def check_log(file: Path) -> None:
    """Raise ValueError if the first row of a log lacks a required column."""
    _, first = next(iter(read_rows(file)), (0, {}))
    missing = [name for name in RL_LOG if name not in first]
    if missing:
        raise ValueError(f"{file}: no column {', '.join(missing)}; found {', '.join(first) or 'no rows'}")


def imported_log(file: Path) -> pl.DataFrame:
    """The log of an RL run elsewhere, sorted by step.

    Raises ValueError, naming the file, if a column is missing or a value is not a number.
    """
    check_log(file)
    table = pl.DataFrame([row for _, row in read_file(file)], infer_schema_length=None)
    try:
        return table.select(pl.col(name).cast(kind) for name, kind in RL_LOG.items()).sort("step")
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{file}: a value is not a number ({error})") from error


class MakeLog(Stage):
    """Make a training log, from a training run here or from a file."""

    history: Path | None = Field(None, description="History that a trainer logged here (Parquet).")
    file: Path | None = Field(
        None, description="Log (CSV, JSONL or Parquet): one row per step, columns step, reward, completion_tokens."
    )
    out: Path = Field(description="Training log (Parquet).")

    def cli_cmd(self) -> None:
        if self.file:
            log = imported_log(self.file)
        elif self.history:
            log = log_of(self.history)
        else:
            raise ValueError("give --history or --file")
        write_table(log, self.out, ["step"])
        print(f"{log.height} steps")


if __name__ == "__main__":
    run(MakeLog)
