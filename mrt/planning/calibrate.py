"""Measure what fraction of its data sheet a machine reaches, for `python -m mrt plan`.

    python -m mrt calibrate --model deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --gpu h100 --out calibration.parquet
    python -m mrt calibrate --trial results/trial --out calibration.parquet

The first command measures a model in a minute or two. For prefill, it samples one token each from prompts that share no
prefix. For decoding, it samples long completions of short prompts, as many at once as the engine takes. The first round
of each is not counted: it warms the engine up. Training is taken as 0.8 of prefill.

The second one reads what `mrt trial` measured, training and its peak memory among it.
"""

import random
import time
from pathlib import Path

import polars as pl
from pydantic import BaseModel, Field

from mrt.config.hardware import Architecture, Card, Hardware
from mrt.core.cli import Stage, run
from mrt.core.storage import write_table
from mrt.planning.bill import CORE, CPU, Reached, Work, seconds_of
from mrt.sampling.engine import Decoding, Engine, EngineSettings, Request

# what `mrt trial` calls the numbers that are read here
PREFILL, DECODE = "prefill, share of the data sheet", "decoding, share of the data sheet"
TRAINING, MEMORY = "training, share of the data sheet", "peak memory of SFT, share of the planned one"


class Sizes(BaseModel):
    """How much is sampled to measure a machine."""

    prompts: int = Field(64, ge=1, description="Prompts to prefill.")
    prompt_tokens: int = Field(512, ge=1, description="Tokens per prompt, about.")
    sequences: int = Field(256, ge=1, description="Completions to decode.")
    tokens: int = Field(128, ge=1, description="Tokens per completion, at most.")


def speeds(engine: Engine, hardware: Hardware, sizes: Sizes) -> tuple[float, float]:
    """Shares of the data sheet that an engine reaches in prefill and in decoding."""
    architecture, ideal = Architecture.read(engine.folder), Reached.ideal()
    gpus = engine.settings.tensor_parallel_size or 1
    at_once = min(sizes.sequences, engine.settings.max_num_seqs)
    prefill, decoding = Decoding(temperature=1.0, max_tokens=1), Decoding(temperature=1.0, max_tokens=sizes.tokens)
    rng = random.Random(0)

    def share(requests: list[Request], context: int, *, decodes: bool) -> float:
        began = time.monotonic()
        completions = engine.generate(requests)
        seconds = time.monotonic() - began
        generated = sum(c.tokens for group in completions for c in group) if decodes else 0
        read = sum(engine.count([r.prompt for r in requests]))
        work = Work(generated=generated, read=read, context=context)
        return seconds_of(work, architecture, hardware, gpus, at_once, ideal) / seconds

    for _ in range(2):
        texts = [
            engine.tokenizer.decode(
                rng.choices(range(len(engine.tokenizer)), k=sizes.prompt_tokens), skip_special_tokens=True
            )
            for _ in range(sizes.prompts)
        ]
        shares = [
            share([Request(text, 1, 0, prefill) for text in texts], sizes.prompt_tokens, decodes=False),
            share(
                [Request(str(rng.random()), 1, i, decoding) for i in range(sizes.sequences)], sizes.tokens, decodes=True
            ),
        ]
    return shares[0], shares[1]


def training_speed(architecture: Architecture, hardware: Hardware, tokens: int, seconds: float) -> float:
    """Share of the data sheet's FLOPs that a step of SFT on one row of `tokens` tokens reaches."""
    return seconds_of(Work(trained=tokens, context=tokens), architecture, hardware, 1, 1, Reached.ideal()) / seconds


class Calibrate(Stage, Card, Sizes):
    """Measure the speed of prefill and decoding of a model on this machine, or read the report of a trial."""

    model: str | None = Field(None, description="Checkpoint folder or hub id.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the engine is built.")
    trial: Path | None = Field(None, description="Folder of `mrt trial`, which is read instead of measuring.")
    out: Path = Field(description="Fractions of the data sheet that are reached (Parquet).")

    def cli_cmd(self) -> None:
        if (self.model is None) == (self.trial is None):
            raise ValueError("give either --model, to measure, or --trial, the folder of a trial")
        reached = of_trial(self.trial) if self.trial else self.measured()
        columns = {"memory": pl.Float64, "machine": pl.String, "date": pl.String}
        write_table(pl.DataFrame([reached.model_dump()], schema_overrides=columns), self.out)
        print(reached.in_words())

    def measured(self) -> Reached:
        """The fractions that the model reaches here."""
        assert self.model is not None
        prefill, decode = speeds(Engine(self.model, self.engine, self.revision), self.hardware or CORE, self)
        return Reached.at_most_all(prefill, decode, machine=self.gpu or CPU)


def of_trial(folder: Path) -> Reached:
    """The fractions that a trial reached. Raises ValueError if it has not measured the speeds, on a known card."""
    file = folder / "measured.parquet"
    if not file.is_file():
        raise ValueError(f"{folder} has no report of a trial; run `python -m mrt trial` first")
    rows = pl.read_parquet(file)
    measured = rows.filter(pl.col("number").is_not_null()).group_by("what")
    least, most = (
        dict(measured.agg(number).iter_rows()) for number in (pl.col("number").min(), pl.col("number").max())
    )
    facts = dict(rows.filter(pl.col("stage") == "about").select("what", "value").iter_rows())
    if lacking := [what for what in (PREFILL, DECODE) if what not in least]:
        raise ValueError(f"{folder} lacks: {'; '.join(lacking)}. Call `python -m mrt trial` again, for what is left")
    return Reached.at_most_all(
        least[PREFILL],
        least[DECODE],
        least.get(TRAINING),  # of the length at which it is slowest
        memory=most.get(MEMORY),
        machine=facts.get("machine", CPU),
        date=facts.get("date"),
    )


if __name__ == "__main__":
    run(Calibrate)
