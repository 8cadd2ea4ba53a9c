"""The page that tells what made the results."""

import re
import subprocess
from datetime import UTC, datetime

import polars as pl

from mrt.core import storage
from mrt.figures import provenance
from mrt.figures.provenance import Provenance


def test_each_artifact_says_what_made_it(tmp_path, monkeypatch):
    made = {"stage": "mrt.sampling.rollouts", "code": "abc", "weights": "def", "versions": {"vllm": "vllm 1.0"}}
    monkeypatch.setattr(storage, "provenance", made)
    storage.write_table(pl.DataFrame({"x": [1, 2]}), tmp_path / "a.parquet")
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "b.parquet")  # made elsewhere
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


def test_the_page_says_when_and_at_which_commit_it_was_written(tmp_path, monkeypatch):
    package = tmp_path / "checkout" / "mrt" / "figures"
    package.mkdir(parents=True)
    code = package / "provenance.py"
    code.touch()
    monkeypatch.setattr(provenance, "__file__", str(code))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    today = f"{datetime.now(UTC):%d %B %Y}"
    assert provenance.written() == f"This page was written on {today}, at code without a commit."
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "a"]):
        subprocess.run(["git", "-C", str(tmp_path / "checkout"), *command], check=True)
    commit = re.search("at commit ([0-9a-f]{7,}) of the code.$", provenance.written())[1]
    code.write_text("edited")
    assert provenance.written().endswith(f"at commit {commit} of the code, with changes that are not committed.")
    Provenance(files={}, config={}, out=tmp_path / "p").cli_cmd()
    assert f"at commit {commit}" in (tmp_path / "p.md").read_text()


def test_the_row_of_a_model_is_of_its_training():
    """Whose versions decide its weights, and not of the stage that tabulates its log."""
    import yaml
    from conftest import ROOT

    from mrt.config.load import load
    from mrt.core.fingerprint import versions
    from workflow.figures import Figures
    from workflow.paths import Paths

    config = load(yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text()))
    files = Figures(config, Paths(config)).provenance()
    rows = {name: path for name, path in files.items() if name.startswith("model ")}
    assert rows and all(path.endswith(".history.parquet") for path in rows.values())
    for stage in ("mrt.training.sft", "mrt.training.rl"):  # which write it
        assert {"torch", "transformers", "trl"} <= versions(stage).keys()
