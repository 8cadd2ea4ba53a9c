"""The page that tells what made the results."""

import polars as pl

from mrt.core import storage
from mrt.figures.provenance import Provenance


def test_each_artifact_says_what_made_it(tmp_path, monkeypatch):
    made = {"stage": "mrt.sampling.rollouts", "code": "abc", "weights": "def", "versions": {"vllm": "vllm 1.0"}}
    monkeypatch.setattr(storage, "provenance", made)
    storage.write_table(pl.DataFrame({"x": [1, 2]}), tmp_path / "a.parquet")
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "b.parquet")  # of somebody else
    files = {"rollouts": tmp_path / "a.parquet", "theirs": tmp_path / "b.parquet"}
    Provenance(files=files, config={"seed": 0, "prompt": {"instruction": "<b>{problem}"}}, out=tmp_path / "p").cli_cmd()
    rows = pl.read_parquet(tmp_path / "p.parquet").rows()
    assert rows == [
        ("rollouts", 2, "mrt.sampling.rollouts", "abc", "def", "vllm 1.0"),
        ("theirs", 1, None, None, None, None),
    ]
    page = (tmp_path / "p.html").read_text()
    assert "&lt;b&gt;{problem}" in page and "<b>{problem}" not in page
    assert "seed: 0" in (tmp_path / "p.md").read_text()
