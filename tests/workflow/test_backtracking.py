"""Backtracking search from problems to figures, for real, and laws of its artifacts."""

import shutil

import polars as pl
import pytest
from conftest import ROOT, TOY_ATTEMPTS, checkout, planned, snakemake
from transformers import AutoTokenizer

from mrt.core.artifacts import ANSWER_GRADES, EPISODES, GRADES, PROGRESS, PROVER, RL_PROMPTS, SET, TRACE, TREE
from mrt.episodes.parameterization import STEP_END, Backtracking
from mrt.methods.warmstart import CONSTRUCTIONS
from mrt.training.sets import MakeSet

pytestmark = pytest.mark.slow

WORDS = Backtracking(answer="Answer: ")
BACK = STEP_END + WORDS.marker + STEP_END
WINDOW = 64  # of tiny_backtracking.yaml
FIGURES = {"maj_tokens": 8, "pass_tokens": 20, "backtrack": 13, "constructions": 14, "loss": 15, "progress": 16}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = checkout(tmp_path_factory.mktemp("backtracking"))
    shutil.copy(ROOT / "tests" / "tiny_backtracking.yaml", folder / "config.yaml")
    learnt = ("sets/star.parquet", "prompts/grpo.parquet")  # of models that are not trained here
    snakemake(folder, "--cores", "2", "all", *(f"results/tiny_backtracking/{name}" for name in learnt))
    assert not planned(folder, *(f"fig{number}" for number in FIGURES.values()))
    return folder / "results" / "tiny_backtracking"


def test_one_command_makes_the_figures(results):
    for name in FIGURES:
        for suffix in ("pdf", "png", "parquet", "csv"):
            assert (results / "figures" / f"{name}.{suffix}").stat().st_size > 100
    modes = pl.read_parquet(results / "figures" / "maj_tokens.parquet")["mode"]
    assert set(modes) == {"parallel", "linearized"}
    costs = pl.read_parquet(results / "costs" / "mrt.parquet")
    assert set(costs.filter(trained_model="warmstart")["phase"]) == {"tree", "training"}


def test_the_constructions_have_equal_tokens_and_go_back_within_their_own_attempt(results, tmp_path):
    tree = TREE.read(results / "trees" / "base" / "toy_train.parquet")
    assert tree.filter("leaf", pl.col("right") > 0).height and tree["tokens"].sum() > 0
    texts = {(row["problem_id"], row["node"]): row for row in tree.iter_rows(named=True)}
    tokenizer = AutoTokenizer.from_pretrained(TOY_ATTEMPTS)
    spent = {}
    for method in CONSTRUCTIONS:
        stage = MakeSet(
            method=method, model=str(TOY_ATTEMPTS),
            problems=results / "problems" / "toy_train.parquet", tree=results / "trees" / "base" / "toy_train.parquet",
            out=tmp_path / f"{method}.parquet", out_rules=tmp_path / f"{method}.rules.parquet",
            prompt={"instruction": "{problem}", "open_thought": ""}, parameterization=WORDS,
        )  # fmt: skip
        stage.cli_cmd()
        examples = SET.read(tmp_path / f"{method}.parquet")
        assert examples.height
        spent[method] = sum(
            map(len, tokenizer(examples["completion"].to_list(), add_special_tokens=False)["input_ids"])
        )
        for row in examples.iter_rows(named=True):
            assert texts[row["problem_id"], row["sample"]]["leaf"]
            if method != "rejection":
                attempt = row["prompt"].rpartition("<|assistant|>")[2]
                steps = [line for line in attempt.split(STEP_END) if line.startswith("Step ")]
                assert row["completion"].startswith(BACK) and row["prefix"] <= len(steps)
                redone = row["completion"].removeprefix(BACK)
                if redone.startswith("Step "):
                    assert redone.startswith(f"Step {row['prefix'] + 1}:")
    longest = tree["text"].str.len_chars().max() * 10
    assert max(spent.values()) - min(spent.values()) < longest
    made = SET.read(results / "sets" / "warmstart.parquet")
    assert made.equals(SET.read(tmp_path / "warmstart.parquet"))


def test_what_mrt_learns_is_a_backtrack_and_a_right_revision(results):
    examples = SET.read(results / "sets" / "mrt.parquet")
    assert examples.height
    for row in examples.iter_rows(named=True):
        assert (
            row["completion"].startswith(WORDS.marker) and WORDS.answer in row["prompt"].rpartition("<|assistant|>")[2]
        )


def test_star_on_the_warmstart_learns_what_mrt_does_without_asking_for_progress(results):
    """MRT's examples are those of STaR whose backtrack makes progress; STaR has right single attempts besides."""
    star, mrt = (SET.read(results / "sets" / f"{model}.parquet") for model in ("star", "mrt"))
    progress = PROGRESS.read(results / "progress" / "warmstart" / "toy_train.parquet")
    helped = progress.filter(pl.col("prefix") == 2, pl.col("progress") > 0)
    assert mrt.height and star.drop_nulls("prefix").join(helped, on=TRACE, how="semi").equals(mrt)
    single = star.filter(pl.col("prefix").is_null())
    assert single.height and not single["completion"].str.contains(WORDS.marker, literal=True).any()


@pytest.mark.parametrize("model", ["grpo", "mrt_rl"])
def test_every_prompt_of_rl_has_a_whole_attempt(results, model):
    """The attempt z_0 is the parent's; GRPO's prompts have no more, MRT (RL)'s may (Table 5)."""
    episodes = EPISODES.read(results / "episodes" / "warmstart" / "toy_train.parquet").filter(sample=0)
    texts = dict(episodes.sort("episode").group_by("problem_id").agg("text").iter_rows())
    prompts = RL_PROMPTS.read(results / "prompts" / f"{model}.parquet")
    assert prompts.height == len(texts) and prompts["prefix"].min() == 1
    assert model == "mrt_rl" or prompts["prefix"].max() == 1
    for problem, j, prefix, prompt in prompts.select("problem_id", "prefix", "prefix_text", "prompt").iter_rows():
        assert prefix == "".join(texts[problem][:j]) and prompt.endswith("<|assistant|>" + prefix)
    assert prompts["prefix_text"].str.contains(WORDS.answer, literal=True).mean() > 0.95  # few are cut off


@pytest.mark.parametrize("model", ["mrt", "mrt_rl"])
def test_the_window_holds_and_tokens_add_up_over_a_hundred_attempts(results, model):
    tokenizer = AutoTokenizer.from_pretrained(results / "models" / model)
    table = PROVER.read(results / "linearized" / model / "toy_test.parquet")
    assert table.height == 12 * 9 >= 100
    question = table.filter(prefix=1).select("problem_id", pl.col("prompt_tokens").alias("question"))
    seen = table.join(question, on="problem_id").with_columns(
        (pl.col("prompt_tokens") - pl.col("question")).alias("own")
    )
    assert seen["own"].max() <= WINDOW < seen["prefix_tokens"].max() and seen["own"].min() == 0
    total = {}
    for (problem,), trace in table.group_by("problem_id"):
        written = ""
        for text, tokens, before in trace.sort("prefix").select("text", "tokens", "prefix_tokens").iter_rows():
            assert before == len(tokenizer(written, add_special_tokens=False)["input_ids"])  # each marker once
            written += text.rstrip("\n") + BACK
            total[problem] = before + tokens
    measured = pl.read_parquet(results / "metrics" / model / "toy_test.linearized.parquet")
    assert dict(measured.filter(k=9).select("problem_id", "tokens").iter_rows()) == total


def test_what_is_measured_ends_after_attempt_backtrack_and_revision(results):
    """The paper's parallel mode (Section 8.4); traces of training go on."""
    measured = pl.read_parquet(results / "episodes" / "mrt" / "toy_test.parquet").group_by(TRACE).len()["len"]
    assert measured.max() == 3
    logs = results.parents[1] / "logs" / results.name / "gather_rollouts"
    files = (logs / "mrt" / "toy_test.log", logs / "warmstart" / "toy_train.log")
    assert ['"episodes": 3' in file.read_text() for file in files] == [True, False]


def test_j_after_an_attempt_is_that_attempts_answer(results):
    """Mu is the policy itself: after an attempt it repeats the attempt's answer."""
    episodes = pl.read_parquet(results / "episodes" / "warmstart" / "toy_train.parquet")
    single = episodes.group_by(TRACE).len().filter(len=1).select(TRACE)
    whole = GRADES.read(results / "grades" / "warmstart" / "toy_train.rollouts.parquet").join(single, on=TRACE)
    said = ANSWER_GRADES.read(results / "grades" / "warmstart" / "toy_train.prover.parquet").filter(prefix=1)
    both = said.join(whole, on=TRACE, suffix="_whole")
    assert both.height and (both["correct"] == both["correct_whole"]).mean() > 0.95
