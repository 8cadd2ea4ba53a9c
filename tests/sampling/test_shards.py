"""Stages that sample in rounds, in shards: each samples the rounds of its problems."""

import polars as pl
import pytest
from conftest import ROOT

from mrt.core.artifacts import PROBLEMS
from mrt.episodes.parameterization import Backtracking
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.sampling.linearized import Linearize, Linearized
from mrt.sampling.prompt import Prompt
from mrt.sampling.tree import BeamSearch, Search

pytestmark = pytest.mark.slow

DECODING = Decoding(temperature=1.0, max_tokens=48)
SETTINGS = {
    Search: {"search": BeamSearch(breadth=2, depth=2, rollouts=3, child_rollouts=2, decoding=DECODING)},
    Linearize: {"linearized": Linearized(samples=2, attempts=2, window=96, decoding=DECODING)},
}


@pytest.mark.parametrize("stage", list(SETTINGS))
def test_shards_draw_what_one_job_draws(stage, toy_problems, tmp_path, capfd):
    few = tmp_path / "few.parquet"
    PROBLEMS.write(pl.read_parquet(toy_problems)[:3], few)

    def run(name, **cache):
        out = tmp_path / f"{name}.parquet"
        stage(
            model=str(ROOT / "mrt" / "toy" / "weights_attempts"), names=("base", "toy"), problems=few, out=out,
            engine=EngineSettings(max_model_len=512, cpu_cache_gib=0.25), cache=cache,
            parameterization=Backtracking(answer="Answer: "),
            prompt=Prompt(instruction="{problem}", open_thought=""), **SETTINGS[stage],
        ).cli_cmd()  # fmt: skip
        return out

    shards = tmp_path / "shards"
    whole = pl.read_parquet(run("whole"))
    assert not run("first", folder=shards, shard="0/4").exists()
    with pytest.raises(ValueError, match="shard 1 of 4 lacks at least"):
        run("early", folder=shards, gather=4)
    for shard in ("1/4", "2/4", "3/4"):  # the last one has no problem
        run("none", folder=shards, shard=shard)
    capfd.readouterr()
    gathered = pl.read_parquet(run("gathered", folder=shards, gather=4))
    assert gathered.equals(whole)
    assert " 0 to sample" in capfd.readouterr().out
