"""J by likelihood: the probabilities are the model's, a prefix is read once, and J is a probability."""

from dataclasses import replace
from math import exp

import numpy as np
import polars as pl
import pytest
from conftest import TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.analysis.progress import progress_table
from mrt.core.artifacts import ANSWER_GRADES, PROVER
from mrt.episodes.parameterization import OpenEnded
from mrt.sampling.allocation import Thresholds
from mrt.sampling.cache import CacheSettings, CompletionCache
from mrt.sampling.engine import Completion, Decoding, Engine, EngineSettings, Request
from mrt.sampling.likelihood import Score, boxed, probability
from mrt.sampling.prover import Prefix
from mrt.sampling.scoring import as_written, log_probability, readable, reading

CHAT = "<|user|>Some of the numbers 5, 19, 3 add up to 8. What is the sum of the smallest and the largest of them?"
CHAT += "<|assistant|><think>\n"
EPISODES = ["Try 5 + 3 = 8.\n\n8 is exactly 8.\n\n", "Wait, try 19 + 3 = 22.\n\n22 is more than 8.\n\n"]
OPENING = "Ends:** they add up to \\boxed{"
GREEDY = Decoding(max_tokens=1)


def prefix(j, closed=False):
    return Prefix(CHAT, EPISODES, closed, OpenEnded(), j)


def stage(**options):
    files = dict.fromkeys(("problems", "out", "rollouts", "episodes"), "none.parquet")
    return Score(**{"model": str(TOY_BASE), "names": ("m", "d"), "prover": {"opening": OPENING}} | files | options)


@pytest.fixture(scope="module")
def engine():
    return Engine(str(TOY_BASE), EngineSettings(max_model_len=512, cpu_cache_gib=0.5))


def by_transformers(engine, prompt, opening, text):
    """The probability of text and of a token that begins with a brace after it, by a plain forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TOY_BASE).float()
    prompt, opening, own = engine.encode([prompt, opening, text])
    before = prompt + opening
    with torch.no_grad():
        logps = model(torch.tensor([before + own])).logits[0].log_softmax(-1)
    found = sum(float(logps[len(before) + i - 1, token]) for i, token in enumerate(own))
    vocabulary = {
        i for token, i in engine.tokenizer.get_vocab().items() if engine.tokenizer.decode([i]).startswith("}")
    }
    return exp(found) * float(logps[-1, sorted(vocabulary)].exp().sum())


def test_probabilities_are_those_of_a_plain_forward_pass(engine):
    texts = [("8", 0), ("8", 1), ("8", 2), ("22", 2), ("24", 0), ("123", 1)]
    requests = [Request(prefix(j), 1, 0, GREEDY, scored=text, opening=OPENING) for text, j in texts]
    mixed = [requests[0], Request(prefix(1), 3, 5, Decoding(max_tokens=4)), *requests[1:]]  # beside sampled ones
    found = engine.generate(mixed)
    assert len(found[1]) == 3
    scored = [found[0], *found[2:]]
    for (text, j), (completion,) in zip(texts, scored, strict=True):
        assert completion.finish_reason == "scored" and completion.text == text
        assert probability(completion) == pytest.approx(
            by_transformers(engine, str(prefix(j)), OPENING, text), rel=1e-4
        )
    again = engine.generate(requests[::-1])[::-1]  # all of it is in the prefix cache now
    assert [probability(c) for (c,) in again] == pytest.approx([probability(c) for (c,) in scored], rel=1e-5)


def test_the_prefix_cache_is_read(engine):
    """By default vLLM does not read it for requests with log-probabilities of the prompt."""
    chat = CHAT + "".join(f"Try {i} + 3 = {i + 3}.\n\n" for i in range(40))
    read = []
    for text in ("8", "9"):
        ids = engine.encode([chat + OPENING + text])[0]
        engine.llm.llm_engine.add_request("r", {"prompt_token_ids": ids}, reading())
        outputs = []
        while not outputs or not outputs[-1].finished:
            outputs += engine.llm.llm_engine.step()
        read.append(len(ids) - (outputs[-1].num_cached_tokens or 0))
    assert read[1] < 64 < read[0]


def test_texts_are_scored_wherever_a_block_of_the_cache_ends(engine):
    """The same prompts once more, with another text, too: scored tokens are never taken from the cache."""
    ends = [Request(CHAT + "5 " * i, 1, 0, GREEDY, scored=text, opening=OPENING) for i in range(32) for text in "89"]
    first, again = engine.generate(ends), engine.generate(ends)
    assert [probability(c) for (c,) in again] == pytest.approx([probability(c) for (c,) in first], rel=1e-4)
    prompt = str(ends[0].prompt)
    assert probability(first[0][0]) == pytest.approx(by_transformers(engine, prompt, OPENING, "8"), rel=1e-4)


def test_a_prompt_that_leaves_no_room_is_no_error(engine):
    long = Request(CHAT + "Try 5 + 3 = 8.\n\n" * 200, 1, 0, GREEDY, scored="8")
    ((completion,),) = engine.generate([long])
    assert completion.finish_reason == "length" and probability(completion) == 0


def test_J_is_the_share_of_right_answers_among_those_with_this_opening(engine):
    """Where the first episode found the answer, where the second lost it, and after a closed thought."""
    places = [prefix(0), prefix(1), prefix(2), prefix(2, closed=True)]
    openings = [stage().opening(place) for place in places]
    assert openings[:3] == [OPENING] * 3 and openings[3] == OpenEnded().template.header + OPENING
    read = [Request(p, 1, 0, GREEDY, scored="8", opening=o) for p, o in zip(places, openings, strict=True)]
    answers = [Request(p, 400, 9, Decoding(temperature=1.0, max_tokens=24)) for p in places]
    drawn = engine.generate([*read, *answers])
    for (scored,), sampled, opening in zip(drawn[:4], drawn[4:], openings, strict=True):
        own = [c.text for c in sampled if c.text.startswith(opening)]
        share = sum(text.startswith(opening + "8}") for text in own) / len(own)
        assert len(own) > 300 and probability(scored) == pytest.approx(share, abs=3 * (0.25 / len(own)) ** 0.5)


@pytest.fixture(scope="module")
def braces():
    """A tokenizer with a token for `{` and the first character after it, and one for two braces, like those in use."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    merges = [("{", "\\"), ("{", "x"), ("}", "}")]
    vocabulary = {token: i for i, token in enumerate([*"box{}\\^12 ", *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_answers_are_scored_as_the_model_writes_them(braces):
    def tokens(text):
        before, own, end = as_written(braces, "box{", text)
        return "|".join(braces.convert_ids_to_tokens(before)), "|".join(braces.convert_ids_to_tokens(own)), end

    assert tokens("12") == ("b|o|x|{", "1|2", "}")
    assert tokens("\\{1\\}") == ("b|o|x", "{\\|{|1|\\", "}}")
    assert tokens("x^{2}") == ("b|o|x", "{x|^|{|2", "}}")


@given(st.text("box{}\\^12 ", min_size=1, max_size=12))
def test_what_is_scored_is_the_whole_text(braces, text):
    before, own, end = as_written(braces, "box{", text)
    assert braces.decode([*before, *own]) + end == "box{" + text + "}"
    assert "box{".startswith(braces.decode(before))


def test_an_end_may_close_the_answer_and_the_box(braces):
    from math import log
    from types import SimpleNamespace

    scored = as_written(braces, "box{", "x^{2}")
    logprob = {token: SimpleNamespace(logprob=log(p)) for token, p in (("}}", 0.5), ("}", 0.25))}
    following = {braces.convert_tokens_to_ids(token): value for token, value in logprob.items()}
    places = [{i: SimpleNamespace(logprob=log(0.5))} for i in scored.target]
    output = SimpleNamespace(prompt_logprobs=[None, *places], outputs=[SimpleNamespace(logprobs=[following])])
    assert exp(log_probability(braces, output, scored)) == pytest.approx(0.5**5)


@pytest.mark.parametrize(
    ("cached", "rows", "right"),
    [
        (0, 32, True),  # each token of the prompt has a row
        (16, 32, True),  # of model runner V1, which has rows of cached tokens too
        (16, 16, True),  # of V2
        (30, 2, False),  # scored tokens were in the cache
        (16, 24, False),  # of a request that was interrupted in its prompt
        (0, 40, False),
    ],
)
def test_rows_that_do_not_end_with_what_is_scored_are_not_read(cached, rows, right):
    from types import SimpleNamespace

    read = {"num_cached_tokens": cached, "prompt_token_ids": [1] * 32, "prompt_logprobs": [None] * rows}
    assert readable(SimpleNamespace(**read), [1] * 3) == right


def prover(rows):
    """Forced answers (prefix, text, tokens, finish_reason, mean_logprob) of one trace, and their grades."""
    table = [
        ("p", 0, j, i, text, n, 9, 10 * j, 20 + 10 * j, why, logp) for i, (j, text, n, why, logp) in enumerate(rows)
    ]
    grades = [("p", 0, j, i, text, True, text == "\\boxed{8}", 0) for i, (j, text, *_) in enumerate(rows)]
    return (
        pl.DataFrame(table, schema=PROVER.columns, orient="row"),
        pl.DataFrame(grades, schema=ANSWER_GRADES.columns, orient="row"),
    )


def test_J_is_the_probability_and_sampled_answers_beside_it_do_not_count():
    from math import log

    half, wrong = log(0.5) / 2, log(0.9) / 2
    rows = [(0, "\\boxed{8}", 2, "scored", log(0.25) / 2), (1, "\\boxed{8}", 2, "scored", half)]
    rows += [(1, "they add up to \\boxed{9}.", 7, "stop", None), (1, "\\boxed{9}", 2, "scored", wrong)]
    table = progress_table(*prover(rows))
    assert table["J"].to_list() == pytest.approx([0.25, 0.5]) and table["progress"][1] == pytest.approx(0.25)
    assert table["tokens"].to_list() == [20 - 9 + 2, 30 - 9 + 2]
    sampled = progress_table(*prover([(0, "\\boxed{8}", 2, "stop", None), (0, "\\boxed{9}", 2, "length", None)]))
    assert sampled["J"].to_list() == [0.5]


def test_answers_are_sampled_where_the_filter_keeps_and_nowhere_else():
    rule = Thresholds(minimum_J=0.6, minimum_progress=0.1)
    kept = stage(filters=[rule]).kept
    assert kept(np.array([0.2, 0.5, 0.7, 0.7])) == [2]  # the shortest of the best
    assert kept(np.array([0.2, 0.5])) == kept(np.array([0.65, 0.7])) == kept(np.array([0.9])) == []
    both = stage(filters=[rule, rule.model_copy(update={"tolerance": 0.05})]).kept
    assert both(np.array([0.2, 0.66, 0.68, 0.7])) == [1, 3] and both(np.array([0.2, 0.5, 0.7])) == [2]


def test_the_key_of_a_scored_text_has_no_seed(engine, tmp_path):
    """Nothing is sampled, so that another seed uses the same cache."""
    cache = CompletionCache(tmp_path, engine)
    one, two = (Request("a", 1, seed, Decoding(), scored="8", opening=OPENING) for seed in (1, 2))
    assert cache.keys(one) == cache.keys(two) != cache.keys(replace(one, scored="9"))
    assert cache.keys(replace(one, scored="")) != cache.keys(replace(two, scored=""))


def test_shards_write_what_one_job_writes(tmp_path):
    """The whole stage, with answers at kept prefixes: in one job, and as two shards and their gathering."""
    from mrt.core.artifacts import EPISODES as E
    from mrt.core.artifacts import PROBLEMS, ROLLOUTS
    from mrt.episodes.thinking import THINK

    names = [f"p{i}" for i in range(3)]
    problems = {"id": names, "problem": ["x"] * 3, "answer": ["8", "9", "1234"]}
    table = pl.DataFrame(problems).with_columns(
        *(pl.lit(None, dtype).alias(c) for c, dtype in PROBLEMS.columns.items() if c not in problems)
    )
    PROBLEMS.write(table.select(list(PROBLEMS.columns)).cast(PROBLEMS.columns), tmp_path / "problems.parquet")
    rollouts = [(n, 0, CHAT, "".join(EPISODES), 30, 17, "length", None, True, THINK.cell()) for n in names]
    ROLLOUTS.write(pl.DataFrame(rollouts, schema=ROLLOUTS.columns, orient="row"), tmp_path / "rollouts.parquet")
    episodes = [(n, 0, i, text, False) for n in names for i, text in enumerate(EPISODES)]
    E.write(pl.DataFrame(episodes, schema=E.columns, orient="row"), tmp_path / "episodes.parquet")

    def run(out, cache):
        stage(
            problems=tmp_path / "problems.parquet",
            rollouts=tmp_path / "rollouts.parquet",
            episodes=tmp_path / "episodes.parquet",
            out=tmp_path / out,
            cache=cache,
            engine={"max_model_len": 512, "cpu_cache_gib": 0.5},
            prover={"estimate": "likelihood", "opening": OPENING, "decoding": {"temperature": 1.0, "max_tokens": 24}},
            filters=[Thresholds()],
        ).cli_cmd()
        return tmp_path / out

    one = PROVER.read(run("one.parquet", CacheSettings(folder=tmp_path / "a")))
    for shard in ("0/2", "1/2"):
        run("none.parquet", CacheSettings(folder=tmp_path / "b", shard=shard))
    gathered = PROVER.read(run("two.parquet", CacheSettings(folder=tmp_path / "b", gather=2)))
    assert not (tmp_path / "none.parquet").exists()
    assert gathered.drop("mean_logprob").equals(one.drop("mean_logprob"))
    assert (gathered["mean_logprob"] - one["mean_logprob"]).abs().max() < 1e-4
    scored = one.filter(finish_reason="scored")
    assert (
        scored.group_by("problem_id", "prefix").len().sort("problem_id", "prefix")["len"].to_list() == [1] * 6 + [3] * 3
    )
    sampled = one.filter(pl.col("finish_reason") != "scored")
    assert sampled.filter(problem_id="p0")["prefix"].to_list() == [1] * 4  # 8 is found in the first episode


def test_a_box_is_put_around_what_was_scored():
    assert boxed(Completion("8", 2, "scored", -1.0)).text == "\\boxed{8}"
    assert boxed(Completion("so \\boxed{8}", 4, "stop", None)).text == "so \\boxed{8}"


def test_J_is_the_sum_over_spellings_at_most_1_and_0_without_room():
    from math import log

    rows = [(0, "", 0, "length", None)]
    rows += [(j, "\\boxed{8}", 1, "scored", log(p)) for j, both in ((1, (0.3, 0.4)), (2, (0.8, 0.9))) for p in both]
    assert progress_table(*prover(rows))["J"].to_list() == pytest.approx([0.0, 0.7, 1.0])


def test_a_prefix_is_kept_by_the_probability_of_all_spellings(toy_problems, monkeypatch):
    from math import log

    from mrt.sampling.likelihood import EXAMPLES
    from mrt.sampling.prover import Place, prefixes

    pl.read_parquet(toy_problems).with_columns(answer=pl.lit("1234")).write_parquet(toy_problems)

    def draw(self, requests, then, **_):
        waiting, found = list(requests), []
        for number, request in enumerate(waiting):
            one = Completion(request.scored, 1, "scored", log(0.3 if "§" in str(request.prompt) else 0.01))
            found.append([one] if request.scored else [Completion("y", 1, "stop", None)] * request.n)
            waiting += then(number, found[-1])
        return found

    monkeypatch.setattr(Score, "draw", draw)
    scored = prefixes("", ["§\n\n"], True, OpenEnded())
    places = [Place("t00", 0, 0, at, Request(at, 1, 0, GREEDY)) for at in scored]
    found = stage(problems=toy_problems, filters=[Thresholds(minimum_J=0.6)]).score(places, CacheSettings())
    assert [len(drawn) for drawn in found] == [3, 3 + EXAMPLES]


def test_vllm_makes_no_object_for_each_token_of_a_scored_prompt():
    assert reading(cached=True).flat_logprobs and reading(cached=False).skip_reading_prefix_cache
