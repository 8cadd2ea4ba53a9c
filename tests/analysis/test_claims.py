"""Claims: a verdict only where a difference over runs and problems is significant, and budgets that are spent."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt.analysis.claims import Claim, compare, direct, ends, holm, measure_of, runs_needed, spent, values_of, verdict
from mrt.analysis.intervals import Estimate, mean_of
from mrt.analysis.measures.prefixes import prefixes as measured_prefixes
from mrt.figures.claims import spending


def claim(expect="more", **other):
    text = {"section": "8.2", "says": "better", "value": "accuracy", "model": "a", "than": "b", "redraw": "table1"}
    return Claim(**text, expect=expect, **other)


@given(st.floats(-1, 1))
def test_more_and_less_are_opposite(estimate):
    turned = {"supported": "contradicted", "contradicted": "supported", "not significant": "not significant"}
    word, limit = verdict(claim("more"), estimate)
    assert word == ("supported" if estimate > 0 else "contradicted" if estimate < 0 else "not significant")
    assert limit == 0 and verdict(claim("less"), estimate) == (turned[word], 0)


def test_alike_is_within_a_margin_and_differs_from_its_nearer_end():
    said = claim("same", margin=0.1)
    assert verdict(said, 0.02) == ("supported", 0.1) and verdict(said, -0.02) == ("supported", -0.1)
    assert verdict(said, 0.3) == ("contradicted", 0.1) and verdict(said, -0.3) == ("contradicted", -0.1)


def test_not_more_is_contradicted_by_more_only():
    said = claim("not more", margin=0.1)
    assert verdict(said, -0.5) == verdict(said, 0.0) == ("supported", 0.1)
    assert verdict(said, 0.3) == ("contradicted", 0.1)


def test_ratios_are_compared_with_one():
    assert verdict(claim("more"), 2.0, ratio=True) == ("supported", 1)
    assert verdict(claim("more"), 0.5, ratio=True) == ("contradicted", 1)
    assert verdict(claim("same", margin=1.5), 0.5, ratio=True) == ("supported", 2.5)


@pytest.mark.parametrize(("bound", "possible"), [("at least", "supported"), ("at most", "contradicted")])
def test_a_bound_decides_in_its_own_direction_only(bound, possible):
    found = {verdict(claim("more"), estimate, bound, ratio=True)[0] for estimate in (2.0, 0.5)}
    assert found == {possible, "not significant"}
    assert verdict(claim("same", margin=1.0), 2.0, bound, ratio=True)[0] == "not significant"


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([0.02]) == [0.02] and holm([]) == []
    with pytest.raises(ValueError, match="a p-value is no number"):
        holm([0.01, float("nan")])


def test_a_family_seldom_holds_a_false_verdict():
    """Ten claims without a difference: one in twenty families has a verdict, where uncorrected it were four in ten."""
    p = np.random.default_rng(0).random((2000, 10))
    false = np.mean([min(holm(row.tolist())) < 0.05 for row in p])
    assert 0.035 < false < 0.065 and np.mean(p.min(axis=1) < 0.05) > 0.35


def drawn(runs, shift, spread, seed, problems=100):
    """Values of runs that differ by `spread` in the mean."""
    rng = np.random.default_rng(seed)
    of_problems = np.random.default_rng(0).random(problems)
    return of_problems + shift + spread * rng.standard_normal((runs, 1)) + 0.05 * rng.standard_normal((runs, problems))


def test_gains_are_compared_over_a_common_base():
    base, weak, strong = drawn(1, 0, 0, 1), drawn(5, 0.1, 0.001, 2), drawn(5, 0.3, 0.001, 3)
    found = compare(strong, weak, base).interval()
    assert found.low < 3 < found.high and found.low > 2 and found.estimate == pytest.approx(3, rel=0.1)
    assert compare(strong, weak).value == pytest.approx(0.2, abs=0.02)
    own, rival = drawn(5, 0.3, 0.05, 4), drawn(5, 0.3, 0.05, 4) + 0.1  # which differ by as much in every run
    apart, together = (compare(own, rival, base, same_runs=same).error for same in (False, True))
    assert together < 0.5 * apart


def test_the_runs_that_would_decide_it_do():
    one, other = drawn(3, 0.02, 0.05, 4), drawn(3, 0, 0.05, 5)
    difference = one.mean() - other.mean()
    needed = runs_needed(mean_of(one, other))
    assert needed is not None and needed > 2
    more = [np.concatenate([grid] * -(-needed // 3))[:needed] for grid in (one, other)]  # the same spread, more runs
    found = compare(*more).interval()
    assert np.sign(found.low) == np.sign(found.high) == np.sign(difference)
    base = np.random.default_rng(0).random((1, 40))
    of_problems = mean_of(np.repeat(base, 3, axis=0), np.repeat(base[:, ::-1] + 1e-3, 3, axis=0))
    assert runs_needed(of_problems) is None  # the problems do
    assert runs_needed(mean_of(drawn(5, 0.5, 1e-6, 8), drawn(5, 0, 1e-6, 9))) == 6  # more than there are
    logged = np.array([[1.0], [2.0], [3.0]])  # of runs alone: both have a variance of 1
    needed = runs_needed(mean_of(logged, logged - 0.5))
    assert 2 * (1.96 / 0.5) ** 2 < needed < 2 * (2.01 / 0.5) ** 2 + 1
    needed = runs_needed(Estimate(1.2, 0.001, 0.02, 8.0, runs=5), none=1.0)
    assert 0.1 / ((0.2 / 1.96) ** 2 - 0.001) < needed < 0.1 / ((0.2 / 2.1) ** 2 - 0.001) + 1


def test_of_the_same_runs_only_their_difference_varies():
    of_runs, gain = drawn(4, 0, 0.5, 10), drawn(4, 0.02, 0.03, 11) - drawn(1, 0, 0, 12)
    apart, together = (runs_needed(mean_of(of_runs + gain, of_runs, same_runs=same)) for same in (False, True))
    assert together == runs_needed(mean_of(gain))
    assert together is not None and apart is not None and apart > 20 * together


def test_what_a_run_says_of_single_problems_is_no_variance_between_problems():
    """Two models alike on every problem, with one noisy sample of each in a run: more runs do tell them apart."""
    rng = np.random.default_rng(1)
    of_problems, shift = rng.random(300) * 0.5, 0.03
    one, other = (rng.binomial(1, of_problems + by, (5, 300)).astype(float) for by in (shift, 0))
    between = (one.mean(axis=0) - other.mean(axis=0)).var(ddof=1) / 300
    assert ((one.mean() - other.mean()) / 1.96) ** 2 < between  # taken for one, it would say that no number is enough
    assert runs_needed(mean_of(one, other)) is not None


def test_progress_of_a_backtrack_is_that_of_the_second_episode():
    rows = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p", "sample": 0}
    table = pl.DataFrame([rows | {"prefix": j, "progress": x} for j, x in enumerate((None, 0.1, 0.5, -0.3))])
    found = {value: x for value, *_, x, _samples in values_of({"progress": table}).iter_rows()}
    assert found == {"progress": pytest.approx(0.1), "progress of the backtrack": 0.5}


def test_progress_is_of_one_episode_whichever_prefixes_are_scored():
    J = {("p", 0): [0.2, 0.4, 0.4, 0.8, 0.9], ("p", 1): [0.2, 0.5], ("q", 0): [0.1, 0.3, 0.2]}

    def progress(every):
        rows = []
        for (problem, sample), of_trace in J.items():
            prefixes = sorted({*range(0, len(of_trace), every), len(of_trace) - 1})
            gains = [None, *np.diff([of_trace[j] for j in prefixes])]
            key = {"model": "a", "run": "a", "dataset": "d", "problem_id": problem, "sample": sample}
            rows += [key | {"prefix": j, "progress": gain} for j, gain in zip(prefixes, gains, strict=True)]
        values = values_of({"progress": pl.DataFrame(rows)}).filter(value="progress")
        return dict(values.select("problem_id", "x").iter_rows())

    assert progress(1) == pytest.approx({"p": (0.7 + 0.3) / 5, "q": 0.05})
    assert progress(3) == pytest.approx(progress(1)) and progress(2) == pytest.approx(progress(1))


def test_a_run_of_short_thoughts_has_regret_after_more_episodes_too():
    key = {"dataset": "d", "problem_id": "p", "model": "a", "hopeless": 0.0, "reached": 1.0, "samples": 1}
    runs = {"a": [0.1, 0.2, 0.3], "a_seed1": [0.5]}
    rows = [key | {"run": r, "episodes": b, "regret": x} for r, of in runs.items() for b, x in enumerate(of, 1)]
    values = values_of({"episode_regret": pl.DataFrame(rows)}).filter(value="regret after 3 episodes")
    assert dict(values.select("run", "x").iter_rows()) == {"a": 0.3, "a_seed1": 0.5}


def test_a_training_log_counts_from_its_second_half_on_as_one_problem():
    logs = [
        pl.DataFrame(
            {
                "model": "a",
                "run": run,
                "dataset": f"set of {run}",
                "step": [1, 2, 3, 4],
                "loss": [9.0, 9.0, low, low + 2],
            }
        )
        for run, low in (("a", 1.0), ("a_seed1", 3.0))
    ]
    found = values_of({"sft_log": pl.concat(logs)})
    assert found.select("value", "run", "dataset", "problem_id", "x").rows() == [
        ("training loss", "a", "training", "all", 2.0),
        ("training loss", "a_seed1", "training", "all", 4.0),
    ]


def test_a_gain_is_what_extensions_bring_to_a_trace():
    rows = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p"}
    forced = [
        rows | {"sample": i, "extensions": n, "accuracy": x}
        for i, of in enumerate(((0.25, 0.75), (1.0, 0.0)))
        for n, x in zip((0, 2), of, strict=True)
    ]
    found = {value: x for value, *_, x, _samples in values_of({"budget_forcing": pl.DataFrame(forced)}).iter_rows()}
    assert found["accuracy after 2 extensions"] == 0.375 and found["gain from 2 extensions"] == -0.25
    assert found["gain from 0 extensions"] == 0.0


def test_every_measure_gives_its_values_by_problem():
    rows = {"model": ["a"] * 4, "run": ["a"] * 4, "dataset": ["d"] * 4, "problem_id": ["p", "p", "q", "q"]}
    tables = {
        "accuracy": pl.DataFrame({**rows, "accuracy": [0.0, 1.0, 1.0, 1.0], "tokens": [1, 3, 5, 7]}),
        "maj": pl.DataFrame({**rows, "k": [1, 2, 1, 2], "maj": [0.1, 0.2, 0.3, 0.4], "pass": [0.5] * 4}),
        "regret": pl.DataFrame({**rows, "budget": [64] * 4, "regret": [0.5, 0.7, 0.1, 0.1]}),
        "progress": pl.DataFrame({**rows, "sample": 0, "prefix": [0, 1, 0, 1], "progress": [None, 0.5, None, 0.25]}),
    }
    found = {(v, p): x for v, *_, p, x, _samples in values_of(tables).iter_rows()}
    assert found["accuracy", "p"] == 0.5 and found["tokens", "q"] == 6
    assert found["maj at 2", "q"] == 0.4 and found["pass at 1", "p"] == 0.5
    assert found["regret at 64", "p"] == pytest.approx(0.6) and found["progress", "q"] == 0.25
    assert len(found) == 2 * (1 + 1 + 4 + 1 + 1) and values_of({}).is_empty()


def test_an_exit_is_compared_with_whole_thoughts():
    rows = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p", "sample": 0, "prefix": 1}
    rules = [("agree 0.75", 0.75, 0.4, 60, 90), ("oracle", None, 0.9, 50, 50), ("whole", None, 0.5, 80, 80)]
    names = ["rule", "tau", "accuracy", "tokens", "paid_tokens"]
    table = pl.DataFrame([rows | dict(zip(names, rule, strict=True)) for rule in rules])
    values = {value: x for value, *_, x, _samples in values_of({"early_exit": table}).iter_rows()}
    assert values == {
        **{"accuracy at exit 0.75": 0.4, "accuracy without exit": 0.5, "tokens at exit 0.75": 60},
        **{"tokens without exit": 80, "paid tokens at exit 0.75": 90, "paid tokens without exit": 80},
    }
    assert {measure_of(value) for value in values} == {"early_exit"} and measure_of("accuracy") == "accuracy"


def answered(traces, clusters=(0, 0, 1, 1, 1, 1, 1, 1), each=10):
    """The measure `prefixes` of traces, given as the prefixes scored: answers in clusters, of which 0 is right; an
    episode and an answer cost `each` tokens."""
    rows = [
        ("p", i, j, k, each, 0, each * j, each * j, cluster == 0, cluster)
        for i, scored in enumerate(traces)
        for j in scored
        for k, cluster in enumerate(clusters)
    ]
    names = ["problem_id", "sample", "prefix", "answer_index", "tokens", "problem_tokens", "prefix_tokens"]
    table = pl.DataFrame(rows, schema=[*names, "prompt_tokens", "correct", "cluster"], orient="row")
    grades = table.select("problem_id", "sample", "prefix", "answer_index", "correct", "cluster")
    found = measured_prefixes(table.drop("correct", "cluster"), grades, [1, 2])
    return found.select(
        model=pl.lit("a"), run=pl.lit("a"), dataset=pl.lit("d"), **{c: pl.col(c) for c in found.columns}
    )


def test_votes_after_half_of_a_thought_cost_no_more_than_the_whole():
    """Of 4 episodes of 10 tokens, answers of 10: the end costs 50, after two episodes 20 and three answers 50."""
    table = answered([range(5), range(2)])  # the second thought has one episode, and no half
    found = {name: rows for name, rows in ends(table)}
    assert {name: rows["sample"].to_list() for name, rows in found.items()} == {name: [0] for name in found}
    assert found["answer at the end"].select("prefix", "p").rows() == [(4, 1)]
    assert found["answer halfway"].select("prefix", "p").rows() == [(2, 1)]
    (votes,) = found["votes halfway"].iter_rows(named=True)
    assert (votes["affordable"], votes["used"]) == (3, 3)  # no p of the measure, which are 1 and 2
    from mrt.analysis.votes import maj_at_k

    clusters = [0, 0, 1, 1, 1, 1, 1, 1]
    assert votes["maj"] == pytest.approx(maj_at_k(clusters, np.array(clusters) == 0, 3))
    assert spent(found["votes halfway"]).share == 1 and spent(found["answer at the end"]) is None
    assert list(ends(pl.DataFrame())) == list(ends(None)) == []


def test_votes_that_were_not_sampled_are_told():
    """Of 20 episodes: the end costs 210, half of it 100, which leaves 110 for 11 votes, where 8 were sampled."""
    rows = dict(ends(answered([[0, 10, 20]])))["votes halfway"]
    assert rows.select("affordable", "used").rows() == [(11, 8)]
    assert spent(rows) == (pytest.approx(8 / 11), 8, 11)


def test_the_side_that_spends_least_says_whether_tokens_are_equal():
    """In both orders of the models: the tokens of a long thought buy 11 votes, those of a short one fewer."""
    long, short = answered([[0, 10, 20]]), answered([range(5)]).with_columns(model=pl.lit("b"), run=pl.lit("b"))
    tables = {"prefixes": pl.concat([long, short])}
    of = {"value": "votes halfway", "section": "5", "says": "x", "redraw": "fig3", "expect": "more"}
    shares = [
        spending(Claim(model=one, than=other, **of), "d", tables).share for one, other in (("a", "b"), ("b", "a"))
    ]
    assert shares == [pytest.approx(8 / 11)] * 2


def test_half_of_a_thought_is_the_last_prefix_scored_by_then():
    """Where every fifth prefix is scored: of 12 episodes 0, 5, 10 and 12, so that half is 5."""
    found = dict(ends(answered([[0, 5, 10, 12]])))
    assert found["answer halfway"].select("prefix", "p").rows() == [(5, 1)]
    assert found["votes halfway"]["affordable"].to_list() == [8]


def test_answers_without_tokens_are_free():
    """Where a prompt fills the context, so that no answer fits."""
    rows = dict(ends(answered([range(5)], each=0)))["votes halfway"]
    assert rows.select("affordable", "used").rows() == [(8, 8)] and spent(rows).share == 1


def test_a_claim_is_about_a_value_that_there_is():
    with pytest.raises(ValueError, match="value"):
        claim().model_validate(claim().model_dump() | {"value": "regrets at 256"})
    for value in ("regret at 256", "accuracy after 4 extensions", "progress of the backtrack", "token efficiency"):
        assert claim().model_validate(claim().model_dump() | {"value": value}).value == value
    curves = claim().model_dump() | {"value": "linearized token efficiency"}
    assert claim().model_validate(curves | {"than_value": "token efficiency"}).than == "b"
    assert claim().model_validate(claim().model_dump() | {"value": "gain from 2 extensions", "than": None}).than is None
    for wrong, message in (
        (curves | {"gains_over": "c"}, "compares two curves; leave out gains_over"),
        (curves | {"than": None}, "linearized token efficiency needs `than`"),
        (curves | {"than_value": "accuracy"}, "cannot be compared with accuracy"),
        (curves | {"value": "maj at equal tokens", "than_value": "token efficiency"}, "cannot be compared with token"),
        ({"than_value": "token efficiency"}, "accuracy cannot be compared with token efficiency"),
        ({"than": None}, "accuracy needs `than`"),
        ({"gains_over": "b"}, "gains_over b: a third model is needed"),
    ):
        with pytest.raises(ValueError, match=message):
            claim().model_validate(claim().model_dump() | wrong)


def direct_answers(samples=40, correct=10, ks=(1, 4), inserted=5.0):
    """The measure `maj` of a model without thoughts: answers of 10 tokens."""
    own = {"model": "direct", "run": "direct", "dataset": "d", "problem_id": "p", "samples": samples}
    own |= {"correct": correct, "answer_tokens": 10.0}
    return pl.DataFrame([own | {"k": k, "pass": 0.0, "tokens": inserted + 10.0 * k} for k in ks])


def test_a_model_without_thoughts_has_the_tokens_of_each_thought():
    """It may spend all of them: 5 are inserted, answers cost 10, so 25 buy two, 340 buy 33, and 9 none."""
    trace = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p", "episodes": 2, "prefix": 2, "p": 1}
    prefixes = pl.DataFrame([trace | {"sample": i, "tokens": t} for i, t in enumerate((25.0, 340.0, 9.0))])
    found = direct(prefixes, direct_answers())
    from mrt.analysis.votes import pass_at_k

    assert found.select("model", "sample", "affordable", "used").rows() == [("a", 0, 2, 2), ("a", 1, 33, 33)]
    assert found["pass"].to_list() == pytest.approx([pass_at_k(40, 10, 2), pass_at_k(40, 10, 33)])
    few = direct(prefixes, direct_answers(samples=8, correct=2))
    assert few.select("affordable", "used").rows() == [(2, 2), (33, 8)] and spent(few) == (10 / 35, 8, 33)
    assert direct(prefixes, direct_answers().with_columns(dataset=pl.lit("e"))).is_empty()
    assert direct(prefixes, None).is_empty() and direct(None, direct_answers()).is_empty()


def test_all_that_section_5_compares_is_of_the_same_traces():
    """The second trace is too short for an answer of the direct baseline, the third for one after half of it."""
    own = {"model": "a", "run": "a", "dataset": "d", "problem_id": "p", "answers": 8, "answer_tokens": 5.0}
    traces = {0: (2, 30.0, 2), 1: (2, 9.0, 1), 2: (2, 30.0, 0)}  # episodes, tokens at the end, answers bought halfway
    rows = [
        own
        | {"sample": i, "episodes": k, "prefix": j, "p": 1, "maj": 0.5, "tokens": tokens}
        | {"affordable": bought if j < k else None, "affordable_maj": 0.5 if j < k and bought else None}
        for i, (k, tokens, bought) in traces.items()
        for j in (k, k // 2)
    ]
    answers = direct_answers()
    found = {name: table["sample"].to_list() for name, table in ends(pl.DataFrame(rows), answers)}
    names = ("direct at the end", "answer at the end", "answer halfway", "votes halfway")
    assert found == {name: [0] for name in names}
    more = pl.DataFrame([*rows, *(row | {"dataset": "e"} for row in rows)])  # where the baseline is not measured
    found = {name: table.select("dataset", "sample").rows() for name, table in ends(more, answers)}
    assert found["direct at the end"] == [("d", 0)] and found["answer halfway"] == [("d", 0), ("e", 0), ("e", 1)]
    assert "direct at the end" not in dict(ends(more, None))


def test_the_second_half_is_that_of_each_training_by_itself():
    steps = {"a": [9.0, 9.0, 1.0, 3.0], "b": [9.0, 5.0]}
    rows = [
        {"model": m, "run": m, "dataset": "d", "step": i, "loss": loss}
        for m, losses in steps.items()
        for i, loss in enumerate(losses, start=1)
    ]
    found = values_of({"sft_log": pl.DataFrame(rows)})
    assert found.select("model", "x").rows() == [("a", 2.0), ("b", 5.0)]
    later = pl.DataFrame(rows).with_columns(pl.col("step") + 1000)  # an imported log of a second phase
    assert values_of({"sft_log": later}).equals(found)
