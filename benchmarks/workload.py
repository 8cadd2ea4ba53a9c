"""Inputs of the sampling benchmarks: toy problems, traces of the toy base, and models with random weights."""

import json
import random
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.record import TOY_BASE, TRACES
from mrt.core.artifacts import PROBLEMS
from mrt.episodes.cut import CutRollouts
from mrt.episodes.parameterization import split_episodes
from mrt.episodes.thinking import take_apart
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.sampling.prompt import Prompt
from mrt.sampling.prover import Prove, ProverSettings
from mrt.sampling.rollouts import Sample
from mrt.toy.world import DIFFICULTIES, draw_problem

CHARACTERS = 3.7  # per token of the real traces, which come as text
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


def make_model(folder: Path, *, width: int, layers: int, longest: int = 1024) -> Path:
    """A Qwen3 model with random weights and the toy's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(TOY_BASE)
    config.update(
        {
            "hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers,
            "num_attention_heads": width // 32, "num_key_value_heads": width // 32,
            "layer_types": ["full_attention"] * layers, "max_position_embeddings": longest,
        }
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TOY_BASE).save_pretrained(folder)
    return folder


def real_lengths(longest: int, count: int) -> list[list[int]]:
    """Tokens of each episode of the `count` longest real thoughts within `longest` tokens; empty without data."""
    file = TRACES / "reasoning_traces.jsonl"
    texts = [json.loads(line)["text"] for line in file.read_text().splitlines()] if file.is_file() else []
    cut = [split_episodes(take_apart(text, inside=True).thought) for text in texts]
    lengths = [[max(1, round(len(episode) / CHARACTERS)) for episode in episodes] for episodes in cut]
    return sorted((tokens for tokens in lengths if sum(tokens) <= longest and len(tokens) > 4), key=sum)[-count:]


def at_real_lengths(text: str, lengths: list[int], tokenizer: Any, most: int = 20) -> list[str]:
    """At most `most` + 2 prefixes of toy text, with the empty one, as long as those of a real thought."""
    words = tokenizer(text[: 8 * sum(lengths)], add_special_tokens=False)["input_ids"]
    words *= 1 + sum(lengths) // len(words)
    k = len(lengths)
    kept = sorted({*range(0, k, -(-k // most)), k})
    return [tokenizer.decode(words[: sum(lengths[:j])]) for j in kept]
