"""One engine for all that a model samples of one stage: each dataset's completions go into its completion cache.

    python -m mrt.sampling.pool --requests '["aime2024.json", "amc2023.json"]' \\
        --folder .cache/rollouts/base --out sampled

A request is a JSON file: the stage's module (`stage`), the settings that decide its result (`settings`), and its files
(`inputs`, with the table `out`). A request whose table is newer than it needs nothing. The stage itself, with
`--cache.gather`, then makes the table from the cache, without a GPU.
"""

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field

from mrt.core import accelerator
from mrt.core.cli import Stage, check_planned, run
from mrt.core.lock import held
from mrt.core.storage import write_text
from mrt.sampling.allocation import Allocate
from mrt.sampling.budget_forcing import Force
from mrt.sampling.cache import CacheSettings
from mrt.sampling.engine import Engine, EngineSettings
from mrt.sampling.likelihood import Score
from mrt.sampling.linearized import Linearize
from mrt.sampling.prover import Prove
from mrt.sampling.rollouts import Sample
from mrt.sampling.stage import SamplingStage
from mrt.sampling.tree import Search

STAGES: dict[str, type[SamplingStage]] = {
    kind.__module__: kind for kind in (Sample, Prove, Allocate, Score, Force, Search, Linearize)
}


class SharedEngine(Engine):
    """An engine that samples with the vLLM of another one of the same weights; only its tags of thoughts differ."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.model, engine.settings, engine.revision)
        self.engine = engine

    @cached_property
    def tokenizer(self) -> Any:
        """The other's tokenizer."""
        return self.engine.tokenizer

    @cached_property
    def llm(self) -> Any:
        """The other's vLLM, which starts with the first request of all.

        Raises ValueError if its cache does not hold one text; vLLM's own words advise settings that a CPU has not.
        """
        try:
            return self.engine.llm
        except ValueError as error:
            if "gpu_memory_utilization" not in str(error) or accelerator.on_gpu():
                raise
            size, longest = self.settings.cpu_cache_gib, self.settings.max_model_len
            needed = re.search(r"\(([\d.]+) GiB KV", str(error))
            raise ValueError(
                f"engine.cpu_cache_gib: a cache of {size:g} GiB does not hold one text of {longest or 'as many'}"
                f" tokens{f', which takes {needed[1]} GiB' if needed else ''}; raise it, or lower engine.max_model_len"
            ) from error


class Pool(Stage):
    """Sample the missing completions of these requests, with one engine, into their completion caches."""

    requests: list[Path] = Field(min_length=1, description="Requests (JSON), of one model.")
    folder: Path = Field(description="Folder of the completion caches; each dataset has its own below.")
    out: Path = Field(description="Mark that all is sampled: an empty file.")
    shard: str = Field("0/1", description="`i/n`: sample shard i (from 0) of n.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the engine is built.")

    def cli_cmd(self) -> None:
        first: Engine | None = None
        for stage in self.stages():
            first = first or Engine(stage.model, stage.engine, stage.revision)
            if (stage.model, stage.revision) != (first.model, first.revision):
                raise ValueError(f"{stage.model} is not {first.model}: the requests are of several models")
            vars(stage)["sampler"] = SharedEngine(first)
            cache = stage.lock()
            with held(cache) if cache else nullcontext():
                stage.cli_cmd()
        write_text("", self.out)

    def stages(self) -> Iterator[SamplingStage]:
        """The stages of the requests whose tables are still to be made, ready to run as a shard."""
        for file in self.requests:
            request = json.loads(file.read_text(encoding="utf-8"))
            settings, inputs = request["settings"], request["inputs"]
            dataset = settings["names"][1]
            if is_newer(Path(inputs["out"]), file):
                print(f"{dataset}: its table is made", flush=True)
                continue
            cache = CacheSettings(folder=self.folder / dataset, shard=self.shard)
            stage = STAGES[request["stage"]](settings=settings, engine=self.engine, cache=cache, **inputs)
            check_planned(request["stage"], *stage.plugins())
            print(f"{dataset}:", flush=True)
            yield stage


def is_newer(table: Path, request: Path) -> bool:
    """Whether a table, or the link to it, was made after its request."""
    try:
        return table.lstat().st_mtime_ns >= request.stat().st_mtime_ns
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    run(Pool)
