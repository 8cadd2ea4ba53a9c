"""Prompts of RL: problems, and partial rollouts of them."""

import polars as pl
import pytest
from conftest import TOY_BASE

from mrt.core.artifacts import EPISODES, GRADES, PROBLEMS, RL_PROMPTS
from mrt.episodes.parameterization import Template
from mrt.sampling.prompt import Prompt
from mrt.training.prompts import MakePrompts
from mrt.training.rl.trainer import problem_of

PIECES = ["One. ", "Wait, two. ", "Wait, three. "]


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOY_BASE)


@pytest.fixture
def made(tmp_path):
    """A function that makes the prompts of twenty problems, each with two thoughts of three episodes."""
    ids = [f"p{i:02}" for i in range(20)]
    problems = [(i, f"question {i}", f"answer {i}", None, 3.0, "test", "train") for i in reversed(ids)]
    episodes = [(i, s, t, f"{s or ''}{piece}", True) for i in ids for s in range(2) for t, piece in enumerate(PIECES)]
    for name, kind, rows in (("problems", PROBLEMS, problems), ("episodes", EPISODES, episodes)):
        pl.DataFrame(rows, schema=kind.columns, orient="row").write_parquet(tmp_path / f"{name}.parquet")

    def make(method, episodes=True, **options):
        files = {name: tmp_path / f"{name}.parquet" for name in ("problems", "episodes")}
        if not episodes:
            del files["episodes"]
        of_method = {"prefixes": 1.0, "forced": True} if method == "mrt_rl" else {}
        options = of_method | options
        MakePrompts(model=str(TOY_BASE), out=tmp_path / "out.parquet", **files, **options).cli_cmd()
        return RL_PROMPTS.read(tmp_path / "out.parquet")

    return make


def test_a_prompt_of_mrt_ends_inside_the_thought_of_one_partial_rollout(made, tokenizer):
    prompts = made("mrt_rl")
    assert prompts["problem_id"].n_unique() == prompts.height == 20
    assert set(prompts["prefix"]) == {0, 1, 2}  # never the whole thought
    for row in prompts.iter_rows(named=True):
        chat = Prompt().render(tokenizer, f"question {row['problem_id']}")
        assert row["prefix_text"] == "".join(PIECES[: row["prefix"]])
        assert row["prompt"] == chat + row["prefix_text"]
        assert row["forced"] == chat + Template().force(row["prefix_text"])
        assert row["answer"] == f"answer {row['problem_id']}" and row["inside"]


def test_prompts_are_the_same_where_no_answer_is_forced(made):
    """GRPO from prefixes and MRT (RL) of one seed; another seed has other prefixes."""
    theirs, ours = (made("mrt_rl", forced=forced, seed=3) for forced in (True, False))
    assert theirs.drop("forced").equals(ours.drop("forced")) and set(ours["forced"]) == {""}
    assert not theirs["prompt"].equals(made("mrt_rl", seed=4)["prompt"])


def test_a_prompt_that_opens_no_thought_is_not_inside_one(made):
    answers_at_once = Prompt(open_thought="<think>\nDone.\n</think>\n")
    assert made("grpo", episodes=False)["inside"].all()
    assert not made("grpo", episodes=False, prompt=answers_at_once)["inside"].any()


def test_the_prefix_depends_on_the_seed_and_the_problem_alone(made):
    once, again, other = made("mrt_rl"), made("mrt_rl"), made("mrt_rl", seed=1)
    assert once.equals(again) and once["prefix"].to_list() != other["prefix"].to_list()


def test_rivals_have_the_same_problems_in_the_same_order_without_a_prefix(made):
    plain, mrt = made("grpo", episodes=False), made("mrt_rl")
    assert plain["problem_id"].to_list() == mrt["problem_id"].to_list()
    assert set(plain["prefix"]) == {0} and set(plain["prefix_text"]) == {""}
    whole = made("mrt_rl", prefixes=0.0)
    assert whole.drop("forced").equals(plain.drop("forced"))
    assert set(plain["forced"]) == {""} and "" not in whole["forced"]  # the others ask mu nothing


def test_prompts_carry_the_rows_of_problems_for_the_tasks_that_read_them(made):
    plain, prompts = made("grpo", episodes=False), made("grpo", episodes=False, rows=True)
    assert prompts.drop("row").equals(plain)
    for row in prompts.iter_rows(named=True):
        problem = problem_of(row)
        assert (problem["id"], problem["answer"]) == (row["problem_id"], row["answer"])
        assert problem["problem"] == f"question {row['problem_id']}" and problem["difficulty"] == 3.0


def test_the_parents_thoughts_are_needed_for_prefixes_alone(made):
    made("grpo", episodes=False)
    made("mrt_rl", episodes=False, prefixes=0.0)
    for method, options in (("mrt_rl", {}), ("grpo", {"least_prefix": 1})):
        with pytest.raises(ValueError, match="need --episodes"):
            made(method, episodes=False, **options)


def test_only_a_share_of_the_problems_may_get_a_prefix(made):
    prefixes = [made("mrt_rl", prefixes=share)["prefix"].to_list() for share in (1.0, 0.5, 0.0)]
    assert sum(map(bool, prefixes[0])) > sum(map(bool, prefixes[1])) > 0 and not any(prefixes[2])


def test_every_prompt_may_have_the_first_attempt(made):
    """In backtracking the prompts of all methods have z_0 (Table 5)."""
    assert set(made("grpo", least_prefix=1)["prefix"]) == {1}
    assert set(made("mrt_rl", least_prefix=1)["prefix"]) == {1, 2}
    assert set(made("mrt_rl", least_prefix=1, prefixes=0.0)["prefix"]) == {1}
    assert set(made("mrt_rl", least_prefix=9)["prefix"]) == {3}  # all that there are


def test_prefixes_are_drawn_among_those_that_fit(made, tokenizer):
    def size(problem, j):
        text = Prompt().render(tokenizer, f"question {problem}") + "".join(PIECES[:j])
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    for most in (size("p00", 2), size("p00", 1), size("p00", 0)):
        rows = made("mrt_rl", max_prompt_length=most).select("problem_id", "prefix").rows()
        fits = {problem: {j for j in range(3) if size(problem, j) <= most} for problem, _ in rows}
        assert all(j in fits[problem] for problem, j in rows)
        assert {j for _, j in rows} == set.union(*fits.values())
        longer = made("mrt_rl", max_model_len=most + 1).select("problem_id", "prefix").rows()  # one token may follow
        assert longer == rows
    for method in ("grpo", "mrt_rl"):  # where not even the problem fits
        for most in ({"max_prompt_length": 1}, {"max_model_len": 16}):
            with pytest.raises(ValueError, match=r"no prompt is left; .* each of the \d+ problems has over \d+ tokens"):
                made(method, **most)


def test_a_prompt_that_fills_the_context_is_left_out(made, tokenizer):
    text = Prompt().render(tokenizer, "question p00")
    size = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert "p00" not in made("grpo", max_model_len=size)["problem_id"]
    assert "p00" in made("grpo", max_model_len=size + 1)["problem_id"]


@pytest.fixture
def graded(tmp_path):
    """Grades of the twenty problems of `made`: of the i-th, i % 5 of four completions are right."""
    rows = [(f"p{i:02}", s, "1", True, s < i % 5, 0) for i in range(20) for s in range(4)]
    GRADES.write(pl.DataFrame(rows, schema=GRADES.columns, orient="row"), tmp_path / "grades.parquet")
    return tmp_path / "grades.parquet"


def test_prompts_are_of_problems_whose_pass_rate_is_within_the_bounds(made, graded):
    prompts = made("grpo", episodes=False, grades=graded, pass_rate=(0.25, 0.75))
    assert prompts["problem_id"].to_list() == [f"p{i:02}" for i in range(20) if i % 5 in (1, 2, 3)]
    everywhere = made("grpo", episodes=False)
    assert everywhere.join(prompts, on="problem_id", how="semi").equals(prompts)
    assert made("grpo", episodes=False, grades=graded, pass_rate=(0, 1)).equals(everywhere)


def test_pass_rates_that_no_problem_has_are_refused_with_those_there_are(made, graded):
    with pytest.raises(ValueError, match=r"no problem of .* from 0\.3 to 0\.4; the rates are 0, 0\.25, 0\.5, 0\.75, 1"):
        made("grpo", episodes=False, grades=graded, pass_rate=(0.3, 0.4))
    GRADES.write(GRADES.read(graded).filter(pl.col("problem_id") != "p07"), graded)
    with pytest.raises(ValueError, match="no grades of 1 problems, such as 'p07'"):
        made("grpo", episodes=False, grades=graded, pass_rate=(0, 1))
