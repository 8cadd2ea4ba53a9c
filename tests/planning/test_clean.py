"""`mrt clean` removes files that no configuration needs, and no others."""

import os
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from mrt.core.lock import held
from mrt.planning.clean import Clean, model_of


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A configuration, and results of its models, of one that is gone, and of a problem set that is gone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mrt").symlink_to(ROOT / "mrt")
    raw = yaml.safe_load((ROOT / "tests" / "tiny.yaml").read_text())
    raw["models"]["star_1.5b"] = raw["models"]["star_1"] | {"label": "With a point"}
    raw["results"] = "results/tiny"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    folder = tmp_path / "results" / "tiny"
    for model in ("star_1", "star_1.5b", "old.7b"):
        for path in (
            *(f"rollouts/{model}/toy_test.parquet", f"models/{model}/model.safetensors", f"models/{model}.log.parquet"),
            *(f"sets/{model}.rules.parquet", f"metrics/{model}/toy_test.maj.parquet", f"costs/{model}.parquet"),
            *(f".cache/rollouts/{model}/toy_test/a.parquet", f".sampling/rollouts/{model}/toy_test.json"),
        ):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(b"x" * 1000)
        for i, key in enumerate(("first", "second")):
            kept = folder / ".cache" / "models" / model / key
            (kept / "checkpoint").mkdir(parents=True)
            (kept / "checkpoint" / "model.safetensors").write_bytes(key.encode())
            os.utime(kept, (i, i))
    present = folder / ".cache" / "models" / "star_1" / "first" / "checkpoint" / "model.safetensors"
    (folder / "models" / "star_1" / "model.safetensors").unlink()
    os.link(present, folder / "models" / "star_1" / "model.safetensors")
    (folder / ".cache" / "rollouts" / "star_1" / "gone").mkdir()
    for name in ("star_1", "star_1.5b"):
        (folder / ".state" / name).mkdir(parents=True)
    (folder / "models" / "star_1.history.parquet").write_bytes(b"x")  # its training has finished
    return folder


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".lock"}


def test_what_no_configuration_needs_is_shown_then_removed(results, capsys):
    before = files(results)
    Clean().cli_cmd()
    shown = capsys.readouterr().out
    assert files(results) == before and "to remove them: --yes" in shown
    Clean(yes=True).cli_cmd()
    gone = before - files(results)
    assert {path for path in gone if "old.7b" not in path} == {
        *(f".cache/models/star_1/second{end}" for end in ("", "/checkpoint", "/checkpoint/model.safetensors")),
        *(f".cache/models/star_1.5b/first{end}" for end in ("", "/checkpoint", "/checkpoint/model.safetensors")),
        *(".cache/rollouts/star_1/gone", ".state/star_1"),
    }
    assert not [path for path in files(results) if "old.7b" in path]
    capsys.readouterr()
    Clean().cli_cmd()
    assert capsys.readouterr().out == "0 files and folders that no configuration needs, 0B\n"


def test_what_another_configuration_needs_stays(results, capsys):
    raw = yaml.safe_load(Path("config.yaml").read_text())
    raw["models"]["old.7b"] = raw["models"]["star_1"] | {"label": "Old"}
    (results / "other.yaml").write_text(yaml.safe_dump(raw))
    Clean(also=[results / "other.yaml"], yes=True).cli_cmd()
    assert (results / "rollouts" / "old.7b").is_dir() and (results / ".cache/models/old.7b/second").is_dir()


def test_what_a_job_holds_stays(results, capsys, monkeypatch):
    from mrt.core import lock

    with held(results / ".state" / "old.7b.lock"):
        monkeypatch.setattr(lock, "_held", set())  # as in another process
        Clean(yes=True).cli_cmd()
    assert "stays, as a job holds it" in capsys.readouterr().out
    assert (results / "models" / "old.7b").is_dir() and not (results / ".cache/models/star_1/second").exists()


def test_nothing_is_removed_while_snakemake_works_there(results):
    before = files(results)
    with held(results / ".running"), pytest.raises(ValueError, match="Snakemake works there"):
        Clean(yes=True).cli_cmd()
    assert before <= files(results)


def test_a_models_name_may_have_points():
    names = ("m_1.5b", "m_1.5b.parquet", "m_1.5b.rules.parquet", "m_1.5b.history.parquet", "m_1.5b.log.parquet")
    assert {model_of(Path(name)) for name in names} == {"m_1.5b"}
