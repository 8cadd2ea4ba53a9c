"""A way to cut as a function of a user's file: used by the stage, checked; errors name file and line."""

import os
import subprocess
import sys

import polars as pl
import pytest
from conftest import ROOT

from mrt.core.artifacts import EPISODES, ROLLOUTS
from mrt.episodes.cut import CutRollouts
from mrt.episodes.parameterization import OpenEnded, Segmentation
from mrt.episodes.segmentation import splitter

CUT = "def words(thought):\n    return [word + ' ' for word in thought.split(' ')[:-1]] + thought.split(' ')[-1:]\n"


@pytest.fixture
def words_of(tmp_path, monkeypatch):
    """Parameterizations that cut by the function of a file with this content."""
    monkeypatch.chdir(tmp_path)

    def parameterization(content=CUT, name="words"):
        (tmp_path / "my_cut.py").write_text(content)
        return OpenEnded(segmentation=Segmentation(by=f"my_cut.py:{name}"))

    return parameterization


def test_a_stage_cuts_as_the_file_says(words_of, tmp_path):
    rows = {"problem_id": ["a", "b"], "sample": [0, 0], "text": ["<think>one two three</think>4", "no thought"]}
    rows |= {"inside": [False, False], "finish_reason": ["stop", "stop"], "prompt": ["?", "?"]}
    table = pl.DataFrame(rows)
    missing = [pl.lit(None, dtype=kind).alias(n) for n, kind in ROLLOUTS.columns.items() if n not in table.columns]
    ROLLOUTS.write(
        table.with_columns(missing).select(list(ROLLOUTS.columns)).sort(ROLLOUTS.keys), tmp_path / "rollouts.parquet"
    )
    stage = CutRollouts(
        rollouts=tmp_path / "rollouts.parquet", out=tmp_path / "episodes.parquet", parameterization=words_of()
    )
    assert stage.plugins() == ("my_cut.py:words",)
    stage.cli_cmd()
    episodes = EPISODES.read(stage.out).sort("problem_id", "episode")
    assert episodes["text"].to_list() == ["<think>one ", "two ", "three", ""]


def test_an_edit_of_the_file_changes_the_fingerprint_of_what_cuts(words_of):
    def cutting(content):
        words_of(content)
        printed = (
            "from mrt.core.fingerprint import fingerprint; print(fingerprint('mrt.episodes.cut', 'my_cut.py:words'))"
        )
        command = [sys.executable, "-c", printed]  # a new process, as fingerprints are cached
        return subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True
        ).stdout

    before = cutting(CUT)
    assert cutting(f'"""Words."""\n{CUT}') == before != cutting(CUT.replace("' '", "', '"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def words(thought):\n    return thought.split()\n", "my_cut.py:words: .*'a b', .*does not give the thought"),
        ("def words(thought):\n    return [thought, '']\n", "my_cut.py:words: .*has an empty one"),
        ("def words(thought):\n    return [thought, 3]\n", "TypeError"),
        ("def words(thought):\n    return 1 / 0\n", r"my_cut.py, line 2: ZeroDivisionError"),
    ],
)
def test_what_is_not_lossless_is_refused(words_of, content, message):
    split = splitter(words_of(content))
    with pytest.raises(ValueError, match=message):
        split("a b")


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("import nothing_here\n", "words", r"my_cut.py, line 1: ModuleNotFoundError"),
        (CUT, "other", "my_cut.py: it defines no way to cut 'other'; there are words"),
        ("words = 3\n", "words", "words is no way to cut"),
    ],
)
def test_a_wrong_file_is_told_before_it_cuts(words_of, content, name, message):
    with pytest.raises(ValueError, match=message):
        splitter(words_of(content, name))


def test_what_cuts_by_itself_takes_no_settings_of_ours(words_of):
    with pytest.raises(ValueError, match=r"min_steps: my_cut\.py:words cuts by itself"):
        Segmentation(by="my_cut.py:words", min_steps=2)
    with pytest.raises(ValueError, match="no way to cut of this package"):
        words_of().cut("<think>a</think>", inside=False)
    assert splitter(OpenEnded()) is None
