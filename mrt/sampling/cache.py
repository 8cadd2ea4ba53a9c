"""What has been drawn before, kept by content: a job draws only completions that are new.

A completion is decided by the model's weights, its prompt, the decoding settings, its seed, and the code and the
library versions that sample. `Kept` files each under a hash of all of these, in pieces of Parquet that are written
while the work goes on. So a job that was killed, that is asked for more samples or more problems, or that runs again
because an input got a new date, draws what no piece holds; and if nothing is missing, vLLM does not even start.

Several processes may fill one folder at once, each its own part of the requests (`--keep.part 0/4`); how many there are
does not matter (docs/operations.md: equal, or on a GPU equal in distribution). What gathers the parts
(`--keep.gather 4`) draws nothing and starts no engine.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, field_validator

from mrt.core import storage
from mrt.core.digest import digest, identity_of_model, slice_of
from mrt.core.fingerprint import fingerprint
from mrt.core.storage import write_table
from mrt.sampling.engine import Completion, Engine, Request

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
    gather: int | None = Field(
        None, ge=1, description="Gather what so many parts drew, and draw nothing: an error if anything is missing."
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
    """Completions by key; `decided_by` hashes what all requests of a job share, and begins each key."""

    def __init__(self, folder: Path, engine: Engine, *, track_versions: bool = True) -> None:
        self.folder = folder
        self.found: dict[str, Completion] = {}
        self.pieces: dict[Path, tuple[int, int]] = {}  # what it has been read from: time of change and size
        weights = storage.provenance["weights"] = identity_of_model(engine.model, engine.revision)
        self.decided_by = digest(
            weights,
            f"{engine.settings.max_model_len} {engine.settings.dtype}",
            fingerprint("mrt.sampling.engine", with_versions=track_versions),
        )[:16]

    def keys(self, request: Request) -> list[str]:
        """A key for each of a request's completions."""
        how = digest(slice_of(request.decoding), str(request.prompt))  # read once, however many are drawn
        return [self.decided_by + digest(how, str(request.seed + i)) for i in range(request.n)]

    def read(self) -> dict[str, Completion]:
        """All that is kept by key; a piece that cannot be read is removed, and what it held is drawn again.

        A piece is read once, unless one that was read has changed or gone: then all are.
        """
        there = {piece: state_of(piece) for piece in sorted(self.folder.glob("*.parquet"))}
        if any(there.get(piece) != state for piece, state in self.pieces.items()):
            self.found, self.pieces = {}, {}
        for piece in [piece for piece in there if piece not in self.pieces]:
            try:
                table = pl.read_parquet(piece).select(list(SCHEMA)).cast(SCHEMA)  # type: ignore[arg-type]
            except (pl.exceptions.PolarsError, OSError):
                print(f"{piece}: cannot be read; what it held is drawn again", flush=True)
                piece.unlink(missing_ok=True)
                continue
            self.pieces[piece] = there[piece]
            for key, *rest in table.filter(pl.col("key").str.starts_with(self.decided_by)).iter_rows():
                self.found[key] = Completion(*rest)
        return self.found

    def add(self, drawn: Sequence[tuple[str, Completion]]) -> None:
        """Keep completions, in a piece of their own."""
        rows = [(key, c.text, c.tokens, c.finish, c.mean_logprob) for key, c in drawn]
        piece = self.folder / f"{digest(*(key for key, _ in drawn))}.parquet"
        write_table(pl.DataFrame(rows, schema=SCHEMA, orient="row"), piece)
        self.found.update(drawn)
        self.pieces[piece] = state_of(piece)


def state_of(piece: Path) -> tuple[int, int]:
    """A file's time of change and size; zeros if it is gone."""
    try:
        found = piece.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


_kept: WeakKeyDictionary[Engine, dict[tuple[Path, bool], Kept]] = WeakKeyDictionary()


def kept_by(engine: Engine, folder: Path, *, track_versions: bool) -> Kept:
    """What an engine's job keeps in a folder: a job that draws in rounds reads it once."""
    of_engine = _kept.setdefault(engine, {})
    key = folder.absolute(), track_versions
    if key not in of_engine:
        of_engine[key] = Kept(folder, engine, track_versions=track_versions)
    return of_engine[key]


Then = Callable[[int, list[Completion]], Iterable[Request]]


def refuse(keep: Keep, lacking: Counter[int]) -> None:
    """Raise ValueError if parts have drawn too little; `lacking`: how many completions each of them has not."""
    if lacking:
        parts = ", ".join(
            f"part {part} of {keep.gather} lacks at least {count}" for part, count in sorted(lacking.items())
        )
        marks = " ".join(str(keep.folder / f"part-{part}-of-{keep.gather}") for part in sorted(lacking) if keep.folder)
        raise ValueError(
            f"{keep.folder}: {parts} completions; a job that gathers draws none, as it may have no GPU. "
            f"Remove their marks ({marks}) and start again: then these parts run once more"
        )


class Job:
    """The requests of a job by number, and what is known of their completions."""

    def __init__(self, kept: Kept | None, keep: Keep, then: Then | None) -> None:
        self.kept, self.keep, self.then = kept, keep, then
        self.known: dict[str, Completion] = kept.read() if kept else {}
        self.keys: list[list[str]] = []  # of each request
        self.roots: list[int] = []  # the number of the request that each one follows from; parts are made of these
        self.waiting: deque[Request] = deque()  # for the engine
        self.asked: list[tuple[int, int, int]] = []  # (request, first, count) of what went to the engine, by its number
        self.lacking: dict[int, int] = {}  # request: how many of its completions are yet to come
        self.found = self.missing = 0

    def take(self, requests: Iterable[Request]) -> None:
        """Number requests on; have what is missing drawn, and take up what follows from those that are all there."""
        self.follow_all(self.number(requests, None))

    def follow_all(self, ready: Iterable[int]) -> None:
        """Take up what follows from requests that are all there, and from what follows, as far as that is there."""
        left = deque(ready)
        while left:
            left += self.follow(left.popleft())

    def number(self, requests: Iterable[Request], root: int | None) -> list[int]:
        """Number requests on, and queue what is missing of them; gives those of which nothing is."""
        ready = []
        for request in requests:
            number = len(self.keys)
            keys = self.kept.keys(request) if self.kept else [f"{number} {i}" for i in range(request.n)]
            self.keys.append(keys)
            self.roots.append(number if root is None else root)
            self.lacking[number] = sum(key not in self.known for key in keys)
            self.missing += self.lacking[number]
            self.found += len(keys) - self.lacking[number]
            if self.keep.has(self.roots[number]):
                for first, count in gaps([key in self.known for key in keys]):
                    self.asked.append((number, first, count))
                    self.waiting.append(replace(request, n=count, seed=request.seed + first))
            if not self.lacking[number]:
                ready.append(number)
        return ready

    def follow(self, number: int) -> list[int]:
        """Number the requests that follow from one; gives those of which nothing is missing."""
        return self.number(self.then(number, self.completions(number)), self.roots[number]) if self.then else []

    def receive(self, index: int, drawn: list[Completion]) -> list[tuple[str, Completion]]:
        """Take the completions of what went to the engine as its `index`; gives them with their keys."""
        number, first, count = self.asked[index]
        named = list(zip(self.keys[number][first : first + count], drawn, strict=True))
        self.known.update(named)
        self.lacking[number] -= count
        self.follow_all([] if self.lacking[number] else [number])
        return named

    def completions(self, number: int) -> list[Completion]:
        return [self.known[key] for key in self.keys[number]]


def draw(
    engine: Engine,
    requests: Sequence[Request],
    keep: Keep,
    then: Then | None = None,
    *,
    track_versions: bool = True,
    part_of: Callable[[int], int] = int,
) -> list[list[Completion]] | None:
    """Completions of each request in order, the kept ones found and the others drawn; None for a part of the work.

    `then(i, completions)` is called when request i has all of its completions, and gives the requests that follow from
    them. These are numbered on, in the order in which they are given, and drawn along with the others. Where the job
    only gathers what parts drew, ValueError is raised if anything is missing, and names the parts: request i, of those
    that follow from none, is of part `part_of(i)`, modulo their number.
    """
    if keep.folder is None and (keep.part or keep.gather):
        raise ValueError("--keep.part and --keep.gather need --keep.folder: parts are handed over in it")
    kept = kept_by(engine, keep.folder, track_versions=track_versions) if keep.folder else None
    job = Job(kept, keep, then)
    job.take(requests)
    part = f", of which part {keep.part} draws {sum(count for _, _, count in job.asked)}" if keep.part else ""
    if kept:
        print(f"{job.found} completions kept from before, {job.missing} to draw{part}", flush=True)
    if keep.gather:
        lacking = Counter[int]()
        for number, _, count in job.asked:
            lacking[part_of(job.roots[number]) % keep.gather] += count
        refuse(keep, lacking)
    unsaved: list[tuple[str, Completion]] = []
    since = time.monotonic()
    try:
        for index, drawn in engine.stream(job.waiting):
            unsaved += job.receive(index, drawn)
            if kept and time.monotonic() - since > SECONDS_A_PIECE:
                kept.add(unsaved)
                unsaved, since = [], time.monotonic()
    finally:
        if kept and unsaved:
            kept.add(unsaved)
    return None if keep.part else [job.completions(number) for number in range(len(job.keys))]


def gaps(present: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """(first, count) of the runs of False."""
    first = None
    for index, here in enumerate([*present, True]):
        if not here and first is None:
            first = index
        elif here and first is not None:
            yield first, index - first
            first = None
