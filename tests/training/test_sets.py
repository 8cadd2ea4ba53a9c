from types import SimpleNamespace

import polars as pl
import pytest

from mrt.analysis.measures.episodes import episodes as count_episodes
from mrt.analysis.progress import progress_table
from mrt.core import artifacts
from mrt.core import fingerprint as fp
from mrt.episodes.parameterization import OpenEnded, Template
from mrt.episodes.thinking import THINK
from mrt.methods import mrt, star
from mrt.methods.mrt import Rules, best_prefixes
from mrt.sampling.prompt import Prompt
from mrt.training.method import SFTMethod, methods, parts_of
from mrt.training.sets import READ, MakeSet, ModelTexts, Source, suffix_set

P = "<|user|>q<|assistant|><think>\n"
TEXTS = ["a\n\nb\n\nc\n\nWait d\n</think>\n\nyes", "e\n</think>\n\nno", "f, cut off"]
ROLLOUTS = pl.DataFrame(
    {
        "problem_id": ["p"] * 3,
        "sample": [0, 1, 2],
        "prompt": [P] * 3,
        "text": TEXTS,
        "finish_reason": ["stop", "stop", "length"],
        "inside": [True] * 3,
        "thinking": [THINK.cell()] * 3,
    }
)
GRADES = pl.DataFrame({"problem_id": ["p"] * 3, "sample": [0, 1, 2], "correct": [True, False, False]})
EPISODES = pl.DataFrame(
    {
        "problem_id": ["p"] * 4,
        "sample": [0, 0, 1, 2],
        "episode": [0, 1, 0, 0],
        "text": ["a\n\nb\n\nc\n\n", "Wait d\n", "e\n", "f, cut off"],
        "closed": [True, True, True, False],
    }
)


def scored(*curves):
    """Progress, forced answers and their grades of traces whose J by prefix is given, with 4 answers a prefix."""
    progress, answers, grades = [], [], []
    for sample, curve in enumerate(curves):
        for prefix, J in enumerate(curve):
            progress.append(("p", sample, prefix, len(curve) - 1, 4, J))
            for i in range(4):
                right = i >= 4 - round(4 * J)  # the last ones are right, so that y is not simply the first
                answers.append(("p", sample, prefix, i, f"answer {sample} {prefix} {i}", "stop"))
                grades.append(("p", sample, prefix, i, right))
    keys = ["problem_id", "sample", "prefix"]
    return (
        pl.DataFrame(progress, schema=[*keys, "episodes", "answers", "J"], orient="row"),
        pl.DataFrame(answers, schema=[*keys, "answer_index", "text", "finish_reason"], orient="row"),
        pl.DataFrame(grades, schema=[*keys, "answer_index", "correct"], orient="row"),
    )


def star_set(rollouts, grades):
    return star.examples(given(rollouts=rollouts, grades=grades))


def mrt_set(*tables, rules):
    names = ("rollouts", "grades", "episodes", "progress", "prover", "prover_grades")
    return mrt.examples(given(**dict(zip(names, tables, strict=True))), rules)


def given(**tables):
    """A source of these tables."""
    return SimpleNamespace(table=tables.__getitem__, parameterization=OpenEnded())


def make(rules=None, curves=((0.25, 0.75, 0.5), (0.5, 0.25), (0.0, 0.5))):
    return mrt_set(ROLLOUTS, GRADES, EPISODES, *scored(*curves), rules=rules or Rules())


def test_star_keeps_right_and_finished_traces_whole():
    examples, counts = star_set(ROLLOUTS, GRADES)
    assert examples["completion"].to_list() == [TEXTS[0]]
    assert examples["prompt"].to_list() == [P]
    assert counts.rows() == [("sampled", 3, 0), ("ended by itself, thought closed", 2, 1), ("answer right", 1, 1)]


def test_a_prefix_with_fewer_answers_than_another_is_no_candidate():
    progress, _, _ = scored((0.25, 1.0, 0.75))
    fewer = progress.with_columns(pl.when(pl.col("prefix") == 1).then(2).otherwise("answers").alias("answers"))
    assert best_prefixes(progress)["prefix"].to_list() == [1]
    assert best_prefixes(fewer)["prefix"].to_list() == [2]


def test_a_completion_without_a_thought_is_no_example_and_makes_no_progress():
    episodes = EPISODES.with_columns(pl.when(pl.col("sample") == 2).then(pl.lit("")).otherwise("text").alias("text"))
    examples, counts = mrt_set(
        ROLLOUTS, GRADES, episodes, *scored((0.25, 0.75, 0.5), (0.5, 0.25), (0.0, 0.5)), rules=Rules()
    )
    assert examples["sample"].to_list() == [0] and counts.rows()[1] == ("a thought", 2, 1)
    counted = count_episodes(episodes)
    assert counted.select("sample", "episodes").rows() == [(0, 2), (1, 1), (2, 0)]
    rows = [("p", sample, j, 0, 5, 9, sample * j, 9 + sample * j, "stop", -1.0) for sample in (0, 1) for j in (0, 1)]
    names = ["problem_id", "sample", "prefix", "answer_index", "tokens", "problem_tokens", "prefix_tokens"]
    answers = pl.DataFrame(rows, schema=[*names, "prompt_tokens", "finish_reason", "mean_logprob"], orient="row")
    grades = answers.select("problem_id", "sample", "prefix", "answer_index", correct=pl.col("prefix") == 1)
    table = progress_table(answers, grades)
    assert table.select("sample", "prefix", "progress").rows() == [
        (0, 0, None),
        (0, 1, None),
        (1, 0, None),
        (1, 1, 1.0),
    ]


def test_the_best_prefix_is_the_shortest_of_maximal_cumulative_progress():
    progress, _, _ = scored((0.25, 0.75, 0.5, 0.75), (0.5, 0.25), (1.0, 1.0))
    best = best_prefixes(progress)
    assert best.select("sample", "prefix", "J", "gain").rows() == [
        (0, 1, 0.75, 0.5),
        (1, 1, 0.25, -0.25),
        (2, 1, 1.0, 0.0),
    ]


def test_within_a_tolerance_the_shorter_prefix_is_kept():
    progress, _, _ = scored((0.25, 0.5, 0.71, 0.75), (0.5, 0.25), (1.0, 0.9, 1.0))
    assert best_prefixes(progress)["prefix"].to_list() == [3, 1, 2]
    assert best_prefixes(progress, 0.05)["prefix"].to_list() == [2, 1, 2]
    assert best_prefixes(progress, 1.0)["prefix"].to_list() == [1, 1, 1]


def test_limits_hold_to_the_digit_where_shares_of_answers_are_rounded():
    """0.75 - 0.25 and 0.7 - 0.25 differ by a little more than 0.05, 0.35 - 0.3 is a little less."""
    progress, _, _ = scored((0.25, 0.7, 0.75), (0.0, 0.7, 0.75), (0.3, 0.35))
    assert best_prefixes(progress, 0.05)["prefix"].to_list() == [1, 1, 1]
    _, counts = make(Rules(minimum_progress=0.05), curves=((0.3, 0.35), (0.35, 0.4), (0.0, 0.1)))
    assert counts.rows()[1] == ("cumulative progress above 0.05", 1, 2)


def test_mrt_closes_the_thought_at_the_best_prefix_and_adds_a_right_answer():
    examples, counts = make()
    header = Template().header
    assert examples.select("sample", "prefix").rows() == [(0, 1), (2, 1)]
    assert examples["completion"][0] == f"a\n\nb\n\nc\n</think>\n\n{header}answer 0 1 1"
    assert examples["completion"][1] == f"f, cut off\n</think>\n\n{header}answer 2 1 2"
    assert counts.rows()[:2] == [("sampled", 3, 0), ("cumulative progress above 0", 2, 1)]


def test_mrt_keeps_the_end_of_a_whole_thought_as_it_is():
    examples, _ = make(curves=((0.25, 0.5, 0.75), (0.5, 0.25), (0.0, 0.0)))
    assert examples["completion"].to_list() == ["a\n\nb\n\nc\n\nWait d\n</think>\n\nanswer 0 2 1"]


@pytest.mark.parametrize(
    ("rules", "samples"),
    [
        (Rules(), [0, 2]),
        (Rules(minimum_J=0.6), [0]),
        (Rules(minimum_progress=0.5), []),
        (Rules(whole_trace_correct=True), [0]),
    ],
)
def test_each_rule_filters(rules, samples):
    examples, counts = make(rules)
    assert examples["sample"].to_list() == samples
    assert counts["kept"][-1] == len(samples)
    assert (counts["kept"] + counts["dropped"]).to_list()[1:] == counts["kept"].to_list()[:-1]


def test_the_stop_phrase_can_stay():
    examples, _ = make(Rules(keep_stop_phrase=True))
    assert "Time is up." in examples["completion"][0]


def test_progress_can_weight_the_loss():
    examples, _ = make(Rules(weight="progress"))
    assert examples["weight"].to_list() == [0.5, 0.5]


def test_no_trace_kept_is_an_empty_set_not_an_error():
    examples, _ = make(Rules(minimum_J=1.0))
    assert examples.is_empty() and examples.columns == star_set(ROLLOUTS, GRADES)[0].columns


BACKTRACK = "Wait, this seems off. Let's try something else.\n\nStep 1:"


def traces(*texts):
    """Rollouts, their episodes and grades in the backtracking parameterization; a trace is right if it ends in 4."""
    from mrt.episodes.parameterization import Backtracking

    words = Backtracking()
    rollouts = pl.DataFrame(
        [
            ("p", i, "x: ", text, 9, 5, "length" if text.endswith("...") else "stop", None, False, None)
            for i, text in enumerate(texts)
        ],
        schema=artifacts.ROLLOUTS.columns,
        orient="row",
    )
    episodes = pl.DataFrame(
        [
            ("p", i, n, e, words.cut(text).closed)
            for i, text in enumerate(texts)
            for n, e in enumerate(words.cut(text).episodes)
        ],
        schema=artifacts.EPISODES.columns,
        orient="row",
    )
    grades = pl.DataFrame(
        [("p", i, text[-1], True, text.endswith("4"), 0) for i, text in enumerate(texts)],
        schema=artifacts.GRADES.columns,
        orient="row",
    )
    return rollouts, grades, episodes


def test_what_backtracks_is_learnt_from_its_backtrack_on():
    first = "Step 1: a\n\nAnswer: 3\n\n"
    texts = (
        first + BACKTRACK + " b\n\nAnswer: 4",
        first + BACKTRACK + " c\n\nAnswer: 4",
        first + BACKTRACK + " d\n\nAnswer: 5",
        "Step 1: e\n\nAnswer: 4",
        first + BACKTRACK + " f...",
    )
    tables = traces(*texts)
    gains = [0.5, 0.1, 0.9, None, 0.9]
    rows = [("p", i, 2, 3, 9, 12.0, 8, 0.5, gain) for i, gain in enumerate(gains) if gain is not None]
    progress = pl.DataFrame(rows, schema=artifacts.PROGRESS.columns, orient="row")
    examples, counts = suffix_set(*tables, progress, minimum_progress=0.3, weighted=True)
    assert examples.rows() == [("p", 0, 1, "x: " + first, BACKTRACK + " b\n\nAnswer: 4", 0.5)]
    assert counts["kept"].to_list() == [5, 4, 3, 2, 1]
    examples, _ = suffix_set(*tables)  # STaR
    assert examples["sample"].to_list() == [0, 1, 3]
    assert examples["completion"][2] == texts[3] and examples["prompt"][2] == "x: "


def test_a_revision_without_an_answer_is_not_learnt():
    """The attempt's answer may be right; the last episode has none."""
    whole = "Step 1: a\n\nAnswer: 4\n\n" + BACKTRACK
    rollouts, grades, episodes = traces(whole + " b", whole + " c\n\nAnswer: 4")
    examples, counts = suffix_set(rollouts, grades.with_columns(correct=True), episodes)
    assert examples["sample"].to_list() == [1] and counts["dropped"].sum() == 1


@pytest.mark.parametrize("why", ["length", "scored"])
def test_y_is_an_answer_that_ended_by_itself(why):
    """Neither one that was cut off nor a gold answer whose probability was read off."""
    progress, answers, grades = scored((0.25, 0.75, 0.5), (0.5, 0.25), (0.0, 0.5))
    first = (pl.col("sample") == 0) & (pl.col("answer_index") == 1)
    other = answers.with_columns(finish_reason=pl.when(first).then(pl.lit(why)).otherwise("finish_reason"))
    examples, _ = mrt_set(ROLLOUTS, GRADES, EPISODES, progress, other, grades, rules=Rules())
    assert examples["completion"][0].endswith("answer 0 1 2")


@pytest.mark.parametrize(("text", "finish"), [("e\n</think>\n\nyes, and", "length"), ("it never closes", "stop")])
def test_star_takes_no_trace_that_was_cut_off_nor_one_that_never_closes(text, finish):
    rollouts = ROLLOUTS.head(1).with_columns(text=pl.lit(text), finish_reason=pl.lit(finish))
    examples, counts = star_set(rollouts, GRADES.head(1))
    assert examples.is_empty() and counts["dropped"].to_list() == [0, 1, 0]


def test_a_trace_that_was_cut_off_behind_its_answer_is_not_learnt():
    rollouts, grades, episodes = traces("Step 1: e\n\nAnswer: 4")
    assert suffix_set(rollouts, grades, episodes)[0].height == 1
    cut = rollouts.with_columns(finish_reason=pl.lit("length"))
    assert suffix_set(cut, grades, episodes)[0].is_empty()


def test_a_J_that_is_just_enough_is_enough():
    assert make(Rules(minimum_J=0.75))[0]["sample"].to_list() == [0]


@pytest.mark.parametrize("name", [name for name, method in methods().items() if isinstance(method, SFTMethod)])
def test_a_method_reads_tables_that_there_are_and_its_code_is_its_own(name):
    """The fingerprint of its sets holds its function and the class of its settings, and no other method's."""
    method, others = methods()[name], {n: m for n, m in methods().items() if m.colour != methods()[name].colour}
    assert set(method.reads) <= set(READ) and len(others) == len(methods()) - 1
    definitions = fp.reached("mrt.training.sets", *parts_of(name)).definitions
    assert f"{method.examples.__module__}.{method.examples.__name__}" in definitions
    assert not method.settings or f"{method.settings[1].__module__}.{method.settings[1].__name__}" in definitions
    assert not {f"mrt.methods.{each}.{each}" for each in methods()} & set(definitions)


def test_a_table_that_a_method_does_not_read_is_an_error(tmp_path):
    source = Source({"rollouts": tmp_path / "rollouts.parquet"}, OpenEnded(), prompt=None, seed=0)
    with pytest.raises(ValueError, match="the table progress is none of rollouts; add it to `reads`"):
        source.table("progress")
    with pytest.raises(ValueError, match="no tokenizer; add it to `reads`"):
        ModelTexts(source)


def test_a_filter_sees_the_answers_that_were_allocated_to_it_alone(tmp_path):
    mine, other = Rules(minimum_J=0.6), Rules(minimum_J=0.9)
    keys = {"problem_id": "p", "sample": 0}
    lengths = {"tokens": 1, "problem_tokens": 1, "prefix_tokens": 1, "prompt_tokens": 1}
    rows, grades = [], []
    for prefix in (0, 1):
        for index in range(4):
            answer = keys | {"prefix": prefix, "answer_index": index}
            filters = [other.key, *([mine.key] if index < 2 else [])]
            end = {"text": str(index), "finish_reason": "stop", "mean_logprob": None, "allocated": filters}
            rows.append(answer | lengths | end)
            right = prefix == 1 and index < 2  # J is 1 by the filter's own two answers, and 0.5 by all four
            grades.append(answer | {"answer": "1", "parsed": True, "correct": right, "cluster": 0})
    prover = pl.DataFrame(rows, schema={**artifacts.PROVER.columns, **artifacts.PROVER.optional})
    grades = pl.DataFrame(grades, schema=artifacts.ANSWER_GRADES.columns)
    files = {name: tmp_path / f"{name}.parquet" for name in ("prover", "prover_grades", "progress")}
    artifacts.PROVER.write(prover, files["prover"])
    artifacts.ANSWER_GRADES.write(grades, files["prover_grades"])
    artifacts.PROGRESS.write(progress_table(prover, grades), files["progress"])

    def seen(rule):
        source = Source(files, OpenEnded(), Prompt(), 0, rule=rule)
        return source.table("progress")["J"].to_list(), source.table("prover").height

    assert seen(mine) == ([0.0, 1.0], 4)
    assert seen(other) == seen(None) == ([0.0, 0.5], 8)
    artifacts.PROVER.write(prover.drop("allocated"), files["prover"])
    assert seen(mine) == ([0.0, 0.5], 8)


def test_an_empty_set_is_an_error_that_says_which_rules_dropped_what(tmp_path):
    """Of a set that is added to those of earlier iterations it is none."""
    files = {name: tmp_path / f"{name}.parquet" for name in ("rollouts", "grades", "out", "out_rules")}
    size = {"tokens": 1, "prompt_tokens": 1, "mean_logprob": None}
    rollouts = ROLLOUTS.with_columns(**{name: pl.lit(value) for name, value in size.items()})
    types = artifacts.ROLLOUTS.columns
    artifacts.ROLLOUTS.write(
        rollouts.select([pl.col(name).cast(kind) for name, kind in types.items()]), files["rollouts"]
    )
    wrong = GRADES.with_columns(correct=pl.lit(value=False), answer=pl.lit("1"), parsed=pl.lit(value=True), cluster=0)
    columns = artifacts.GRADES.columns
    artifacts.GRADES.write(wrong.select([pl.col(name).cast(kind) for name, kind in columns.items()]), files["grades"])
    with pytest.raises(ValueError, match=r"set is empty\. Of 3 sampled, .*1 by `ended by itself.*2 by `answer right`"):
        MakeSet(method="star", **files).cli_cmd()
    assert not files["out"].exists()
    MakeSet(method="star", joins=True, **files).cli_cmd()
    assert artifacts.SET.read(files["out"]).is_empty()
