"""All that a model samples of one stage, with one engine: the tables are those of a job for each dataset."""

import json
import os

import polars as pl
import pytest
from conftest import ROOT, TOY_BASE

from mrt.core.artifacts import PROBLEMS
from mrt.sampling import engine as engines
from mrt.sampling.cache import CacheSettings
from mrt.sampling.engine import EngineSettings
from mrt.sampling.pool import STAGES, Pool
from mrt.sampling.rollouts import Sample

ENGINE = EngineSettings(max_model_len=512, cpu_cache_gib=0.1)


@pytest.fixture
def requests(toy_problems, tmp_path):
    """Requests of rollouts on two datasets of three problems each."""
    files = []
    for place, dataset in enumerate(("one", "two")):
        problems = tmp_path / f"{dataset}.parquet"
        PROBLEMS.write(pl.read_parquet(toy_problems)[3 * place : 3 * place + 3], problems)
        settings = {
            "model": str(TOY_BASE),
            "names": ["base", dataset],
            "samples": 2,
            "prompt": {"instruction": "{problem}"},
        }
        settings["decoding"] = {"temperature": 1.0, "max_tokens": 24}
        inputs = {"problems": str(problems), "out": str(tmp_path / "tables" / f"{dataset}.parquet")}
        request = {"stage": "mrt.sampling.rollouts", "settings": settings, "inputs": inputs}
        files.append(tmp_path / f"{dataset}.json")
        files[-1].write_text(json.dumps(request))
    return files


@pytest.fixture
def starts(monkeypatch):
    """The engines that have started vLLM."""
    started, llm = [], engines.Engine.llm.func
    started_here = lambda self: (started.append(self), llm(self))[1]  # noqa: E731
    monkeypatch.setattr(engines.Engine.llm, "func", started_here)
    return started


def gathered(file, folder=None):
    """The table of a request: from the completion cache, or sampled by a separate job."""
    request = json.loads(file.read_text())
    cache = {"folder": folder / request["settings"]["names"][1], "gather": 1} if folder else {}
    stage = Sample(settings=request["settings"], engine=ENGINE, cache=CacheSettings(**cache), **request["inputs"])
    stage.cli_cmd()
    return pl.read_parquet(request["inputs"]["out"])


def test_one_engine_samples_all_requests_as_a_job_for_each_would(requests, starts, tmp_path, capfd):
    pool = Pool(requests=requests, folder=tmp_path / "cache", out=tmp_path / "mark", engine=ENGINE)
    pool.cli_cmd()
    assert len(starts) == 1 and pool.out.exists() and not (tmp_path / "tables").exists()
    together = [gathered(file, tmp_path / "cache") for file in requests]
    assert len(starts) == 1
    assert [table.height for table in together] == [6, 6]
    assert all(table.equals(gathered(file)) for table, file in zip(together, requests, strict=True))
    (tmp_path / "tables" / "two.parquet").unlink()
    capfd.readouterr()
    pool.cli_cmd()
    assert "one: its table is made\ntwo:\n6 completions cached, 0 to sample" in capfd.readouterr().out
    assert len(starts) == 3  # of the two jobs alone


def test_a_request_that_is_newer_than_its_table_is_sampled(requests, starts, tmp_path):
    for file in requests:
        gathered(file)
    del starts[:]
    os.utime(requests[1], (2e9, 2e9))
    pool = Pool(requests=requests, folder=tmp_path / "cache", out=tmp_path / "mark", engine=ENGINE)
    pool.cli_cmd()
    assert len(starts) == 1 and not (tmp_path / "cache" / "one").exists() and (tmp_path / "cache" / "two").exists()


def test_requests_of_several_models_are_refused(requests, tmp_path):
    other = json.loads(requests[1].read_text())
    other["settings"]["revision"] = "another"
    requests[1].write_text(json.dumps(other))
    pool = Pool(requests=requests, folder=tmp_path, out=tmp_path / "mark", engine=ENGINE)
    with pytest.raises(ValueError, match="the requests are of several models"):
        pool.cli_cmd()


def test_every_stage_that_samples_is_one_of_the_pools():
    folder = ROOT / "mrt" / "sampling"
    stages = {f"mrt.sampling.{file.stem}" for file in folder.glob("*.py") if "\n    run(" in file.read_text()}
    assert STAGES.keys() == stages - {"mrt.sampling.pool", "mrt.sampling.imports", "mrt.sampling.parity"}


def test_a_cache_that_holds_no_text_is_named_by_its_setting(requests, tmp_path):
    small = ENGINE.model_copy(update={"cpu_cache_gib": 0.0005})
    pool = Pool(requests=requests, folder=tmp_path / "cache", out=tmp_path / "mark", engine=small)
    with pytest.raises(ValueError, match=r"engine\.cpu_cache_gib: a cache of 0\.0005 GiB does not hold .* 512 tokens"):
        pool.cli_cmd()
