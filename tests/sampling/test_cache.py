"""Completions kept by content: only new ones are sampled, after kills, added requests, and in shards."""

from dataclasses import replace

import polars as pl
import pytest
from conftest import TOY_BASE
from hypothesis import given
from hypothesis import strategies as st

from mrt.core.fingerprint import reached
from mrt.sampling.cache import CacheSettings, CompletionCache, draw, gaps
from mrt.sampling.engine import Completion, Decoding, Engine, EngineSettings, Request, seed_of

DECODING = Decoding(temperature=1.0, max_tokens=12)
QUESTION = "<|user|>Some of the numbers 3, {}, 9 add up to 12. What is the sum of the smallest and the largest of them?"
REQUESTS = [Request(QUESTION.format(n) + "<|assistant|><think>\n", 3, 1000 * n, DECODING) for n in (5, 6, 7, 8)]


@pytest.fixture(scope="module")
def engine():
    return Engine(TOY_BASE, EngineSettings(max_model_len=256, cpu_cache_gib=0.1))


@pytest.fixture(scope="module")
def plain(engine):
    return engine.generate(REQUESTS)


def said(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if "completions cached" in line]


def test_what_is_kept_is_not_drawn_again(engine, plain, tmp_path, capsys):
    keep = CacheSettings(folder=tmp_path)
    assert draw(engine, REQUESTS, keep) == plain
    asleep = Engine(TOY_BASE, EngineSettings(max_model_len=256, cpu_cache_gib=0.1))
    assert draw(asleep, REQUESTS, keep) == plain
    assert "llm" not in vars(asleep)  # vLLM did not start
    assert said(capsys) == ["0 completions cached, 12 to sample", "12 completions cached, 0 to sample"]


def test_more_samples_and_more_problems_are_additions(engine, plain, tmp_path, capsys):
    keep = CacheSettings(folder=tmp_path)
    fewer = [replace(r, n=2) for r in REQUESTS[:3]]
    assert draw(engine, fewer, keep) == [drawn[:2] for drawn in plain[:3]]
    assert draw(engine, REQUESTS, keep) == plain
    assert said(capsys)[1] == "6 completions cached, 6 to sample"


@pytest.mark.parametrize("shards", [2, 3])
def test_the_number_of_shards_changes_nothing(engine, plain, tmp_path, capsys, shards):
    for shard in range(shards):
        assert draw(engine, REQUESTS, CacheSettings(folder=tmp_path, shard=f"{shard}/{shards}")) is None
    assert draw(engine, REQUESTS, CacheSettings(folder=tmp_path)) == plain
    assert said(capsys)[-1] == "12 completions cached, 0 to sample"


def test_other_settings_or_another_piece_of_code_are_not_mistaken(engine, tmp_path, monkeypatch):
    kept = CompletionCache(tmp_path, engine)
    warmer = replace(REQUESTS[0], decoding=Decoding(temperature=0.9, max_tokens=12))
    assert not set(kept.keys(REQUESTS[0])) & set(kept.keys(warmer))
    monkeypatch.setattr("mrt.sampling.cache.fingerprint", lambda *_, **__: "another")
    assert kept.keys(REQUESTS[0]) != CompletionCache(tmp_path, engine).keys(REQUESTS[0])


def test_a_piece_that_cannot_be_read_is_drawn_again(engine, plain, tmp_path, capsys):
    keep = CacheSettings(folder=tmp_path)
    draw(engine, REQUESTS, keep)
    (piece,) = tmp_path.glob("*.parquet")
    piece.write_bytes(piece.read_bytes()[:200])
    assert draw(engine, REQUESTS, keep) == plain
    assert "cannot be read; its completions are sampled again" in capsys.readouterr().out


def test_a_passing_error_of_the_disk_removes_nothing(engine, tmp_path, monkeypatch):
    kept = CompletionCache(tmp_path, engine)
    kept.add([("a", Completion("text", 1, "stop", None))])

    def fail(_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("mrt.sampling.cache.pl.read_parquet", fail)
    with pytest.raises(OSError, match="Too many open files"):
        CompletionCache(tmp_path, engine).read()
    assert list(tmp_path.glob("*.parquet"))


def test_a_change_of_how_settings_are_read_voids_no_completion():
    """The values of all settings that decide are in the keys; new defaults or checks of settings are not."""
    code = reached("mrt.sampling.engine:Engine").definitions
    assert "mrt.sampling.scoring.Scored" in code and "mrt.sampling.engine.engine_options" in code
    assert not {
        "mrt.core.settings.Settings",
        "mrt.sampling.engine.EngineSettings",
        "mrt.sampling.engine.Decoding",
    } & set(code)


def test_what_was_finished_before_an_interruption_is_kept(engine, plain, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("mrt.sampling.cache.SECONDS_A_PIECE", 0.0)
    real = engine.stream

    def interrupted(waiting):
        for count, item in enumerate(real(waiting)):
            if count == 2:
                raise KeyboardInterrupt
            yield item

    monkeypatch.setattr(engine, "stream", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw(engine, REQUESTS, CacheSettings(folder=tmp_path))
    monkeypatch.undo()
    for request in list(engine.llm.llm_engine.output_processor.request_states):
        engine.llm.llm_engine.abort_request([request])
    assert draw(engine, REQUESTS, CacheSettings(folder=tmp_path)) == plain
    assert said(capsys)[-1] == "6 completions cached, 6 to sample"


def chain():
    """Names of requests by number, and what `draw` may be given to go two steps on from each completion of them."""
    names = [(i,) for i in range(len(REQUESTS))]

    def then(number, completions):
        name = names[number]
        for i, completion in enumerate(completions if len(name) < 3 else []):
            names.append((*name, i))
            yield Request(QUESTION.format(name[0]) + completion.text, 2, seed_of(*name, i), DECODING, priority=-1)

    return names, then


def by_root(names, drawn):
    return sorted((name, tuple(c.text for c in completions)) for name, completions in zip(names, drawn, strict=True))


def test_what_follows_from_a_completion_is_drawn_in_the_same_go_and_kept(engine, plain, tmp_path, capsys):
    names, then = chain()
    drawn = draw(engine, REQUESTS, CacheSettings(folder=tmp_path), then)
    assert drawn[:4] == plain and len(drawn) == 4 + 12 + 24
    asleep = Engine(TOY_BASE, EngineSettings(max_model_len=256, cpu_cache_gib=0.1))
    others, again = chain()
    assert len(draw(asleep, REQUESTS, CacheSettings(folder=tmp_path), again)) == 40
    assert "llm" not in vars(asleep) and sorted(others) == sorted(names)
    assert said(capsys)[-1] == "84 completions cached, 0 to sample"


def test_without_a_folder_and_in_shards_what_follows_is_the_same(engine, tmp_path):
    names, then = chain()
    alone = by_root(names, draw(engine, REQUESTS, CacheSettings(), then))
    for shard in range(2):
        assert draw(engine, REQUESTS, CacheSettings(folder=tmp_path, shard=f"{shard}/2"), chain()[1]) is None
    names, then = chain()
    assert by_root(names, draw(engine, REQUESTS, CacheSettings(folder=tmp_path), then)) == alone


@given(st.lists(st.booleans(), max_size=30))
def test_gaps_are_just_what_is_missing(present):
    covered = [i for first, count in gaps(present) for i in range(first, first + count)]
    assert covered == [i for i, here in enumerate(present) if not here]


@pytest.mark.parametrize("shard", ["1", "2/2", "a/b", "-1/2"])
def test_a_shard_that_is_none_is_refused(shard):
    with pytest.raises(ValueError, match="is not i/n"):
        CacheSettings(shard=shard)


def test_kept_pieces_are_tables(engine, tmp_path):
    draw(engine, REQUESTS[:1], CacheSettings(folder=tmp_path))
    (piece,) = tmp_path.glob("*.parquet")
    assert pl.read_parquet(piece).columns == ["key", "text", "tokens", "finish_reason", "mean_logprob"]


def test_what_gathers_draws_nothing_and_names_the_shards_that_sampled_too_little(engine, plain, tmp_path):
    for shard in (0, 2):
        draw(engine, REQUESTS, CacheSettings(folder=tmp_path, shard=f"{shard}/3"))
    asleep = Engine(TOY_BASE, EngineSettings(max_model_len=256, cpu_cache_gib=0.1))
    with pytest.raises(ValueError, match=r"shard 1 of 3 lacks at least 3 completions;.*--forcerun"):
        draw(asleep, REQUESTS, CacheSettings(folder=tmp_path, gather=3))
    draw(engine, REQUESTS, CacheSettings(folder=tmp_path, shard="1/3"))
    assert draw(asleep, REQUESTS, CacheSettings(folder=tmp_path, gather=3)) == plain
    assert "llm" not in vars(asleep)  # vLLM did not start


def test_what_gathers_finds_lacking_what_follows(engine, tmp_path):
    asleep = Engine(TOY_BASE, EngineSettings(max_model_len=256, cpu_cache_gib=0.1))
    draw(engine, REQUESTS, CacheSettings(folder=tmp_path, shard="0/2"), chain()[1])
    draw(engine, REQUESTS[:2], CacheSettings(folder=tmp_path, shard="1/2"))
    draw(engine, REQUESTS[3:], CacheSettings(folder=tmp_path), then=None)
    with pytest.raises(ValueError, match="shard 1 of 2 lacks at least 12 completions;"):  # 2 of each of 6
        draw(asleep, REQUESTS, CacheSettings(folder=tmp_path, gather=2), chain()[1])
    with pytest.raises(ValueError, match="need --cache"):
        draw(asleep, REQUESTS, CacheSettings(gather=2))
