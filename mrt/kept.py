"""What has been drawn before, kept by content: a job draws only completions that are new.

A completion is decided by the model's weights, its prompt, the decoding settings, its seed, and the code and the
library versions that sample. `Kept` files each under a hash of all of these, in pieces of Parquet that are written
while the work goes on. So a job that was killed, that is asked for more samples or more problems, or that runs again
because an input got a new date, draws what no piece holds; and if nothing is missing, vLLM does not even start.

Several processes may fill one folder at once, each its own part of the requests (`--keep.part 0/4`); how many there are
changes nothing in what is drawn.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, field_validator

from mrt import storage
from mrt.engine import Completion, Decoding, Engine, Request
from mrt.fingerprint import digest, fingerprint, identity_of_model
from mrt.storage import write_table

SCHEMA = {
    "key": pl.String,
    "text": pl.String,
    "tokens": pl.Int64,
    "finish": pl.String,
    "mean_logprob": pl.Float64,
}
SECONDS_A_PIECE = 20.0  # finished completions wait this long at most before they are on disk


class Keep(BaseModel):
    """Where a job keeps what it draws, and which part of the missing it draws."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    folder: Path | None = Field(None, description="Folder of kept completions; none are kept or found if not given.")
    part: str | None = Field(
        None,
        description="`i/n`: of the i-th (from 0) of n parts of the job, draw and keep what is missing; write no table.",
    )

    @field_validator("part")
    @classmethod
    def _is_a_part(cls, part: str | None) -> str | None:
        if part is not None:
            index, _, count = part.partition("/")
            if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
                raise ValueError(f"{part!r} is not i/n with i from 0 to n - 1")
        return part

    def has(self, request: int) -> bool:
        """Whether a request, by its number among all of the job, is of this part; all are if there are no parts."""
        if self.part is None:
            return True
        index, count = map(int, self.part.split("/"))
        return request % count == index


class Kept:
    """Completions by key; `decided_by` hashes what all requests of a job share."""

    def __init__(self, folder: Path, engine: Engine, decoding: Decoding, *, track_versions: bool = True) -> None:
        self.folder = folder
        weights = storage.provenance["weights"] = identity_of_model(engine.model, engine.revision)
        self.decided_by = digest(
            weights,
            decoding.model_dump_json(),
            f"{engine.settings.max_model_len} {engine.settings.dtype}",
            fingerprint("mrt.engine", with_versions=track_versions),
        )

    def keys(self, request: Request) -> list[str]:
        """A key for each of a request's completions."""
        return [digest(self.decided_by, request.prompt, str(request.seed + i)) for i in range(request.n)]

    def find(self, keys: Sequence[str]) -> dict[str, Completion]:
        """The kept ones of these; a piece that cannot be read is removed, and what it held is drawn again."""
        found: dict[str, Completion] = {}
        wanted = pl.DataFrame({"key": keys}, schema={"key": pl.String}).unique()
        for piece in sorted(self.folder.glob("*.parquet")):
            try:
                table = pl.read_parquet(piece).select(list(SCHEMA)).cast(SCHEMA)  # type: ignore[arg-type]
            except (pl.exceptions.PolarsError, OSError):
                print(f"{piece}: cannot be read; what it held is drawn again", flush=True)
                piece.unlink(missing_ok=True)
                continue
            for key, *rest in table.join(wanted, on="key", how="semi").iter_rows():
                found[key] = Completion(*rest)
        return found

    def add(self, drawn: Sequence[tuple[str, Completion]]) -> None:
        """Keep completions, in a piece of their own."""
        rows = [(key, c.text, c.tokens, c.finish, c.mean_logprob) for key, c in drawn]
        name = digest(*(key for key, _ in drawn))
        write_table(pl.DataFrame(rows, schema=SCHEMA, orient="row"), self.folder / f"{name}.parquet")


def draw(
    engine: Engine, requests: Sequence[Request], decoding: Decoding, keep: Keep, *, track_versions: bool = True
) -> list[list[Completion]] | None:
    """Completions of each request in order, the kept ones found and the others drawn; None for a part of the work."""
    if keep.folder is None:
        if keep.part:
            raise ValueError("--keep.part needs --keep.folder: a part is handed over in it")
        return engine.generate(requests, decoding)
    kept = Kept(keep.folder, engine, decoding, track_versions=track_versions)
    keys = [kept.keys(request) for request in requests]
    known = kept.find([key for of_request in keys for key in of_request])
    pieces = [(i, first, count) for i, of in enumerate(keys) for first, count in gaps([key in known for key in of])]
    total, missing = sum(r.n for r in requests), sum(count for _, _, count in pieces)
    mine = [piece for piece in pieces if keep.has(piece[0])]
    part = f", of which part {keep.part} draws {sum(count for _, _, count in mine)}" if keep.part else ""
    print(f"{total - missing} completions kept from before, {missing} to draw{part}", flush=True)
    waiting: list[tuple[str, Completion]] = []
    since = time.monotonic()
    asked = [Request(requests[i].prompt, count, requests[i].seed + first) for i, first, count in mine]
    try:
        for index, drawn in engine.stream(asked, decoding):
            i, first, count = mine[index]
            waiting += zip(keys[i][first : first + count], drawn, strict=True)
            if time.monotonic() - since > SECONDS_A_PIECE:
                kept.add(waiting)
                known.update(waiting)
                waiting, since = [], time.monotonic()
    finally:
        if waiting:
            kept.add(waiting)
            known.update(waiting)
    return None if keep.part else [[known[key] for key in of_request] for of_request in keys]


def gaps(present: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """(first, count) of the runs of False."""
    first = None
    for index, here in enumerate([*present, True]):
        if not here and first is None:
            first = index
        elif here and first is not None:
            yield first, index - first
            first = None
