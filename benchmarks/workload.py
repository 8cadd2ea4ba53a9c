"""Inputs of the sampling benchmarks: toy problems, and traces of the toy base."""

import random
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.record import TOY_BASE
from mrt.core.artifacts import PROBLEMS
from mrt.episodes.cut import CutRollouts
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.sampling.prompt import Prompt
from mrt.sampling.prover import Prove, ProverSettings
from mrt.sampling.rollouts import Sample
from mrt.toy.world import DIFFICULTIES, draw_problem

ENGINE = EngineSettings(max_model_len=1024, max_num_seqs=1024)  # as in config.yaml


def make_traces(folder: Path, problems: int, seed: int = 0) -> None:
    """Draw toy problems and a trace of the toy base for each: problems, rollouts and episodes (Parquet) in `folder`."""
    rng, rows = random.Random(seed), []
    for i in range(problems):
        problem = draw_problem(rng, DIFFICULTIES[i % len(DIFFICULTIES)])
        rows.append((f"p{i:04}", problem.text, str(problem.answer), None, float(len(problem.numbers)), "toy", "train"))
    pl.DataFrame(rows, schema=PROBLEMS.columns, orient="row").write_parquet(folder / "problems.parquet")
    Sample(
        model=str(TOY_BASE),
        problems=folder / "problems.parquet",
        out=folder / "rollouts.parquet",
        names=("base", "toy"),
        samples=1,
        decoding=Decoding(temperature=1.0, max_tokens=400),
        prompt=Prompt(instruction="{problem}"),
        engine=ENGINE,
    ).cli_cmd()
    CutRollouts(rollouts=folder / "rollouts.parquet", out=folder / "episodes.parquet").cli_cmd()


def prover(folder: Path, answers: int, tokens: int = 24) -> Prove:
    """The stage that forces answers at the prefixes of the traces in `folder`."""
    return Prove(
        model=str(TOY_BASE), rollouts=folder / "rollouts.parquet", episodes=folder / "episodes.parquet",
        out=folder / "prover.parquet", names=("base", "toy"), engine=ENGINE,
        prover=ProverSettings(answers=answers, decoding=Decoding(temperature=1.0, max_tokens=tokens)),
    )  # fmt: skip


def prefixes(text: str, lengths: list[int], tokenizer: Any) -> list[str]:
    """Prefixes of toy text at the ends of episodes of these lengths, the empty one first."""
    words = tokenizer(text[: 8 * sum(lengths)], add_special_tokens=False)["input_ids"]
    words *= 1 + sum(lengths) // len(words)
    return [tokenizer.decode(words[: sum(lengths[:j])]) for j in range(len(lengths) + 1)]
