import re

import polars as pl
import pytest

from mrt.core import storage
from mrt.core.artifacts import RULES
from mrt.core.show import Show
from mrt.core.storage import atomic_folder, link_folder, read_provenance, read_table, write_table


def test_a_table_comes_back(tmp_path):
    table = pl.DataFrame({"a": [1, 2], "b": ["x", None]})
    write_table(table, tmp_path / "deep" / "t.parquet")
    assert read_table(tmp_path / "deep" / "t.parquet").equals(table)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["t.parquet"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not a table at all"])
def test_a_foreign_or_truncated_file_is_named(tmp_path, content):
    path = tmp_path / "t.parquet"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"t\.parquet.*remake"):
        read_table(path)


def test_a_missing_column_and_a_missing_file_are_named(tmp_path):
    write_table(pl.DataFrame({"a": [1]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="no column b; found a"):
        read_table(tmp_path / "t.parquet", ["a", "b"])
    with pytest.raises(FileNotFoundError, match=r"u\.parquet"):
        read_table(tmp_path / "u.parquet")


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "f") as folder:
        (folder / "half").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    for content in ("old", "new"):
        with atomic_folder(tmp_path / "f") as folder:
            (folder / "x").write_text(content)
    assert (tmp_path / "f" / "x").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_keys_that_are_null_or_repeat_are_refused(tmp_path):
    for values in ([1, 1], [1, None]):
        with pytest.raises(ValueError, match="key that is null or repeats"):
            write_table(pl.DataFrame({"a": values}), tmp_path / "t.parquet", ["a"])
    assert list(tmp_path.iterdir()) == []


def test_a_column_of_another_type_is_named(tmp_path):
    write_table(pl.DataFrame({"a": ["1"]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="column a is String, not Int64"):
        read_table(tmp_path / "t.parquet", {"a": pl.Int64})


def test_an_artifact_is_only_what_it_says(tmp_path):
    with pytest.raises(ValueError, match=r"columns .* belong"):
        RULES.write(pl.DataFrame({"rule": ["x"], "kept": [1]}), tmp_path / "r.parquet")


def test_a_table_says_what_made_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(storage, "provenance", {"stage": "mrt.episodes.cut", "code": "abc"})
    write_table(pl.DataFrame({"a": [7]}), tmp_path / "t.parquet")
    assert read_provenance(tmp_path / "t.parquet") == {"stage": "mrt.episodes.cut", "code": "abc"}
    Show(file=tmp_path / "t.parquet").cli_cmd()
    shown = capsys.readouterr().out
    assert '"stage": "mrt.episodes.cut"' in shown and "1 rows" in shown
    assert shown.index("7") < shown.index("Made by"), "rows are shown first"


@pytest.mark.parametrize("graded", [True, False])
def test_a_completion_is_shown_with_its_problem_and_its_verdict_first(tmp_path, capsys, graded):
    folder = tmp_path / "rollouts" / "base"
    rows = {
        "problem_id": ["b", "a"],
        "sample": [0, 0],
        "prompt": ["Q"] * 2,
        "text": ["Try 1." + "x" * 5000 + "end", "2"],
    }
    write_table(pl.DataFrame(rows), folder / "test.parquet")
    if graded:
        problems = pl.DataFrame({"id": ["a", "b"], "problem": ["Two?", "One?"], "answer": ["2", "1"]})
        write_table(problems, tmp_path / "problems" / "test.parquet")
        verdicts = {"problem_id": ["a", "b"], "sample": [0, 0], "answer": ["2", "7"], "parsed": [True] * 2}
        grades = pl.DataFrame(verdicts | {"correct": [True, False], "cluster": [0, 1]})
        write_table(grades, tmp_path / "grades" / "base" / "test.rollouts.parquet")
    Show(file=folder / "test.parquet").cli_cmd()
    shown = capsys.readouterr().out.split("\n\n")[1:]
    first = re.sub("x+", "x", shown[0].partition("\nproblem_id: b")[0])
    text = "text: Try 1.x [... 4,209 characters ...] xend"
    assert first == (f"problem: One?\n{text}\nanswer: 7\ngold: 1\ncorrect: False" if graded else text)
    assert shown[1].startswith("problem: Two?" if graded else "text: 2") and "x" * 500 not in shown[0]
    assert "does not say what made it" in shown[2]


def test_a_model_folder_is_shown_with_its_training(tmp_path, capsys):
    folder = tmp_path / "mrt_1"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"is a folder, of no model: name a table"):
        Show(file=folder).cli_cmd()
    (folder / "config.json").write_text('{"model_type": "qwen2", "hidden_size": 96}')
    (folder / "model.safetensors").write_bytes(b"x" * 1234)
    write_table(pl.DataFrame({"step": [1, 2], "loss": [0.5, 0.25]}), tmp_path / "mrt_1.log.parquet")
    Show(file=folder, rows=1).cli_cmd()
    shown = capsys.readouterr().out
    assert "model.safetensors: 1,234 bytes" in shown and "model_type: qwen2, hidden_size: 96" in shown
    assert "0.25" in shown and "0.5 " not in shown


def test_linked_folders_take_no_space(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    link_folder(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "x").stat().st_ino == (tmp_path / "a" / "x").stat().st_ino
