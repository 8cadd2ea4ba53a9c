import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrt.analysis.evaluate import Evaluate
from mrt.analysis.measures.early_exit import TAUS, early_exit, prefixes_of, stopped
from mrt.analysis.votes import maj_at_k
from mrt.core.artifacts import ANSWER, ANSWER_GRADES, GRADES, PROVER, ROLLOUTS, TRACE

RIGHT, STOP_PHRASE, CLOSING_TAG = 1, 3, 1  # cluster of the right answer; tokens


def forced(problem, prefixes, sample=0):
    """Forced answers and their grades: each prefix is (its tokens, clusters of its answers, tokens of each)."""
    answers, grades = [], []
    for j, (prefix_tokens, clusters, lengths) in enumerate(prefixes):
        inserted = CLOSING_TAG if j == len(prefixes) - 1 else STOP_PHRASE
        for i, (cluster, length) in enumerate(zip(clusters, lengths, strict=True)):
            key = (problem, sample, j, i)
            sizes = (length, 10, prefix_tokens, 10 + prefix_tokens + inserted)
            answers.append((*key, "", *sizes, "stop", None))
            grades.append((*key, "x", cluster >= 0, cluster == RIGHT, cluster))
    return (
        pl.DataFrame(answers, schema=PROVER.columns, orient="row"),
        pl.DataFrame(grades, schema=ANSWER_GRADES.columns, orient="row"),
    )


def completions(*rows):
    """Rollouts and their grades: each is (problem, sample, tokens, whether it is right)."""
    sampled = [(p, s, "", "", tokens, 10, "stop", None, True, None) for p, s, tokens, _ in rows]
    verdicts = [(p, s, "x", True, right, 0) for p, s, _, right in rows]
    return (
        pl.DataFrame(sampled, schema=ROLLOUTS.columns, orient="row"),
        pl.DataFrame(verdicts, schema=GRADES.columns, orient="row"),
    )


P = [(0, [0, 0, RIGHT, -1], [2] * 4), (20, [0, RIGHT, RIGHT, RIGHT], [2] * 4), (30, [0, RIGHT, RIGHT, RIGHT], [2] * 4)]
Q = [(0, [-1, -1], [2, 4]), (8, [RIGHT, 0], [5, 7])]  # nothing to read; a tie


def tables():
    """The tables of two problems; the second completion of the first was not scored."""
    answers, grades = (pl.concat(parts) for parts in zip(forced("p", P), forced("q", Q), strict=True))
    return answers, grades, *completions(("p", 0, 33, False), ("p", 1, 99, True), ("q", 0, 15, True))


def test_each_rule_stops_each_scored_trace_once():
    table = early_exit(*tables())
    assert table.select(TRACE).unique().sort("problem_id").rows() == [("p", 0), ("q", 0)]
    rows = {(row[0], row[2]): row[3:] for row in table.rows()}
    assert len(rows) == table.height == 2 * (len(TAUS) + 2)
    whole, paid = 33 + 3 * 8, 2 * STOP_PHRASE + CLOSING_TAG  # the thought, all answers; what forces them
    assert {key: row for key, row in rows.items() if key[0] == "p"} == {
        ("p", "agree 0.5"): (0.5, 0, 0.0, 5.0, 3 + 8.0),  # the wrong answer has a share of 2 in 4, of 2 in 3 parsed
        **{("p", f"agree {tau}"): (tau, 1, 1.0, 25.0, 20 + 2 * (3 + 8.0)) for tau in (0.6, 0.7, 0.75)},
        **{("p", f"agree {tau}"): (tau, None, 0.0, 33.0, whole + paid) for tau in (0.8, 0.9, 1.0)},
        ("p", "oracle"): (None, 1, 0.75, 25.0, 25.0),  # the first of two prefixes
        ("p", "whole"): (None, None, 0.0, 33.0, 33.0),
    }
    assert rows["q", "agree 0.5"] == (0.5, 1, 0.5, 8 + 1 + 6, 8 + 1 + 12 + 3 + 6)  # of a tie, half
    assert rows["q", "agree 0.6"] == (0.6, None, 1.0, 15, 15 + 1 + 12 + 3 + 6)
    assert rows["q", "oracle"][1:3] == (1, 0.5)


def test_partial_credit_is_the_credit_of_every_rule():
    answers, grades, rollouts, verdicts = tables()
    clusters = pl.col("cluster")
    grades = grades.with_columns(
        pl.when(clusters == RIGHT).then(1.0).when(clusters == 0).then(0.25).otherwise(0.0).alias("score")
    )
    table = early_exit(answers, grades, rollouts, verdicts.with_columns(score=pl.lit(0.75)))
    accuracies = dict(table.filter(problem_id="p").select("rule", "accuracy").rows())
    assert [accuracies[rule] for rule in ("agree 0.5", "agree 0.75", "oracle", "whole")] == [0.25, 1, 3.25 / 4, 0.75]


def test_it_is_measured_from_files_that_lack_scores(tmp_path):
    kinds = {"prover": PROVER, "grades": ANSWER_GRADES, "rollouts": ROLLOUTS, "verdicts": GRADES}
    paths = {name: tmp_path / f"{name}.parquet" for name in kinds}
    for (name, kind), table in zip(kinds.items(), tables(), strict=True):
        kind.write(table, paths[name])
    Evaluate(measure="early_exit", tables=paths, out=tmp_path / "out.parquet").cli_cmd()
    assert pl.read_parquet(tmp_path / "out.parquet").equals(early_exit(*tables()))


@st.composite
def traces(draw):
    """Prefixes of a trace, whose completion is (tokens, whether it is right)."""
    answers, lengths = draw(st.integers(1, 6)), st.integers(0, 9)
    alike = draw(st.booleans())  # all answers are as long
    length = draw(lengths)
    prefixes, tokens = [], 0
    for j in range(draw(st.integers(1, 5))):
        tokens += draw(st.integers(1, 30)) if j else 0
        clusters = draw(st.lists(st.integers(-1, 2), min_size=answers, max_size=answers))
        each = [length if alike else draw(lengths) for _ in clusters]
        prefixes.append((tokens, clusters, each))
    inserted_and_answer = STOP_PHRASE + (length if alike else 0)
    return prefixes, (tokens + inserted_and_answer + draw(lengths), draw(st.booleans())), alike


@settings(max_examples=60)
@given(st.lists(traces(), min_size=1, max_size=4), st.floats(1.001, 9))
def test_laws_of_rules(thoughts, above):
    parts = [forced(f"p{i}", prefixes) for i, (prefixes, *_) in enumerate(thoughts)]
    answers, grades = (pl.concat(tables) for tables in zip(*parts, strict=True))
    table = early_exit(answers, grades, *completions(*((f"p{i}", 0, *of[1]) for i, of in enumerate(thoughts))))
    assert (table["paid_tokens"] >= table["tokens"]).all() and table["accuracy"].is_between(0, 1).all()
    for i, (prefixes, (tokens, right), alike) in enumerate(thoughts):
        rows = table.filter(problem_id=f"p{i}")
        agreeing = rows.drop_nulls("tau").sort("tau")
        assert agreeing["paid_tokens"].is_sorted() and agreeing["prefix"].fill_null(len(prefixes)).is_sorted()
        if alike:  # else an answer at a later prefix may be shorter by more than the prefix is longer
            assert agreeing["tokens"].is_sorted()
        (whole,) = rows.filter(rule="whole").rows(named=True)
        assert (whole["accuracy"], whole["tokens"], whole["paid_tokens"]) == (right, tokens, tokens)
        J = [clusters.count(RIGHT) / len(clusters) for _, clusters, _ in prefixes]
        (oracle,) = rows.filter(rule="oracle").rows(named=True)
        assert oracle["accuracy"] == pytest.approx(max(J)) and oracle["prefix"] == J.index(max(J))
        for row in agreeing.drop_nulls("prefix").iter_rows(named=True):
            clusters = prefixes[row["prefix"]][1]
            vote = maj_at_k(clusters, [cluster == RIGHT for cluster in clusters], len(clusters))
            assert row["accuracy"] == pytest.approx(vote)
    whole = table.filter(rule="whole").select(*TRACE, "prefix", "accuracy", "tokens", "paid_tokens")
    at = prefixes_of(answers.join(grades, on=ANSWER))
    late = stopped(at, whole, above).sort(TRACE)
    assert late.drop("paid_tokens").equals(whole.drop("paid_tokens"))
    votes = at.group_by(TRACE).agg(pl.col("vote_tokens").sum()).sort(TRACE)["vote_tokens"]
    assert (late["paid_tokens"] - whole["tokens"]).to_list() == votes.to_list()
