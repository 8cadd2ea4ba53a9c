"""The completion cache: a job samples only completions that no earlier job has sampled.

A completion is determined by the model's weights, the prompt, the decoding settings, the seed, and the versions of the
sampling code and its libraries. `CompletionCache` stores each under a hash of all of these, in Parquet files that are
written while the job runs. A job may have been killed, get more samples or more problems, or rerun because an input got
a new date. It then samples only the completions that no file holds. If none is missing, vLLM does not even start.

Several processes may fill one folder at once, each sampling its own shard of the requests (`--cache.shard 0/4`). The
number of shards does not change results (docs/operations.md: equal, or on a GPU equal in distribution). The job that
gathers the shards (`--cache.gather 4`) samples nothing and starts no engine. `mrt.sampling.pool` fills the caches of
all datasets of a model with one engine.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import polars as pl
from pydantic import Field, field_validator

from mrt.core import storage
from mrt.core.digest import digest, slice_of
from mrt.core.fingerprint import fingerprint
from mrt.core.hub import identity
from mrt.core.settings import Settings
from mrt.core.storage import write_table
from mrt.sampling.engine import Completion, Engine, EngineSettings, Request

SCHEMA = {
    "key": pl.String,
    "text": pl.String,
    "tokens": pl.Int64,
    "finish_reason": pl.String,
    "mean_logprob": pl.Float64,
}
SECONDS_A_PIECE = 20.0  # finished completions wait this long at most before they are written


class CacheSettings(Settings):
    """Where a job stores its completions, and which shard of the missing ones it samples."""

    folder: Path | None = Field(None, description="Folder of the completion cache; without one, nothing is cached.")
    shard: str | None = Field(
        None,
        description="`i/n`: sample and store the missing completions of shard i (from 0) of n; write no table.",
    )
    gather: int | None = Field(
        None,
        ge=1,
        description="Gather the completions of this many shards and sample nothing; an error if any is missing.",
    )

    @field_validator("shard")
    @classmethod
    def _is_a_shard(cls, shard: str | None) -> str | None:
        if shard is not None:
            index, _, count = shard.partition("/")
            if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
                raise ValueError(f"{shard!r} is not i/n with i from 0 to n - 1")
        return shard

    def has(self, i: int) -> bool:
        """Whether request i of the job belongs to this shard; without shards all do."""
        if self.shard is None:
            return True
        index, count = map(int, self.shard.split("/"))
        return i % count == index


def engine_decides(settings: EngineSettings) -> str:
    """The engine settings that change completions, as text for the keys of completions and of RL's weights."""
    return f"{settings.max_model_len} {settings.dtype}"


class CompletionCache:
    """Completions by key; each key begins with `decided_by`, a hash of what all requests of a job share."""

    def __init__(self, folder: Path, engine: Engine, *, track_versions: bool = True) -> None:
        self.folder = folder
        self.completions: dict[str, Completion] = {}
        self.pieces: dict[Path, tuple[int, int]] = {}  # files already read: modification time and size
        weights = storage.provenance["weights"] = identity(engine.model, engine.revision)
        self.shown = [json.dumps(engine.kept)] if engine.kept else []  # special tokens that texts keep
        self.decided_by = digest(
            weights,
            engine_decides(engine.settings),
            fingerprint("mrt.sampling.engine:Engine", with_versions=track_versions),  # requests are in the keys
        )

    def keys(self, request: Request) -> list[str]:
        """A key for each of a request's completions; a scored text, which is not sampled, has no seed in its key."""
        if request.scored:
            return [self.decided_by + digest(request.opening, request.scored, str(request.prompt))] * request.n
        how = digest(slice_of(request.decoding), str(request.prompt), *self.shown)  # the prompt is rendered once
        return [self.decided_by + digest(how, str(request.seed + i)) for i in range(request.n)]

    def read(self) -> dict[str, Completion]:
        """All stored completions by key; an unreadable file is removed, and its completions are sampled again.

        Each file is read once; if one that was read has changed or disappeared, all are read again.
        """
        states = {piece: state_of(piece) for piece in sorted(self.folder.glob("*.parquet"))}
        if any(states.get(piece) != state for piece, state in self.pieces.items()):
            self.completions, self.pieces = {}, {}
        for piece in [piece for piece in states if piece not in self.pieces]:
            try:
                table = pl.read_parquet(piece).select(list(SCHEMA)).cast(SCHEMA)  # type: ignore[arg-type]
            except FileNotFoundError:  # removed since the folder was listed
                continue
            except pl.exceptions.PolarsError:
                print(f"{piece}: cannot be read; its completions are sampled again", flush=True)
                piece.unlink(missing_ok=True)
                continue
            self.pieces[piece] = states[piece]
            for key, *rest in table.filter(pl.col("key").str.starts_with(self.decided_by)).iter_rows():
                self.completions[key] = Completion(*rest)
        return self.completions

    def add(self, new: Sequence[tuple[str, Completion]]) -> None:
        """Store completions in a new file."""
        rows = [(key, c.text, c.tokens, c.finish_reason, c.mean_logprob) for key, c in new]
        piece = self.folder / f"{digest(*(key for key, _ in new))}.parquet"
        write_table(pl.DataFrame(rows, schema=SCHEMA, orient="row"), piece)
        self.completions.update(new)
        self.pieces[piece] = state_of(piece)


def state_of(piece: Path) -> tuple[int, int]:
    """A file's modification time and size; zeros if it is gone."""
    try:
        status = piece.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


_caches: WeakKeyDictionary[Engine, dict[tuple[Path, bool], CompletionCache]] = WeakKeyDictionary()


def cache_of(engine: Engine, folder: Path, *, track_versions: bool) -> CompletionCache:
    """The cache of an engine in a folder, shared between calls so that a job that samples in rounds reads it once."""
    of_engine = _caches.setdefault(engine, {})
    key = folder.absolute(), track_versions
    if key not in of_engine:
        of_engine[key] = CompletionCache(folder, engine, track_versions=track_versions)
    return of_engine[key]


Then = Callable[[int, list[Completion]], Iterable[Request]]


def refuse(cache: CacheSettings, lacking: Counter[int]) -> None:
    """Raise ValueError if shards lack completions; `lacking`: how many, by shard."""
    if lacking:
        shards = ", ".join(
            f"shard {shard} of {cache.gather} lacks at least {count}" for shard, count in sorted(lacking.items())
        )
        raise ValueError(
            f"{cache.folder}: {shards} completions; a job that gathers samples none, as it may have no GPU. Start again"
            " with --forcerun and the rule that samples (sample_rollouts, force_answers, force_budget, search_tree or"
            " linearize)"
        )


class Job:
    """The numbered requests of a job, and the completions of them that are known so far."""

    def __init__(self, cache: CompletionCache | None, settings: CacheSettings, then: Then | None) -> None:
        self.cache, self.settings, self.then = cache, settings, then
        self.known: dict[str, Completion] = cache.read() if cache else {}
        self.keys: list[list[str]] = []  # of each request
        self.roots: list[int] = []  # of each request, the first request of its chain of follow-ups; decides the shard
        self.waiting: deque[Request] = deque()  # for the engine
        self.parts: list[tuple[int, int, int]] = []  # (request, first, count) by engine request number
        self.lacking: dict[int, int] = {}  # number of missing completions by request
        self.cached = self.missing = 0

    def take(self, requests: Iterable[Request]) -> None:
        """Number new requests, queue their missing completions, and take the follow-ups of complete requests."""
        self.follow_all(self.number(requests, None))

    def follow_all(self, ready: Iterable[int]) -> None:
        """Take the follow-up requests of complete requests, and recursively those of complete follow-ups."""
        left = deque(ready)
        while left:
            left += self.follow(left.popleft())

    def number(self, requests: Iterable[Request], root: int | None) -> list[int]:
        """Number new requests and queue their missing completions; returns the requests that are complete."""
        ready = []
        for request in requests:
            number = len(self.keys)
            keys = self.cache.keys(request) if self.cache else [f"{number} {i}" for i in range(request.n)]
            self.keys.append(keys)
            self.roots.append(number if root is None else root)
            self.lacking[number] = sum(key not in self.known for key in keys)
            self.missing += self.lacking[number]
            self.cached += len(keys) - self.lacking[number]
            if self.settings.has(self.roots[number]):
                for first, count in gaps([key in self.known for key in keys]):
                    self.parts.append((number, first, count))
                    self.waiting.append(replace(request, n=count, seed=request.seed + first))
            if not self.lacking[number]:
                ready.append(number)
        return ready

    def follow(self, number: int) -> list[int]:
        """Number the follow-up requests of a complete request; returns those that are complete."""
        return self.number(self.then(number, self.completions(number)), self.roots[number]) if self.then else []

    def receive(self, index: int, completions: list[Completion]) -> list[tuple[str, Completion]]:
        """Take the completions of engine request `index`; returns them with their keys."""
        number, first, count = self.parts[index]
        named = list(zip(self.keys[number][first : first + count], completions, strict=True))
        self.known.update(named)
        self.lacking[number] -= count
        self.follow_all([] if self.lacking[number] else [number])
        return named

    def completions(self, number: int) -> list[Completion]:
        return [self.known[key] for key in self.keys[number]]


def draw(
    engine: Engine,
    requests: Sequence[Request],
    settings: CacheSettings,
    then: Then | None = None,
    *,
    track_versions: bool = True,
    shard_of: Callable[[int], int] = int,
) -> list[list[Completion]] | None:
    """Completions of each request in order: cached ones are read, the others sampled; None if the job is a shard.

    `then(i, completions)` is called when request i has all of its completions, and returns its follow-up requests. They
    are numbered after the existing ones, in the order in which they arrive, and sampled along with the others. A job
    that gathers shards raises ValueError if anything is missing, and names the shards. Request i of `requests` belongs
    to shard `shard_of(i)` modulo their number, and its follow-ups with it.
    """
    if settings.folder is None and (settings.shard or settings.gather):
        raise ValueError("--cache.shard and --cache.gather need --cache.folder: shards are handed over in it")
    cache = cache_of(engine, settings.folder, track_versions=track_versions) if settings.folder else None
    job = Job(cache, settings, then)
    job.take(requests)
    of_shard = f" ({sum(count for _, _, count in job.parts)} by shard {settings.shard})" if settings.shard else ""
    if cache:
        print(f"{job.cached} completions cached, {job.missing} to sample{of_shard}", flush=True)
    if settings.gather:
        lacking = Counter[int]()
        for number, _, count in job.parts:
            lacking[shard_of(job.roots[number]) % settings.gather] += count
        refuse(settings, lacking)
    unsaved: list[tuple[str, Completion]] = []
    since = time.monotonic()
    try:
        for index, completions in engine.stream(job.waiting):
            unsaved += job.receive(index, completions)
            if cache and time.monotonic() - since > SECONDS_A_PIECE:
                cache.add(unsaved)
                unsaved, since = [], time.monotonic()
    finally:
        if cache and unsaved:
            cache.add(unsaved)
    return None if settings.shard else [job.completions(number) for number in range(len(job.keys))]


def gaps(present: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """(first, count) of each run of False."""
    first = None
    for index, here in enumerate([*present, True]):
        if not here and first is None:
            first = index
        elif here and first is not None:
            yield first, index - first
            first = None
