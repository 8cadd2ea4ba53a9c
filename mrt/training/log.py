"""Training logs, one row per step: of a training run here, or of a model that was trained elsewhere.

    python -m mrt.training.log --history star_1.history.parquet --out star_1.log.parquet
    python -m mrt.training.log --file deepscaler.csv --out results/mine/models/deepscaler.log.parquet

Figures 10, 11 and 15 plot them; the paper plots the log of DeepScaleR as Figure 11 in this way. This is a separate
stage, so that adding a column does not retrain a model.

In RL `reward` is the outcome and `completion_tokens` the length of whole traces, prefix included, for all methods;
answers of completions that were stopped (`implicit`) are left out. `shaped_reward` is the method's reward. `truncated`
is the share of completions that `decoding.max_tokens` cut. `tokens_forced` counts forced answers and continuations.
Columns of sampling are empty at the further updates of a batch (`num_iterations`).
"""

import math
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from mrt.core.cli import Stage, run
from mrt.core.storage import read_table, write_table
from mrt.problems.sources import read_file, read_rows
from mrt.training.flops import Sizes
from mrt.training.schedule import NO_GRADIENT, did_not_fall, too_few

RL_LOG = {"step": pl.Int64, "reward": pl.Float64, "completion_tokens": pl.Float64}
"""Columns that every RL log has: the step; the mean outcome and length of completions, from the question on."""
SIZES = ("parameters", "examples", *Sizes._fields)
SFT_COLUMNS = {  # name in the log: TRL's name, or ours
    "step": "step",
    "epoch": "epoch",
    "loss": "loss",
    "weighted_loss": "weighted_loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "entropy": "entropy",
    "mean_token_accuracy": "mean_token_accuracy",
    "num_tokens": "trained_tokens",
    **{name: name for name in SIZES},
    "flops": "flops",
}
RL_COLUMNS = {
    "step": "step",
    "reward": "outcome",
    "shaped_reward": "reward",
    "progress": "progress",
    "J_prefix": "J_prefix",
    "completion_tokens": "trace_tokens",
    "truncated": "completions/clipped_ratio",
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "clip_ratio": "clip_ratio/region_mean",
    "kl": "kl",
    "entropy": "entropy",
    "logp_difference": "sampling/sampling_logp_difference/mean",
    "importance_ratio": "sampling/importance_sampling_ratio/mean",
    "tokens_sampled": "tokens_sampled",
    "tokens_forced": "tokens_forced",
    "tokens_read": "tokens_read",
    "num_tokens": "num_tokens",
    **{name: name for name in SIZES},
    "flops": "flops",
    "seconds": "step_time",
    "seconds_sampling": "seconds_sampling",
    "seconds_grading": "seconds_grading",
    "seconds_forced": "seconds_forced",
}

OF_DYNAMIC_SAMPLING = ("groups_redrawn", "groups_varied")  # columns of trainings that have it


def table_of(steps: list[dict[str, Any]], columns: dict[str, str]) -> pl.DataFrame:
    """A log of these columns; tokens and FLOPs are cumulative, and columns that a method does not have are null."""
    rows = [{name: entry.get(theirs) for name, theirs in columns.items()} for entry in steps]
    whole = {"step", "tokens_sampled", "tokens_forced", "tokens_read", "num_tokens", *SIZES}
    schema = {name: pl.Int64 if name in whole else pl.Float64 for name in columns}
    return pl.DataFrame(rows, schema=schema, strict=False)


def log_of(history: Path) -> pl.DataFrame:
    """The log of a training run here, from its trainer's history (Parquet).

    `loss` of SFT is in nats a token. Where examples are weighted, `weighted_loss` is minimized.
    """
    entries = read_table(history).to_dicts()
    by_rl = any(entry.get("reward") is not None for entry in entries)
    steps = [entry for entry in entries if entry.get("loss") is not None]
    weighted = [{**s, "loss": s["nll"], "weighted_loss": s["loss"]} if s.get("nll") is not None else s for s in steps]
    dynamic = {name: name for name in OF_DYNAMIC_SAMPLING if any(name in entry for entry in entries[:1])}
    log = table_of(weighted, RL_COLUMNS | dynamic if by_rl else SFT_COLUMNS)
    return log.with_columns(pl.col("num_tokens").forward_fill())  # a further update with a batch has no new ones


def remarks(log: pl.DataFrame) -> list[str]:
    """Whatever shows that a training run here may have taught nothing, from its log (`log_of`)."""
    what = "problems" if "reward" in log.columns else "examples"
    counts = log["examples"].drop_nulls().unique().to_list()  # an older history has none
    causes = [too_few(log.height, " ".join([*map(str, counts), what]))]
    causes += [NO_GRADIENT if log.height and (log["grad_norm"] == 0).all() else None]
    if what == "examples":
        losses = log.select(pl.coalesce("weighted_loss", "loss"), "epoch").drop_nulls()
        causes.append(did_not_fall(losses["weighted_loss"].to_list(), losses["epoch"].to_list()))
    return [remark for remark in causes if remark]


def check_log(file: Path) -> None:
    """Raise ValueError if the first row of a log lacks a required column."""
    _, first = next(iter(read_rows(file)), (0, {}))
    missing = [name for name in RL_LOG if name not in first]
    if missing:
        raise ValueError(f"{file}: no column {', '.join(missing)}; found {', '.join(first) or 'no rows'}")


def imported_log(file: Path) -> pl.DataFrame:
    """The log of an RL run elsewhere, sorted by step; reward and tokens may be empty.

    Raises ValueError if a column is missing, a value is not a number, or a step is not whole. It names the file and the
    row (of a text file, the line).
    """
    check_log(file)

    def logged(row: dict[str, Any], name: str, number: int) -> float | None:
        value = row.get(name)
        if value in (None, "") and name != "step":
            return None
        try:
            parsed = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            parsed = math.nan
        if not math.isfinite(parsed) or (name == "step" and not parsed.is_integer()):
            wanted = "a whole number" if name == "step" else "a number"
            raise ValueError(f"{file}, row {number}: {name} is not {wanted} but {value!r}")
        return parsed

    rows = [{name: logged(row, name, number) for name in RL_LOG} for number, row in read_file(file)]
    return pl.DataFrame(rows, schema=dict.fromkeys(RL_LOG, pl.Float64)).cast(RL_LOG).sort("step")  # type: ignore[arg-type]


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
            text = "; ".join(remarks(log))
            last = pl.col("step") == pl.col("step").max()
            log = log.with_columns(pl.when(last).then(pl.lit(text or None, pl.String)).alias("remark"))
        else:
            raise ValueError("give --history or --file")
        write_table(log, self.out, ["step"])
        print(f"{log.height} steps")


if __name__ == "__main__":
    run(MakeLog)
