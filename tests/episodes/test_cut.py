import json
import re
import time

import polars as pl
import pytest
from conftest import SHARED, needs_shared
from hypothesis import given
from hypothesis import strategies as st

from mrt.episodes.cut import CutRollouts
from mrt.episodes.parameterization import MARKERS, OpenEnded, split_episodes
from mrt.episodes.thinking import THINK, take_apart

pieces = st.sampled_from([*MARKERS, "\n", "\n\n", "\n\n\n", " ", "so x = 2", "Wai", "wait", "é\r\n"])
thoughts = st.one_of(st.text(), st.lists(pieces, max_size=60).map("".join))


@given(thoughts, st.integers(1, 5), st.one_of(st.none(), st.integers(0, 4)), st.sampled_from(["markers", "steps"]))
def test_splitting_is_lossless_for_any_text_and_any_limits(thought, min_steps, max_episodes, by):
    parts = split_episodes(thought, min_steps=min_steps, max_episodes=max_episodes, by=by)
    assert "".join(parts) == thought
    assert all(parts)
    if max_episodes is not None:
        assert len(parts) <= max_episodes + 1
    for part in parts[1:]:
        assert part.lstrip().startswith(MARKERS) if by == "markers" else part.strip()
    for part in parts[:-1]:
        assert len(re.split(r"\n\s*\n", part.strip())) >= min_steps


def test_steps_without_markers():
    thought = "a\n\n\n\nb\n\nc"
    assert split_episodes(thought, min_steps=1, by="steps") == ["a\n\n\n\n", "b\n\n", "c"]
    assert split_episodes(thought, min_steps=2, by="steps") == ["a\n\n\n\nb\n\n", "c"]
    assert split_episodes(thought, min_steps=1) == [thought]


def steps(*texts):
    return "\n\n".join(texts)


def test_a_marker_opens_an_episode_after_three_steps():
    first, second = steps("a", "b", "c"), steps("Wait, no", "d", "e")
    assert split_episodes(first + "\n\n" + second) == [first + "\n\n", second]


def test_a_marker_after_two_steps_opens_none():
    thought = steps("a", "b", "Wait", "c", "Alternatively")
    assert split_episodes(thought) == [steps("a", "b", "Wait", "c") + "\n\n", "Alternatively"]


def test_a_marker_is_a_whole_word():
    thought = steps("One", "two", "three", "Waiting time is 5", "Wait, no", "so")
    assert [part[:8] for part in split_episodes(thought)] == ["One\n\ntwo", "Wait, no"]
    assert len(split_episodes(steps("一", "二", "三", "等等这个"), markers=["等等"])) == 2


@pytest.mark.parametrize("by", ["markers", "steps"])
def test_a_tag_in_a_paragraph_of_its_own_is_no_step(by):
    """The model's own tag cuts as that of its prompt does."""
    thought = steps("Okay", "x = 1", "Wait, y", "z", "Wait, no", "so", "Wait")
    words = OpenEnded(segmentation={"by": by, "min_steps": 2})
    first, *rest = words.cut(thought, inside=True).episodes
    assert words.cut("<think>\n\n" + thought, inside=False).episodes == ["<think>\n\n" + first, *rest] and len(rest) > 1
    assert words.cut("<think>\n\n", inside=False).episodes == ["<think>\n\n"]


def test_a_marker_inside_a_step_opens_none():
    thought = steps("a", "b", "c", "so. Wait, no", "d")
    assert split_episodes(thought) == [thought]


@pytest.mark.parametrize("marker", MARKERS)
def test_each_marker_of_figure_21_opens_an_episode(marker):
    assert len(split_episodes(steps("a", "b", "c", f"{marker} x"))) == 2


def test_what_follows_the_last_cut_is_one_episode():
    thought = steps(*["Wait"] * 12)
    assert len(split_episodes(thought)) == 4
    assert split_episodes(thought, max_episodes=1) == [steps(*["Wait"] * 3) + "\n\n", steps(*["Wait"] * 9)]
    assert split_episodes(thought, max_episodes=0) == [thought]


@pytest.mark.parametrize("blank", ["\n\n", "\r\n\r\n", "\n \n", "\n\t \r\n", "\n\n\n", "\r\n\n"])
def test_blank_lines_of_any_kind_separate_steps(blank):
    thought = blank.join(["One.", "Two.", "Three.", "Wait, no.", "Five.", "Six.", "  Alternatively, seven."])
    parts = split_episodes(thought)
    assert [len(re.findall(r"\w[.]", part)) for part in parts] == [3, 3, 1] and "".join(parts) == thought


def test_no_thought_has_no_episodes():
    assert split_episodes("") == []


def test_limits_out_of_range_are_refused():
    with pytest.raises(ValueError, match="min_steps"):
        split_episodes("a", min_steps=0)


def test_a_long_thought_splits_in_milliseconds():
    thought = steps(*["Wait, let me compute this again and again and again"] * 10_000)  # about 120,000 tokens
    started = time.perf_counter()
    assert len(split_episodes(thought)) == 3334
    assert time.perf_counter() - started < 0.2


def test_the_stage_keeps_thoughts_byte_for_byte(tmp_path):
    texts = [steps("a", "b", "c", "Wait", "d") + "\n</think>\n\nx", "cut off", "</think>none"]
    rollouts = pl.DataFrame({"problem_id": ["p"] * 3, "sample": [0, 1, 2], "text": texts})
    rollouts = rollouts.with_columns(inside=pl.lit(True), thinking=pl.lit(THINK.cell()))
    rollouts.write_parquet(tmp_path / "r.parquet")
    CutRollouts(rollouts=tmp_path / "r.parquet", out=tmp_path / "e.parquet").cli_cmd()
    table = pl.read_parquet(tmp_path / "e.parquet")
    joined = table.group_by("sample", maintain_order=True).agg(pl.col("text").str.join(""), pl.col("closed").first())
    assert joined["text"].to_list() == [take_apart(t, inside=True).thought for t in texts]
    assert joined["closed"].to_list() == [True, False, True]


@needs_shared
def test_real_traces_split_losslessly():
    rows = [json.loads(line) for line in (SHARED / "traces" / "reasoning_traces.jsonl").open(encoding="utf-8")]
    assert len(rows) == 223
    counts = []
    for row in rows:
        thought = take_apart(row["text"]).thought
        parts = split_episodes(thought)
        assert "".join(parts) == thought
        counts.append(len(parts))
    print(f"episodes a trace: median {sorted(counts)[len(counts) // 2]}, most {max(counts)}")
    assert max(counts) > 20


def test_a_completion_is_cut_and_forced_as_the_settings_say():
    from mrt.episodes.parameterization import OpenEnded

    by_steps = OpenEnded(segmentation={"by": "steps", "min_steps": 1, "max_episodes": 2})
    assert by_steps.cut("a\n\nb\n\nc\n\nd</think>e") == (["a\n\n", "b\n\n", "c\n\nd"], True)
    assert by_steps.cut("<think>\na\n\nb") == (["<think>\na\n\n", "b"], False)  # mu reads the tag too
    other = OpenEnded(segmentation={"markers": ["Hmm"], "min_steps": 1}, template={"stop": "Stop.\n"})
    assert other.cut("Hmm\n\nb", "a\n\n") == (["a\n\n", "Hmm\n\nb"], False)
    assert other.force("a\n\n").startswith("a\n\nStop.\n</think>")
