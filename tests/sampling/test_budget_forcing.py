"""Extensions of thoughts, and the whole stage with the real engine."""

import polars as pl
import pytest
from conftest import TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.analysis.progress import progress_table
from mrt.episodes.cut import CutRollouts
from mrt.episodes.parameterization import Template, split_episodes
from mrt.episodes.thinking import FAMILIES
from mrt.sampling.budget_forcing import (
    BudgetForcing,
    Force,
    closed,
    extended,
    reopened,
    unclosed,
    without_unfinished_step,
)
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.sampling.prompt import Prompt
from mrt.sampling.rollouts import Sample

texts = st.text(alphabet="ab.\n", max_size=30)


@given(texts, texts, st.booleans())
def test_an_extension_keeps_the_thought_and_adds_whole_steps(thought, continuation, cut):
    longer = extended(thought, "Wait", continuation, cut=cut)
    body = thought.rstrip("\n")
    assert longer.startswith(body)
    if cut:
        assert longer == body or longer.endswith("\n\n")
        assert extended(thought, "Wait", continuation, cut=False).startswith(longer)
    else:
        assert longer == reopened(thought, "Wait") + continuation


def test_the_marker_opens_a_new_step_and_may_open_an_episode():
    thought = "one\n\ntwo\n\nthree\n"
    assert reopened(thought, "Wait") == "one\n\ntwo\n\nthree\n\nWait"
    assert len(split_episodes(extended(thought, "Wait", ", no.\n", cut=False))) == 2
    assert reopened("", "Wait") == "Wait"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\n\nb", "a\n\n"),
        ("a\n\nb\n\n", "a\n\nb\n\n"),
        ("a", ""),
        ("", ""),
        ("a\nb", ""),
        ("a\n \nb", "a\n \n"),
        ("a\r\n\r\nb", "a\r\n\r\n"),
        ("a\n\n\n", "a\n\n\n"),
    ],
)
def test_a_cut_text_loses_its_unfinished_step(text, left):
    assert without_unfinished_step(text) == left


def test_a_thought_is_closed_as_the_model_closes_it():
    assert closed("a\n\nb\n\n", Template()) == closed("a\n\nb\n", Template()) == "a\n\nb\n</think>\n\n"


@pytest.mark.parametrize("header", ["<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>"])
def test_an_extension_ends_where_any_header_closes_the_thought(header):
    """The answer after it is no part of the thought that mu reads."""
    *_, channels = FAMILIES
    assert unclosed("so 7.<|end|><|start|>assistant" + header + "7", channels) == "so 7."
    for thinking in FAMILIES:
        assert unclosed("so 7.\n\n", thinking) == "so 7.\n\n"


def test_the_paper_s_numbers_of_extensions():
    assert BudgetForcing().answered() == [0, 2, 4, 6, 8]
    assert BudgetForcing(most=3, every=2).answered() == [0, 2]


@pytest.mark.slow
def test_thoughts_are_extended_with_the_real_engine_in_one_go(toy_problems, tmp_path, capfd):
    engine = EngineSettings(max_model_len=512, cpu_cache_gib=0.25)
    rollouts, episodes = tmp_path / "rollouts.parquet", tmp_path / "episodes.parquet"
    names = ("base", "toy")
    sampling = {"problems": toy_problems, "samples": 2, "decoding": Decoding(temperature=1.0, max_tokens=60)}
    prompt = Prompt(instruction="{problem}")
    Sample(model=str(TOY_BASE), out=rollouts, names=names, prompt=prompt, engine=engine, **sampling).cli_cmd()
    CutRollouts(rollouts=rollouts, out=episodes).cli_cmd()
    settings = BudgetForcing(
        most=3,
        markers=("Wait, try ", "Alternatively, try "),
        traces=1,
        extension=Decoding(temperature=1.0, max_tokens=40),
        answers=2,
        decoding=Decoding(temperature=1.0, max_tokens=24),
    )

    def force(name, **keep):
        out, thoughts = tmp_path / f"{name}.parquet", tmp_path / f"{name}.thoughts.parquet"
        stage = Force(
            model=str(TOY_BASE), rollouts=rollouts, episodes=episodes, out=out, out_thoughts=thoughts, names=names,
            forcing=settings, engine=engine, cache=keep,
        )  # fmt: skip
        stage.cli_cmd()
        return out, thoughts

    out, thoughts = force("whole", folder=tmp_path / "kept")
    answers, added = pl.read_parquet(out), pl.read_parquet(thoughts)
    assert answers.height == 12 * 2 * 2 and set(answers["prefix"]) == {0, 2}
    assert added.height == 12 * 3 and set(added["extension"]) == {1, 2, 3}
    assert {"stop", "length"} == set(added["finish_reason"])  # some close their thought, some are cut
    assert not added["text"].str.contains("</think>", literal=True).any()
    whole = added.filter(pl.col("finish_reason") == "stop")
    for number, text in whole.select("extension", "text").iter_rows():
        assert text.startswith(f"\n\n{settings.markers[(number - 1) % 2]}")
    grades = answers.select("problem_id", "sample", "prefix", "answer_index").with_columns(
        pl.lit(True).alias("correct")
    )
    tokens = progress_table(answers, grades).sort("prefix").group_by("problem_id").agg(pl.col("prefix_tokens"))
    assert all(before <= after for before, after in tokens["prefix_tokens"])

    again = force("again", folder=tmp_path / "kept")
    said = [line for line in capfd.readouterr().out.splitlines() if "completions cached" in line]
    assert said[-1].endswith(", 0 to sample")
    for one, two in zip((out, thoughts), again, strict=True):
        assert pl.read_parquet(one).equals(pl.read_parquet(two))

    shares = []
    for shard in ("0/2", "1/2"):  # half of the thoughts each, with all requests of a thought
        none = force("none", folder=tmp_path / "shards", shard=shard)
        assert not any(path.exists() for path in none)
        shares.append(pl.read_parquet(tmp_path / "shards").height)
    assert shares[0] == shares[1] / 2 == 12 / 2 * (3 + 2 * 2)
    for one, two in zip((out, thoughts), force("two", folder=tmp_path / "shards", gather=2), strict=True):
        assert (
            pl.read_parquet(one)
            .drop("mean_logprob", strict=False)
            .equals(pl.read_parquet(two).drop("mean_logprob", strict=False))
        )


def test_what_the_model_is_asked_to_go_on_with(tmp_path, monkeypatch):
    """Markers in turn, a truncated thought (no other) without its last step, and answers after the closed thought."""
    from mrt.core.artifacts import EPISODES, ROLLOUTS
    from mrt.episodes.thinking import THINK
    from mrt.sampling.engine import Completion

    whole, cut, stopped = "a\n\nb\n", "a\n\nb, cut", "a\n\nd"
    texts = ((f"{whole}</think>x", "length"), (cut, "length"), (stopped, "stop"))  # the answer is cut; the thought
    rollouts = [
        ("p", i, "Q<think>\n", text, 5, 3, why, None, True, THINK.cell()) for i, (text, why) in enumerate(texts)
    ]
    episodes = [("p", 0, 0, whole, True), ("p", 1, 0, cut, False), ("p", 2, 0, stopped, False)]
    files = {name: tmp_path / f"{name}.parquet" for name in ("rollouts", "episodes", "out", "out_thoughts")}
    for name, kind, rows in (("rollouts", ROLLOUTS, rollouts), ("episodes", EPISODES, episodes)):
        kind.write(pl.DataFrame(rows, schema=kind.columns, orient="row"), files[name])
    asked = []

    def draw(self, requests, then, **_):
        waiting, found = list(requests), []
        for number, request in enumerate(waiting):
            asked.append((str(request.prompt), request.n))
            found.append([Completion(" c", 1, "stop", None)] * request.n)
            waiting += then(number, found[-1])
        return found

    monkeypatch.setattr(Force, "draw", draw)
    forcing = BudgetForcing(most=3, every=3, markers=("Wait", "But"), answers=4)
    Force(model=str(TOY_BASE), names=("m", "d"), forcing=forcing, **files).cli_cmd()
    expected = []
    for begun, opened in (("a\n\nb\n", "a\n\nb\n\n"), ("a\n", "a\n\n"), ("a\n\nd\n", "a\n\nd\n\n")):
        more = [f"{opened}Wait", f"{opened}Wait c\n\nBut", f"{opened}Wait c\n\nBut c\n\nWait"]
        answers = [f"{text}</think>\n\n" for text in (begun, f"{more[-1]} c\n")]
        expected += [(f"Q<think>\n{text}", n) for texts, n in ((more, 1), (answers, 4)) for text in texts]
    assert sorted(asked) == sorted(expected)
