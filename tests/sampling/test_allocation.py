import numpy as np
import polars as pl
import pytest
from conftest import TOY_BASE
from hypothesis import given, settings
from hypothesis import strategies as st

from mrt.config.load import load
from mrt.episodes.cut import CutRollouts
from mrt.episodes.parameterization import OpenEnded
from mrt.methods.mrt import best_prefixes
from mrt.sampling.allocation import LEVELS, Allocate, Allocation, Answers, Thresholds, Trace, paths_of_J
from mrt.sampling.cache import CacheSettings
from mrt.sampling.engine import Completion, Decoding, EngineSettings, Request
from mrt.sampling.prompt import Prompt
from mrt.sampling.prover import Place, Prove, ProverSettings, prefixes
from mrt.sampling.rollouts import Sample

MOST = 20
FILTER = Thresholds(minimum_J=0.6)
ADD = Trace.add


def settled(answers, rule=FILTER, **how):
    """A trace whose answers [prefixes, MOST] were sampled as far as needed."""
    trace = Trace(len(answers), MOST, Allocation(**how), rule)
    while asked := trace.next():
        for prefix, count in asked.items():
            done = trace.answers[prefix]
            assert 0 < count <= MOST - done
            trace.add(prefix, answers[prefix, done : done + count])
    return trace


def answers_of(curve, seed=0):
    return np.random.default_rng(seed).random((len(curve), MOST)) < np.asarray(curve)[:, None]


curves = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.6, 0.9, 1.0]), min_size=1, max_size=8)


@given(curves, st.integers(0, 100), st.integers(1, 5), st.integers(1, 25))
def test_every_prefix_has_its_first_answers_and_none_more_than_all(curve, seed, first, batch):
    trace = settled(answers_of(curve, seed), first=first, batch=batch)
    assert trace.answers.min() >= min(first, MOST) and trace.answers.max() <= MOST
    assert (trace.right <= trace.answers).all()


@given(curves.filter(lambda c: len(c) > 1), st.integers(0, 100))
def test_the_prefix_kept_is_the_one_that_the_training_set_takes(curve, seed):
    trace = settled(answers_of(curve, seed))
    counts = zip(trace.answers, trace.right, strict=True)
    rows = [("p", 0, j, len(curve) - 1, int(n), r / n) for j, (n, r) in enumerate(counts)]
    table = pl.DataFrame(rows, schema=["problem_id", "sample", "prefix", "episodes", "answers", "J"], orient="row")
    assert best_prefixes(table)["prefix"].item() == trace.best()


@pytest.mark.parametrize(
    "curve", [(0.25, 0.7, 0.75), (0.0, 0.7, 0.75), (0.1, 1 - 3e-10, 1.0), (0.35, 0.4), (0.3, 0.35)]
)
def test_limits_that_are_met_exactly_are_decided_as_for_the_training_set(curve):
    limits = Thresholds(tolerance=0.05, minimum_progress=0.05)
    rows = [("p", 0, j, len(curve) - 1, 20, J) for j, J in enumerate(curve)]
    names = ["problem_id", "sample", "prefix", "episodes", "answers", "J"]
    (kept,) = best_prefixes(pl.DataFrame(rows, schema=names, orient="row"), limits.tolerance).iter_rows(named=True)
    J = np.array(curve)
    assert limits.best(J) == kept["prefix"] == 1
    assert limits.decide(J[1:2], J[:1]).tolist() == [len(curve) > 2]


def test_hopeless_and_plainly_solved_traces_get_few_answers():
    assert settled(answers_of([0.0] * 10)).answers.sum() <= 40
    assert settled(answers_of([0.0] * 3 + [1.0] * 7)).answers.sum() <= 80  # of 200


def test_few_decisions_change_for_few_answers():
    rng = np.random.default_rng(0)
    changed = drawn = 0
    for _ in range(100):  # from hopeless to solved somewhere, or never
        curve = np.where(np.arange(12) < rng.integers(1, 16), rng.beta(0.5, 4), rng.beta(8, 0.5))
        answers = rng.random((12, MOST)) < curve[:, None]
        trace = settled(answers)
        J, now = answers.mean(axis=1), trace.right / trace.answers
        changed += FILTER.decide(J[1:].max(), J[0]) != FILTER.decide(now[trace.best()], now[0])
        drawn += trace.answers.sum()
    assert changed <= 2 and drawn < 100 * 12 * MOST / 3


def test_paths_follow_the_answers_where_there_are_many_and_the_neighbours_where_there_are_few():
    drawn, right = np.array([20, 1, 20, 1, 20]), np.array([0, 0, 0, 1, 20])
    J = paths_of_J(drawn, right, 0.9, 4000, np.random.default_rng(0))
    assert set(np.unique(J)) <= set(LEVELS)
    means = J.mean(axis=0)
    assert means[0] < 0.05 and means[1] < 0.1 and means[4] > 0.95 and means[3] > 0.8


def test_without_neighbours_the_belief_is_bayes():
    J = paths_of_J(np.array([4]), np.array([3]), 0.0, 40_000, np.random.default_rng(0))
    exact = LEVELS**3 * (1 - LEVELS) * (LEVELS * (1 - LEVELS)) ** -0.5
    assert J.mean() == pytest.approx(float((LEVELS * exact).sum() / exact.sum()), abs=0.01)


def test_allocation_is_refused_where_there_is_no_such_choice():
    config = {
        "results": "x",
        "problems": {"d": {"file": "y", "split": "test"}},
        "models": {"m": {"path": "some/model"}},
        "training": {"allocation": {}},
        "backtracking": {},
        "evaluation": {"problems": ["d"], "models": ["m"]},
    }
    with pytest.raises(ValueError, match=r"training\.allocation: .*one backtrack"):
        load(config)


def test_an_answer_that_closes_the_thought_once_more_counts(toy_problems, tmp_path, monkeypatch):
    """It does in the grades of the same answers, from which the training set is made."""
    problem, gold = pl.read_parquet(toy_problems).select("id", "answer").row(0)
    added = []

    def answered(stage, requests, then, **_):
        waiting = list(requests)
        for number, request in enumerate(waiting):
            text = f"Answer:** it is \\boxed{{{gold}}}.\n</think>\n"
            waiting += then(number, [Completion(text, 9, "stop", None)] * request.n)

    monkeypatch.setattr(Allocate, "draw", answered)
    monkeypatch.setattr(Trace, "add", lambda trace, prefix, right: (added.extend(right), ADD(trace, prefix, right)))
    paths = {name: tmp_path / f"{name}.parquet" for name in ("rollouts", "episodes", "out")}
    stage = Allocate(model="none", names=("base", "toy"), problems=toy_problems, **paths)
    scored = prefixes("", ["a", "b"], True, OpenEnded())
    places = [Place(problem, 0, 0, at, Request(at, MOST, 0, Decoding())) for at in scored]
    stage.allocate(places, CacheSettings())
    assert added and all(added)


@given(
    st.lists(curves, min_size=1, max_size=3),
    st.lists(st.sampled_from([0.0, 0.3, 0.6, 0.9]), min_size=1, max_size=3, unique=True),
    st.booleans(),
    st.integers(0, 50),
)
@settings(deadline=None, max_examples=20)
def test_a_filter_gets_the_same_answers_whatever_the_others_are(of_traces, limits, everywhere, seed):
    rules = [Thresholds(minimum_J=limit) for limit in limits]

    def allocated(rules):
        traces = []
        for number, curve in enumerate(of_traces):
            right = answers_of(curve, seed + number)
            at = prefixes("", ["a"] * (len(curve) - 1), True, OpenEnded())
            places = [Place("p", number, number, prefix, Request(prefix, MOST, 0, Decoding())) for prefix in at]
            of_rules = [Trace(len(places), MOST, Allocation(paths=10), rule, seed) for rule in rules]
            answers = Answers(places, of_rules, MOST if everywhere else 0)
            while requests := answers.requests():
                for j, request in requests:
                    assert request.seed == len(answers.answers[j]) and request.n <= MOST - request.seed
                    part = right[j, request.seed : request.seed + request.n]
                    answers.add(j, [Completion(str(r), 1, "stop", None) for r in part], list(part))
            traces.append(answers)
        return traces

    together = allocated(rules)
    for rule in rules:
        for alone, shared in zip(allocated([rule]), together, strict=True):
            marks = [[rule.key in names for names in place] for place in shared.allocated()]
            marks_alone = [[rule.key in names for names in place] for place in alone.allocated()]
            assert [sum(place) for place in marks] == [sum(place) for place in marks_alone]
            assert all(place == sorted(place, reverse=True) for place in marks)  # the first ones
    counts = [len(at_place) for trace in together for at_place in trace.answers]
    assert counts == [
        MOST if everywhere else max(int(trace.answers[j]) for trace in answers.traces)
        for answers in together
        for j in range(len(answers.places))
    ]


@pytest.mark.thorough
def test_allocated_answers_are_the_first_of_all_with_the_real_engine(toy_problems, tmp_path):
    """In one go, in parts, and again from the cache."""
    engine = EngineSettings(max_model_len=1024)
    common = {"model": str(TOY_BASE), "names": ("base", "toy"), "engine": engine}
    rollouts, episodes = tmp_path / "rollouts.parquet", tmp_path / "episodes.parquet"
    decoding, prompt = Decoding(temperature=1.0, max_tokens=300), Prompt(instruction="{problem}")
    Sample(problems=toy_problems, out=rollouts, samples=1, decoding=decoding, prompt=prompt, **common).cli_cmd()
    CutRollouts(rollouts=rollouts, out=episodes).cli_cmd()
    asked = ProverSettings(answers=MOST, decoding=Decoding(temperature=1.0, max_tokens=24))
    common |= {"rollouts": rollouts, "episodes": episodes, "prover": asked}
    ours = common | {"problems": toy_problems, "filters": [FILTER]}
    full, fewer, again = (tmp_path / f"{name}.parquet" for name in ("full", "fewer", "again"))
    Prove(out=full, **common).cli_cmd()
    Allocate(out=fewer, **ours).cli_cmd()
    gather = Allocate(out=again, cache={"folder": tmp_path / "kept", "gather": 2}, **ours)
    for shard in (1, 0):
        Allocate(out=again, cache={"folder": tmp_path / "kept", "shard": f"{shard}/2"}, **ours).cli_cmd()
        assert not again.exists()
        if shard == 1:
            with pytest.raises(ValueError, match=r": shard 0 of 2 lacks at least \d+ completions;"):
                gather.cli_cmd()
    gather.cli_cmd()
    whole, some = pl.read_parquet(full), pl.read_parquet(fewer)
    assert some.equals(pl.read_parquet(again))
    keys = ["problem_id", "sample", "prefix"]
    assert some.select(keys).unique().height == whole.select(keys).unique().height
    assert some.join(whole, on=whole.columns, how="anti", nulls_equal=True).is_empty()
    assert some.height < whole.height / 2
    indices = some.group_by(keys).agg(pl.col("answer_index").max() + 1, pl.len())
    assert (indices["answer_index"] == indices["len"]).all()


def test_a_J_that_is_just_enough_is_enough():
    J, zero = np.array([0.55, 0.6]), np.zeros(2)
    assert FILTER.decide(J, zero).tolist() == [False, True]


def test_answers_are_drawn_until_the_kept_prefix_is_close_to_the_best():
    """That the trace is kept is plain from the beginning; which prefix is the best one is not."""
    asked = []
    for tolerance in (0.05, 1.0):
        trace = Trace(3, MOST, Allocation(stay=0.0, tolerance=tolerance), Thresholds())
        for prefix, right in enumerate((0, 5, 5)):
            trace.add(prefix, [True] * right + [False] * (10 - right))
        asked.append(trace.next())
    assert asked == [{1: 4, 2: 4}, {}]
