import itertools

import polars as pl
import pytest
from conftest import TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.core.artifacts import ROLLOUTS
from mrt.episodes.cut import CutRollouts
from mrt.episodes.parameterization import OpenEnded, Template
from mrt.sampling.allocation import Allocate
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.sampling.likelihood import Score
from mrt.sampling.prompt import Prompt
from mrt.sampling.prover import Prove, ProverSettings, prefixes
from mrt.sampling.rollouts import Sample

STOP = "Time is up.\n\nGiven the time I've spent and the approaches I've tried, I should stop thinking"
EPISODES = ["a\n\nb\n\nc\n\n", "Wait\n\nd\n\ne\n\n", "Wait\n\nf\n"]


def test_the_template_is_that_of_figure_22():
    forced = Template().force("a\n\nb\n\n")
    assert forced.startswith(f"a\n\nb\n\n{STOP}")
    assert forced.endswith("</think>\n\n**Step-by-Step Explanation and Answer:**\n\n1. **")


def test_an_empty_prefix_is_stopped_at_once():
    assert Template().force("").startswith("Time is up.")


def test_without_the_stop_phrase_the_thought_just_closes():
    assert Template().force("a\n\n", stop=False) == "a\n</think>\n\n**Step-by-Step Explanation and Answer:**\n\n1. **"


def test_the_whole_of_a_closed_thought_is_closed_without_the_stop_phrase():
    forced = prefixes("chat", EPISODES, True, OpenEnded())
    assert [prefix.j for prefix in forced] == [0, 1, 2, 3]
    assert all(STOP in str(prefix) and str(prefix).startswith("chat") for prefix in forced[:-1])
    assert str(forced[-1]) == "chat" + "".join(EPISODES) + "</think>\n\n"


def test_the_whole_of_a_thought_that_was_cut_off_is_stopped():
    assert STOP in str(prefixes("", EPISODES, False, OpenEnded())[-1])


@given(st.integers(1, 40), st.integers(1, 7))
def test_grouped_prefixes_include_the_first_and_the_last(k, every):
    scored = [prefix.j for prefix in prefixes("", ["x\n\n"] * k, True, OpenEnded(), every)]
    assert scored[0] == 0 and scored[-1] == k
    assert scored == sorted(set(scored))
    assert all(b - a <= every for a, b in itertools.pairwise(scored))


def test_mu_is_not_asked_for_a_training_set_at_thoughts_none_of_which_closes(tmp_path):
    """It is for an evaluation; no engine starts for the error."""
    rows = [
        (f"p{i}", 0, "q<think>\n", "and so on", 2, 1, "length" if i else "stop", None, True, None) for i in range(3)
    ]
    rollouts, episodes = tmp_path / "rollouts.parquet", tmp_path / "episodes.parquet"
    ROLLOUTS.write(pl.DataFrame(rows, schema=ROLLOUTS.columns, orient="row"), rollouts)
    CutRollouts(rollouts=rollouts, out=episodes).cli_cmd()
    files = {
        "rollouts": rollouts,
        "episodes": episodes,
        "problems": tmp_path / "none",
        "out": tmp_path / "prover.parquet",
    }
    for kind in (Prove, Allocate, Score):
        given_files = {name: file for name, file in files.items() if name in kind.model_fields}
        stage = kind(model=str(TOY_BASE), names=("cold", "train"), learnt_from=True, **given_files)
        with pytest.raises(
            ValueError, match=r"none of the 3 thoughts is closed \(2 were cut off .* where cold never ends"
        ):
            stage.cli_cmd()
        assert stage.model_copy(update={"learnt_from": False}).traces(None).height == 3


def test_sampling_and_forcing_answers_with_the_real_engine(toy_problems, tmp_path, capfd):
    """Tables in their columns, the same whatever the batch, more samples being additions."""
    engine = EngineSettings(max_model_len=1024)
    common = {"model": str(TOY_BASE), "names": ("base", "toy"), "engine": engine}
    decoding = Decoding(temperature=1.0, max_tokens=300)
    prompt = Prompt(instruction="{problem}")
    rollouts, fewer, episodes, prover = (tmp_path / f"{n}.parquet" for n in ("rollouts", "fewer", "episodes", "prover"))
    Sample(problems=toy_problems, out=rollouts, samples=3, decoding=decoding, prompt=prompt, **common).cli_cmd()
    some = tmp_path / "some.parquet"
    pl.read_parquet(toy_problems).tail(5).write_parquet(some)
    Sample(problems=some, out=fewer, samples=2, decoding=decoding, prompt=prompt, **common).cli_cmd()

    table = pl.read_parquet(rollouts)
    assert table.height == 36 and table.select("problem_id", "sample").n_unique() == 36
    assert table["prompt"].str.ends_with("<think>\n").all()
    assert table["tokens"].max() <= 300
    # Fewer problems and fewer samples draw a subset of the same completions.
    assert pl.read_parquet(fewer).join(table, on=["problem_id", "sample", "text"], how="anti").is_empty()
    assert table["text"].n_unique() > 30

    CutRollouts(rollouts=rollouts, out=episodes).cli_cmd()
    settings = ProverSettings(answers=4, traces=2, decoding=Decoding(temperature=1.0, max_tokens=24))
    Prove(rollouts=rollouts, episodes=episodes, out=prover, prover=settings, **common).cli_cmd()
    answers = pl.read_parquet(prover)
    assert answers["sample"].max() == 1
    assert answers.select("problem_id", "sample", "prefix", "answer_index").is_duplicated().sum() == 0
    assert (answers["text"].str.contains("boxed").mean() or 0) > 0.95  # the base obeys "Time is up"
    grown = answers.unique(["problem_id", "sample", "prefix"]).sort("problem_id", "sample", "prefix")
    assert grown.filter(pl.col("prefix") == 0)["prefix_tokens"].to_list() == [0] * 24
    growth = pl.col("prefix_tokens").diff().over("problem_id", "sample")
    assert grown.select(growth.drop_nulls().min()).item() > 0  # every episode costs tokens
    thoughts = pl.read_parquet(episodes).group_by("problem_id", "sample").agg(pl.len().alias("k"))
    last = answers.group_by("problem_id", "sample").agg(pl.col("prefix").max())
    assert last.join(thoughts, on=["problem_id", "sample"]).filter(pl.col("prefix") != pl.col("k")).is_empty()


def test_sizes_are_those_of_the_problem_the_prefix_and_the_whole_prompt(tmp_path):
    from mrt.sampling.engine import Completion, Request
    from mrt.sampling.prover import Place

    files = {name: tmp_path / f"{name}.parquet" for name in ("rollouts", "episodes", "out")}
    stage, chat = Prove(model=str(TOY_BASE), names=("m", "d"), **files), "<|user|>x<|assistant|><think>\n"
    scored = prefixes(chat, EPISODES, True, OpenEnded())
    places = [Place("p", 0, 0, at, Request(at, 1, 0, Decoding())) for at in scored]
    stage.write(places, [[Completion("y", 7, "stop", None)]] * len(places))
    found = pl.read_parquet(stage.out).select("problem_tokens", "prefix_tokens", "prompt_tokens", "tokens").rows()
    sizes = [[len(ids) for ids in stage.sampler.encode([chat, at.text(), str(at)])] for at in scored]
    assert found == [(*size, 7) for size in sizes]
