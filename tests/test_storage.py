import polars as pl
import pytest

from mrt.storage import atomic_folder, read_table, write_table


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
