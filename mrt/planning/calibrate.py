"""Measure what fraction of its data sheet a machine reaches, for `python -m mrt plan`: a job of a minute or two.

    python -m mrt calibrate --model deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --gpu h100 --out calibration.parquet

For prefill, it samples one token each from prompts that share no prefix. For decoding, it samples long completions of
short prompts, as many at once as the engine takes. The first round of each is not counted: it warms the engine up.
"""

import random
import time
from pathlib import Path

import polars as pl
from pydantic import Field

from mrt.config.hardware import Architecture, Card
from mrt.core.cli import Stage, run
from mrt.core.storage import write_table
from mrt.planning.bill import CORE, Reached, Work, seconds_of
from mrt.sampling.engine import Decoding, Engine, EngineSettings, Request


class Calibrate(Stage, Card):
    """Measure the speed of prefill and decoding of a model on this machine."""

    model: str = Field(description="Checkpoint folder or hub id.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the engine is built.")
    prompts: int = Field(64, ge=1, description="Prompts to prefill.")
    prompt_tokens: int = Field(512, ge=1, description="Tokens per prompt, about.")
    sequences: int = Field(256, ge=1, description="Completions to decode.")
    tokens: int = Field(128, ge=1, description="Tokens per completion, at most.")
    out: Path = Field(description="Fractions of the data sheet that are reached (Parquet).")

    def cli_cmd(self) -> None:
        hardware = self.hardware or CORE
        engine = Engine(self.model, self.engine, self.revision)
        architecture = Architecture.read(engine.folder)
        gpus, seqs, ideal = self.engine.tensor_parallel_size or 1, self.engine.max_num_seqs, Reached.ideal()

        def seconds(requests: list[Request], prompt: int) -> tuple[float, float]:
            """Seconds (measured, by the data sheet)."""
            since = time.monotonic()
            done = engine.generate(requests)
            took = time.monotonic() - since
            drawn = sum(c.tokens for completions in done for c in completions)
            read = sum(engine.count([r.prompt for r in requests]))
            work = Work(drawn=drawn if prompt == 0 else 0, read=read, context=prompt or self.tokens)
            return took, seconds_of(work, architecture, hardware, gpus, seqs, ideal)

        reading = Decoding(temperature=1.0, max_tokens=1)
        drawing = Decoding(temperature=1.0, max_tokens=self.tokens)
        rng = random.Random(0)
        for _ in range(2):
            texts = [self.text(engine, rng) for _ in range(self.prompts)]
            took, least = seconds([Request(t, 1, 0, reading) for t in texts], self.prompt_tokens)
            prefill = least / took
            took, least = seconds([Request(str(rng.random()), 1, i, drawing) for i in range(self.sequences)], 0)
            decode = least / took
        reached = Reached(prefill=min(prefill, 1), decode=min(decode, 1), training=min(0.8 * prefill, 1))
        write_table(pl.DataFrame([reached.model_dump()]), self.out)
        print(f"of the data sheet: prefill {prefill:.1%}, decoding {decode:.1%}; training is taken as 0.8 of prefill")

    def text(self, engine: Engine, rng: random.Random) -> str:
        """A prompt of random tokens."""
        size = len(engine.tokenizer)
        text: str = engine.tokenizer.decode(rng.choices(range(size), k=self.prompt_tokens), skip_special_tokens=True)
        return text


if __name__ == "__main__":
    run(Calibrate)
