import polars as pl
import pytest

from mrt.analysis.evaluate import Evaluate
from mrt.analysis.measures.accuracy import accuracy
from mrt.analysis.measures.budget_forcing import budget_forcing
from mrt.analysis.measures.episode_regret import episode_regret
from mrt.analysis.measures.episodes import episodes
from mrt.analysis.measures.linearized import linearized
from mrt.analysis.measures.maj import maj
from mrt.analysis.measures.prefixes import prefixes
from mrt.analysis.measures.regret import regret
from mrt.analysis.regret import normalized_regret
from mrt.core import artifacts
from mrt.episodes.thinking import THINK

PROBLEMS = pl.DataFrame({"id": ["p", "q"], "difficulty": [3.0, None]})
ROLLOUTS = pl.DataFrame(
    {
        "problem_id": ["p", "p", "q", "q"],
        "sample": [0, 1, 0, 1],
        "text": ["a</think>x", "b</think>y", "cut", "d</think>z"],
        "tokens": [10, 30, 50, 10],
        "finish_reason": ["stop", "stop", "length", "stop"],
        "inside": [True] * 4,
        "thinking": [THINK.cell()] * 4,
    }
)
GRADES = pl.DataFrame(
    {
        "problem_id": ["p", "p", "q", "q"],
        "sample": [0, 1, 0, 1],
        "correct": [True, False, False, True],
        "parsed": [True, True, False, True],
        "cluster": [0, 1, -1, 0],
    }
)


def test_accuracy_is_a_row_a_problem():
    rows = accuracy(PROBLEMS, ROLLOUTS, GRADES).to_dicts()
    assert [r["accuracy"] for r in rows] == [0.5, 0.5]
    assert [r["tokens"] for r in rows] == [20, 30]
    assert [r["unfinished"] for r in rows] == [0, 0.5]
    assert [r["unparsed"] for r in rows] == [0, 0.5]


def test_maj_at_1_is_accuracy_and_costs_grow_with_k():
    table = maj(ROLLOUTS, GRADES, [1, 2])
    assert table.filter(pl.col("k") == 1)["maj"].to_list() == [0.5, 0.5]
    assert table.filter(pl.col("k") == 2)["maj"].to_list() == [0.5, 1.0]  # a tie; an unparseable answer has no vote
    assert table.filter(pl.col("k") == 2)["pass"].to_list() == [1.0, 1.0]
    assert table["tokens"].to_list() == [20, 40, 30, 60]


def test_a_stop_phrase_in_the_prompt_counts_once():
    """The direct baseline's tokens are those of [maj@p]_0, whose prompt is the same."""
    table = maj(ROLLOUTS, GRADES, [1, 2], inserted=11)
    assert table["tokens"].to_list() == [31, 51, 41, 71]
    keys = ("problem_id", "answer_index")
    lengths = {"sample": 0, "prefix": 0, "problem_tokens": 5, "prefix_tokens": 0, "prompt_tokens": 16}
    forced = ROLLOUTS.select("problem_id", "tokens", answer_index="sample").with_columns(
        **{name: pl.lit(value, pl.Int64) for name, value in lengths.items()}
    )
    grades = GRADES.rename({"sample": "answer_index"}).with_columns(sample=pl.lit(0), prefix=pl.lit(0))
    same = prefixes(forced, grades.select("sample", "prefix", "correct", "cluster", *keys), [1, 2])
    assert same["tokens"].to_list() == table["tokens"].to_list()


def test_prefixes_count_prompt_and_answers():
    keys = {"problem_id": ["p"] * 4, "sample": [0] * 4, "prefix": [0, 0, 1, 1], "answer_index": [0, 1, 0, 1]}
    prompts = {"problem_tokens": [90] * 4, "prefix_tokens": [0, 0, 20, 20], "prompt_tokens": [100, 100, 120, 120]}
    prover = pl.DataFrame({**keys, "tokens": [2, 4, 5, 5], **prompts})
    grades = pl.DataFrame({**keys, "correct": [True, False, True, True], "cluster": [0, 1, 0, 0]})
    table = prefixes(prover, grades, [1, 2])
    assert table.select("episodes", "prefix", "p", "maj", "tokens").rows() == [
        (1, 0, 1, 0.5, 13),
        (1, 0, 2, 0.5, 16),
        (1, 1, 1, 1.0, 35),
        (1, 1, 2, 1.0, 40),
    ]
    with pytest.raises(ValueError, match="weighted votes need the answers' log-probabilities"):
        prefixes(prover.with_columns(mean_logprob=pl.lit(None, pl.Float64)), grades, [1, 2], weighted=True)
    sure = prover.with_columns(mean_logprob=pl.Series([-0.1, -0.9, -0.5, -0.5]))
    assert prefixes(sure, grades, [1, 2], weighted=True)["maj"].to_list() == [0.5, 1.0, 1.0, 1.0]
    unsure = prover.with_columns(mean_logprob=pl.Series([-0.9, -0.1, -0.5, -0.5]))
    assert prefixes(unsure, grades, [1, 2], weighted=True)["maj"].to_list() == [0.5, 0.0, 1.0, 1.0]


def test_an_answer_for_which_there_was_no_room_has_no_vote():
    """The engine gives a prompt that fills the context an empty completion, without a log-probability."""
    keys = {"problem_id": ["p"] * 3, "sample": [0] * 3, "prefix": [0] * 3, "answer_index": [0, 1, 2]}
    sizes = {"problem_tokens": [9] * 3, "prefix_tokens": [0] * 3, "prompt_tokens": [9] * 3}
    logged = {"tokens": [4, 4, 0], "mean_logprob": [-0.1, -0.9, None]}
    prover = pl.DataFrame({**keys, **sizes, **logged})
    grades = pl.DataFrame({**keys, "correct": [True, False, False], "cluster": [0, 1, -1]})
    assert prefixes(prover, grades, [1, 3], weighted=True)["maj"].to_list() == pytest.approx([1 / 3, 1.0])
    with pytest.raises(ValueError, match="weighted votes need the answers' log-probabilities"):
        prefixes(prover.with_columns(tokens=pl.lit(4, pl.Int64)), grades, [1], weighted=True)


def test_regret_averages_a_problems_traces():
    progress = pl.DataFrame(
        {
            "problem_id": ["p"] * 4,
            "sample": [0, 0, 1, 1],
            "prefix": [0, 1, 0, 1],
            "prefix_tokens": [0, 10, 0, 10],
            "tokens": [5.0, 15.0, 5.0, 15.0],
            "J": [1.0, 1.0, 0.0, 1.0],
        }
    )
    assert regret(progress, [10, 20], axis="thought")["regret"].to_list() == pytest.approx([0.25, 0.125])
    by_hand = [(2.5 / 10 + (10 - 1.25) / 10) / 2, (2.5 / 20 + 10 / 20) / 2]  # an answer costs 5 tokens: J_0 is at 5
    assert regret(progress, [10, 20])["regret"].to_list() == pytest.approx(by_hand)


def test_regret_is_extrapolated_through_the_forced_extensions():
    trace = {"problem_id": ["p"] * 3, "sample": [0] * 3}
    spent = {"prefix_tokens": [0, 10, 20], "tokens": [3.0, 13.0, 23.0]}
    progress = pl.DataFrame({**trace, "prefix": [0, 1, 2], **spent, "J": [0.0, 0.5, 0.5]})
    other = progress.with_columns(sample=pl.lit(1, pl.Int64), J=pl.lit(0.0))  # scored, but not extended
    spent = {"thought_tokens": [20, 40, 60], "tokens": [24.0, 44.0, 64.0]}
    forced = pl.DataFrame({**trace, "extensions": [0, 2, 4], "accuracy": [0.9, 1.0, 0.0], **spent})
    answered = regret(progress, [20], forced, [40, 60]).filter(extensions=4)["regret"].item()
    assert answered == pytest.approx(normalized_regret([3, 13, 23, 44, 64], [0, 0.5, 0.5, 1, 0], 60))
    table = regret(pl.concat([progress, other]), [20], forced, [40, 60], "thought")
    assert table.select("extensions", "budget").rows() == [(0, 20), (2, 40), (4, 60)]
    within, first, second = table["regret"]
    assert within == pytest.approx((normalized_regret([0, 10, 20], [0, 0.5, 0.5], 20) + 1) / 2)
    assert first == pytest.approx(normalized_regret([0, 10, 20, 40], [0, 0.5, 0.5, 1], 40))
    assert second == pytest.approx(normalized_regret([0, 10, 20, 40, 60], [0, 0.5, 0.5, 1, 0], 60))
    overlapping = regret(progress, [20, 30, 40, 50], forced, [40, 60])
    assert overlapping.select("extensions", "budget").rows() == [(0, 20), (0, 30), (2, 40), (4, 60)]
    with pytest.raises(ValueError, match=r"1 extrapolated budgets for extensions \[2, 4\]"):
        regret(progress, [20], forced, [40])


def test_budget_forcing_is_a_row_a_number_of_extensions():
    keys = {"problem_id": ["p"] * 4, "sample": [0] * 4, "prefix": [0, 0, 2, 2], "answer_index": [0, 1, 0, 1]}
    prompts = {"problem_tokens": [9] * 4, "prefix_tokens": [30, 30, 50, 50], "prompt_tokens": [42, 42, 62, 62]}
    kind = {"finish_reason": ["stop"] * 4, "mean_logprob": [None] * 4}
    answers = pl.DataFrame({**keys, "tokens": [4, 6, 8, 8], **prompts, **kind})
    grades = pl.DataFrame({**keys, "correct": [True, False, True, True]})
    assert budget_forcing(answers, grades).rows() == [("p", 0, 0, 0.5, 30, 38.0), ("p", 0, 2, 1.0, 50, 61.0)]


def test_regret_by_episodes_keeps_what_a_short_trace_has():
    rows = [
        ("p", sample, j, votes, 0.0 if sample == 0 else 1.0 if j < 2 else 0.0)
        for sample, k in ((0, 1), (1, 3))
        for j in range(k + 1)
        for votes in (1, 2, 4, 8)
    ]
    table = pl.DataFrame(rows, schema=["problem_id", "sample", "prefix", "p", "maj"], orient="row")
    found = episode_regret(table)
    assert found["episodes"].to_list() == [1, 2, 3]
    assert found["hopeless"].to_list() == [0.5, 0.5, 0.5] and found["reached"].to_list() == [1.0, 0.5, 0.5]
    assert found["regret"][0] == pytest.approx(0.5)  # one hopeless, the other loses nothing at first
    assert found["regret"][1] > 0.5
    second, last = episode_regret(table, every=2).iter_rows(named=True)
    assert second == found.row(1, named=True) | {"reached": 1.0}
    assert last == found.row(2, named=True) | {"episodes": 4}  # that of three episodes, whole
    (beyond,) = episode_regret(table, every=5).iter_rows(named=True)  # all thoughts are shorter, and count whole
    assert beyond == found.row(2, named=True) | {"episodes": 5, "reached": 1.0}


def test_who_is_hopeless_is_decided_by_whole_thoughts():
    rows = [("p", s, j, votes, float(j == k)) for s, k in ((0, 8), (1, 7)) for j in (0, 5, k) for votes in (1, 2, 4, 8)]
    table = pl.DataFrame(rows, schema=["problem_id", "sample", "prefix", "p", "maj"], orient="row")
    found = episode_regret(table, every=5)
    assert found.select("episodes", "hopeless", "reached").rows() == [(5, 1.0, 1.0), (10, 0.0, 1.0)]


def test_episode_counts_are_a_row_a_thought():
    pieces = {"problem_id": ["p"] * 3, "sample": [0, 0, 1], "text": ["a", "b", ""], "closed": [True, True, False]}
    assert episodes(pl.DataFrame(pieces))["episodes"].to_list() == [2, 0]


def test_a_missing_input_is_named(tmp_path):
    with pytest.raises(ValueError, match="regret reads progress, forced; missing or unknown: progress"):
        Evaluate(measure="regret", options={"budgets": [9]}, out=tmp_path / "r.parquet").cli_cmd()


def test_linearized_votes_are_of_the_attempts_so_far():
    clusters = [0, 1, 1, 1]  # of four attempts in a row; 1 is right
    answers = pl.DataFrame(
        [("p", 0, k, 0, "", 10, 5, 12 * (k - 1), 50, "stop", None) for k in range(1, 5)],
        schema=artifacts.PROVER.columns,
        orient="row",
    )
    grades = pl.DataFrame(
        [("p", 0, k, 0, str(c), True, c == 1, c) for k, c in enumerate(clusters, start=1)],
        schema=artifacts.ANSWER_GRADES.columns,
        orient="row",
    )
    assert linearized(answers, grades, [1, 2, 4]).rows() == [
        ("p", 1, 0.0, 0.0, 10.0, 1),
        ("p", 2, 0.5, 1.0, 22.0, 1),
        ("p", 4, 1.0, 1.0, 46.0, 1),
    ]


def test_texts_stay_on_disk(tmp_path):
    """They are most of a table of forced answers; a measure that does not use them must not read them."""
    keys = {"problem_id": ["p"] * 2, "sample": [0] * 2, "prefix": [0, 1], "answer_index": [0, 0]}
    prover, grades, out = (tmp_path / f"{name}.parquet" for name in ("prover", "grades", "out"))
    sizes = {"tokens": [2, 4], "problem_tokens": [3, 3], "prompt_tokens": [9, 9], "prefix_tokens": [0, 5]}
    kind = {"finish_reason": ["stop", "length"], "mean_logprob": [None, -1.0]}
    pl.DataFrame({**keys, **sizes, **kind}).write_parquet(prover)
    pl.DataFrame({**keys, "correct": [True, False], "cluster": [0, 1]}).write_parquet(grades)
    for measure, options in (("prefixes", {"votes": [1]}), ("budget_forcing", {}), ("linearized", {"attempts": [1]})):
        tables = {"prover" if measure == "prefixes" else "answers": prover, "grades": grades}
        Evaluate(measure=measure, tables=tables, options=options, out=out).cli_cmd()
        assert pl.read_parquet(out).height


def test_linearized_measures_are_means_over_a_problems_texts():
    answers = pl.DataFrame(
        [("p", sample, 1, 0, "", 10 + 10 * sample, 5, 0, 50, "stop", None) for sample in range(2)],
        schema=artifacts.PROVER.columns,
        orient="row",
    )
    grades = pl.DataFrame(
        [("p", sample, 1, 0, "x", True, sample == 0, 0) for sample in range(2)],
        schema=artifacts.ANSWER_GRADES.columns,
        orient="row",
    )
    assert linearized(answers, grades, [1]).rows() == [("p", 1, 0.5, 0.5, 15.0, 2)]
