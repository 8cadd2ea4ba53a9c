"""The completions and checkpoints that planned jobs will take from the caches.

A sampling stage numbers its requests and looks their keys up in its completion cache. A training hashes all that
decides its weights. Here both do so from their commands in a dry run. Nothing is sampled, trained or written to the
results. Files that other planned jobs will write are foreseen where it is cheap. The key of a training tells its kept
checkpoint. Cached completions are gathered, graded, measured and made to sets in a temporary folder. Of tables of more
than `MOST` rows nothing is foreseen.
"""

import importlib
import io
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import polars as pl

from mrt.core.artifacts import PROBLEMS
from mrt.core.cli import Stage
from mrt.core.digest import local_folder
from mrt.core.hub import cached
from mrt.core.storage import write_table
from mrt.planning.dry_run import Described, key_of
from mrt.sampling.allocation import Allocate
from mrt.sampling.budget_forcing import Force
from mrt.sampling.cache import CacheSettings, Job, cache_of
from mrt.sampling.engine import EngineSettings, Request
from mrt.sampling.linearized import Linearize
from mrt.sampling.pool import STAGES, is_newer
from mrt.sampling.prover import Prove
from mrt.sampling.rollouts import Sample
from mrt.sampling.stage import SamplingStage
from mrt.sampling.tree import Search
from mrt.training.launch import ZERO_3

MOST = 100_000
TRAININGS = ("train", "train_rl", "toy_base")  # rules
CHEAP = {"build_dataset", "cut_episodes", "gather_answers", "grade_rollouts", "grade_answers", "measure_progress"}
CHEAP |= {"make_set", "rl_prompts", "add_up_cost", "add_up_spent", "tabulate_log"}


class Lack(NamedTuple):
    """Of the completions that a job wants, or of its one training, how many no cache has; None: not known yet.

    If not `exact`, fewer may be lacking.
    """

    lacking: int | None
    wanted: int | None
    exact: bool

    def plus(self, other: "Lack") -> "Lack":
        if None in (*self[:2], *other[:2]):
            return Lack(None, None, self.exact and other.exact)
        return Lack(self[0] + other[0], self[1] + other[1], self.exact and other.exact)  # type: ignore[operator]

    @property
    def share(self) -> float:
        """The share of the work that is left, at most."""
        return 1.0 if self.lacking is None or self.wanted is None else self.lacking / max(self.wanted, 1)

    def in_words(self, verb: str) -> str:
        """The action of a job: `will sample 2,000 of 4,000`."""
        if self.lacking == 0:
            return f"{verb}s nothing: all is {'kept' if verb == 'train' else 'cached'}"
        does = f"will {verb}" if self.exact else f"may {verb}"
        if self.lacking is None or self.wanted is None or (verb == "train" and self.wanted == 1):
            return does if self.exact else f"{does}: only if what it is given turns out different"
        rest = f" (the rest is {'kept' if verb == 'train' else 'cached'})" if self.lacking < self.wanted else ""
        return f"{does}{'' if self.exact else ' at most'} {self.lacking:,} of {self.wanted:,}{rest}"


def in_all(lacks: Iterable[tuple[str, Lack]]) -> list[str]:
    """A line for each rule that samples or trains, of all its jobs; `lacks`: rule and lack of each."""
    of_rules: dict[str, Lack] = {}
    for rule, lack in lacks:
        of_rules[rule] = of_rules.get(rule, Lack(0, 0, True)).plus(lack)
    verbs = {rule: "train" if rule in TRAININGS else "sample" for rule in of_rules}
    return [f"{rule}: {lack.in_words(verbs[rule])}" for rule, lack in of_rules.items()]


def shares_of(jobs: Iterable[Described], lacks: Mapping[str, Lack]) -> dict[tuple[str, str, str], float]:
    """The share of the work that is left, at most, by rule, model and pool."""
    totals: dict[tuple[str, str, str], Lack] = {}
    for job in jobs:
        if job.name in lacks:
            totals[key_of(job)] = totals.get(key_of(job), Lack(0, 0, True)).plus(lacks[job.name])
    return {key: lack.share for key, lack in totals.items()}


class NotMade(Exception):
    """An input of a job is not made yet; `new` if it will surely be other than before."""

    def __init__(self, *, new: bool) -> None:
        self.new = new


class Incomplete(Exception):
    """A stage cannot go on without completions that no cache has."""


class Counter:
    """Counts the cached completions of a sampling stage, in place of its `draw`."""

    def __init__(self, stage: SamplingStage) -> None:
        self.stage, self.cached, self.missing, self.follows = stage, 0, 0, False
        self.prefixes: list[int] = []  # of each request, how many of its first completions are cached
        vars(stage)["draw"] = self.draw

    def draw(self, requests: Sequence[Request], then: Any = None, **options: Any) -> Any:
        """The completions, or None in a shard, as `mrt.sampling.cache.draw`. Raises Incomplete if any is missing."""
        stage, settings = self.stage, options.get("cache") or self.stage.cache
        assert settings.folder is not None
        cached = cache_of(stage.sampler, settings.folder, track_versions=stage.track_versions)
        job = Job(cached, settings.model_copy(update={"shard": None}), then)
        job.take(requests)
        self.cached, self.missing, self.follows = self.cached + job.cached, self.missing + job.missing, bool(then)
        for keys in job.keys[: len(requests)]:
            self.prefixes.append(next((i for i, key in enumerate(keys) if key not in job.known), len(keys)))
        if job.missing or (self.cached > MOST and not stage.cache.shard):
            raise Incomplete
        return None if settings.shard else [job.completions(number) for number in range(len(job.keys))]

    def count(self) -> Lack:
        """The lack of the stage."""
        with quiet(), suppress(Incomplete):
            self.stage.cli_cmd()
        if not self.missing:
            return Lack(0, self.cached, True)
        wanted = self.wanted()
        rounds = (self.follows and not isinstance(self.stage, Force)) or isinstance(self.stage, Search | Linearize)
        return Lack(None if wanted is None else wanted - self.cached, wanted, not rounds)

    def wanted(self) -> int | None:
        """How many completions the stage wants in all, cached ones included, at most; None of a search."""
        stage = self.stage
        if isinstance(stage, Allocate):
            return stage.prover.answers * sum(1 for _ in stage.places(stage.traces(stage.prover.traces)))
        if isinstance(stage, Force):
            each = stage.forcing.most + len(stage.forcing.answered()) * stage.forcing.answers
            return each * stage.traces(stage.forcing.traces).height
        if isinstance(stage, Linearize):
            return stage.linearized.attempts * stage.linearized.samples * len(self.prefixes)
        return None if isinstance(stage, Search) else self.cached + self.missing


class Caches:
    """The caches, as the jobs of a dry run with commands will find them.

    Args:
        jobs: All jobs of the dry run.
    """

    def __init__(self, jobs: Iterable[Described]) -> None:
        self.jobs = [job for job in jobs if job.outputs]
        self.made_by = {file: job for job in self.jobs for file in job.outputs}
        self.requests = {job.outputs[0]: job for job in self.jobs if job.rule == "request"}
        # by path of an output: where its content is, or the reason that it is unknown
        self.foreseen: dict[str, str | NotMade] = {}
        # of foreseen rollouts: samples, those wanted, share of problems
        self.parts: dict[str, tuple[int, int, float]] = {}
        self.scratch, self.files = TemporaryDirectory(prefix="mrt-plan-"), 0

    def lacks(self) -> dict[str, Lack]:
        """The lack of each job that samples or trains, by the job's name."""
        by_name: dict[str, Lack] = {}
        for job in self.jobs:
            if job.rule in TRAININGS:
                by_name[job.name] = self.training(job)
            elif "mrt.sampling.pool" in job.command:
                by_name[job.name] = self.pool(job)
        return by_name

    def at(self, path: str) -> str:
        """Where the content is that a file will have. Raises NotMade."""
        if path not in self.made_by:
            return path
        if path not in self.foreseen:
            job = self.made_by[path]
            foresee = {"train": self.kept, "train_rl": self.kept, "gather_rollouts": self.gathered}
            try:
                self.foreseen |= foresee.get(job.rule, self.made)(job)
            except NotMade as reason:
                self.foreseen |= dict.fromkeys(job.outputs, reason)
            except (ValueError, OSError, RuntimeError, Incomplete):  # the job itself will name the fault
                self.foreseen |= dict.fromkeys(job.outputs, NotMade(new=False))
        content = self.foreseen[path]
        if isinstance(content, NotMade):
            raise content
        return content

    def placed(self, value: Any, outputs: Mapping[str, str]) -> Any:
        """Options of a stage, with its outputs and inputs where they are now. Raises NotMade."""
        if isinstance(value, dict):
            return {name: self.placed(each, outputs) for name, each in value.items()}
        if isinstance(value, list):
            return [self.placed(each, outputs) for each in value]
        return outputs.get(value) or self.at(value) if isinstance(value, str) else value

    def made(self, job: Described) -> dict[str, str | NotMade]:
        """The content of a cheap job's outputs: its stage is run now, for scratch files. Raises NotMade, Incomplete."""
        if job.rule not in CHEAP or (job.rule == "build_dataset" and not re.search('"(toy|file)": ', job.command)):
            raise NotMade(new=False)
        outputs = {path: self.file(path) for path in job.outputs}
        read = [path for path in job.fields.get("input", "").split(", ") if path.endswith(".parquet")]
        read = [path for path in read if path in job.command]  # without inputs that need only exist
        for path in read:
            if rows_of(self.at(path)) > MOST or (path in self.parts and job.rule != "cut_episodes"):
                raise NotMade(new=False)
        module, options = options_in(job.command)
        stage = stage_in(module)(**self.placed({name: parsed(value) for name, value in options.items()}, outputs))
        if isinstance(stage, SamplingStage):
            Counter(stage)
        with quiet():
            stage.cli_cmd()
        return dict(outputs)

    def weights(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a stage, with the folder of the weights that it will find. Raises NotMade."""
        model = self.at(settings["model"])
        if not local_folder(model).is_dir() and cached(model, settings.get("revision")) is None:
            raise NotMade(new=False)  # it is not downloaded, and is not now
        return settings | {"model": model}

    # ---- trainings ----

    def training(self, job: Described) -> Lack:
        """Whether a training lacks its checkpoint."""
        try:
            if job.rule != "toy_base":
                self.at(job.outputs[0])
                return Lack(0, 1, True)
        except NotMade as reason:
            kept = json.loads(options_in(job.command)[1]["execution"])["cache"]["folder"]
            return Lack(1, 1, reason.new or not any(Path(kept).glob("*/digest")))
        return Lack(1, 1, True)

    def kept(self, job: Described) -> dict[str, str | NotMade]:
        """The kept checkpoint that a training will take, and its log. Raises NotMade."""
        module, options = options_in(job.command)
        given = {name: parsed(value) for name, value in options.items()}
        given["settings"] = self.weights(given["settings"])
        given["execution"] = {name: self.placed(value, {}) for name, value in given["execution"].items() if value != []}
        given |= {name: self.at(given[name]) for name in ("set", "prompts") if name in given}
        stage = stage_in(module)(**given, deepspeed=None if "--nodes 1 --processes 1 " in job.command else ZERO_3)
        keys: list[str] = []
        vars(stage)["module"] = lambda: module  # not the one that runs now
        vars(stage)["make"] = lambda examples, *decisive: keys.append(stage.key(json.dumps(examples), *decisive))
        with quiet():
            stage.cli_cmd()
        folder = stage.cache.of(keys[0])
        if folder is None or not (folder / "digest").is_file():
            raise NotMade(new=True)
        return dict(zip(job.outputs, (str(folder / "checkpoint"), str(folder / "history.parquet")), strict=True))

    # ---- completions ----

    def pool(self, job: Described) -> Lack:
        """The lack of a job that samples a pool."""
        execution = json.loads(options_in(job.command)[1]["execution"])
        lack = Lack(0, 0, True)
        for file in execution["requests"]:
            try:
                lack = lack.plus(self.request(file, execution))
            except NotMade as reason:
                cache = Path(execution["folder"], Path(file).stem)
                lack = lack.plus(Lack(None, None, reason.new or not cache.is_dir()))
            except (ValueError, OSError, RuntimeError):  # the job itself will name the fault
                lack = lack.plus(Lack(None, None, False))
        index, count = map(int, execution["shard"].split("/"))
        if lack.lacking is None or lack.wanted is None:
            return lack
        return Lack((lack.lacking + index) // count, (lack.wanted + index) // count, lack.exact)

    def request(self, file: str, execution: dict[str, Any]) -> Lack:
        """The lack of a request. Raises NotMade."""
        if file in self.requests:
            words = shlex.split(self.requests[file].command)
            module, settings, inputs = f"mrt.{words[2]}", json.loads(words[3]), json.loads(words[4])
        else:
            request = json.loads(Path(file).read_text(encoding="utf-8"))
            module, settings, inputs = request["stage"], request["settings"], request["inputs"]
            if is_newer(Path(inputs["out"]), Path(file)):
                return Lack(0, 0, True)
        files = self.placed(inputs, {path: path for name, path in inputs.items() if name.startswith("out")})
        kind, wanted = STAGES[module], None
        try:
            settings = self.weights(settings)
        except NotMade as reason:
            if kind is Sample:
                wanted = settings["samples"] * PROBLEMS.read(Path(files["problems"]), ["id"]).height
            return Lack(wanted, wanted, reason.new or not Path(execution["folder"], settings["names"][1]).is_dir())
        folder = Path(execution["folder"], settings["names"][1])
        cache = CacheSettings(folder=folder, shard="0/1")
        stage = kind(settings=settings, engine=EngineSettings(**execution["engine"]), cache=cache, **files)
        return self.scaled(Counter(stage).count(), stage, inputs.get("rollouts", ""))

    def scaled(self, lack: Lack, stage: SamplingStage, rollouts: str) -> Lack:
        """The lack at all traces, of which the foreseen rollouts may be a part."""
        if rollouts not in self.parts or not isinstance(stage, Prove | Force):
            return lack
        known, samples, share = self.parts[rollouts]
        most = (stage.forcing if isinstance(stage, Force) else stage.prover).traces or samples
        share *= min(most, known) / min(most, samples)
        if share == 1 or lack.lacking is None or lack.wanted is None:
            return lack
        wanted = round(lack.wanted / share)
        return Lack(lack.lacking + wanted - lack.wanted, wanted, False)

    def gathered(self, job: Described) -> dict[str, str | NotMade]:
        """Cached rollouts: equally many of each problem, of the problems with any. Raises NotMade."""
        options = {name: parsed(value) for name, value in options_in(job.command)[1].items()}
        settings, execution = self.weights(options["settings"]), options["execution"]
        problems, out = self.at(execution["problems"]), execution["out"]
        part, rollouts = self.file(problems), self.file(out)
        stage = Sample(settings=settings, execution=execution | {"problems": problems, "out": self.file(out)})
        counter = Counter(stage)
        counter.count()
        known = min((count for count in counter.prefixes if count), default=0)
        table = pl.read_parquet(problems)
        some_problems = table.filter(pl.Series(count > 0 for count in counter.prefixes))
        if known * some_problems.height > MOST or not known:
            raise NotMade(new=False)
        write_table(some_problems, Path(part))
        given = execution | {"problems": part, "out": rollouts}
        some = Sample(settings=settings | {"samples": known}, execution=given)
        vars(some)["sampler"] = stage.sampler
        with quiet():
            some.cli_cmd()
        if known * some_problems.height < stage.samples * table.height:
            self.parts[out] = known, stage.samples, some_problems.height / table.height
        return {out: rollouts}

    def file(self, path: str) -> str:
        """A new scratch file of the same name: a set is known by it."""
        self.files += 1
        return str(Path(self.scratch.name, str(self.files), Path(path).name))


@contextmanager
def quiet() -> Iterator[None]:
    """Say nothing of what stages say."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def options_in(command: str) -> tuple[str, dict[str, str]]:
    """The stage that a rule's command runs, and its options."""
    words = shlex.split(command)
    words = words[: words.index(">")]
    at = max(place for place, word in enumerate(words) if re.fullmatch(r"mrt(\.\w+)+", word))
    rest = words[at + 1 :]
    return words[at], dict(zip((word.removeprefix("--") for word in rest[::2]), rest[1::2], strict=True))


def parsed(value: str) -> Any:
    """An option's value: a group is JSON, all else text."""
    return json.loads(value) if value.startswith("{") else value


def rows_of(table: str) -> int:
    return int(pl.scan_parquet(table).select(pl.len()).collect().item())


def stage_in(module: str) -> Any:
    """The class of the stage that is run as a module."""
    kinds = vars(importlib.import_module(module)).values()
    return next(k for k in kinds if isinstance(k, type) and issubclass(k, Stage) and k.__module__.startswith(module))


if __name__ == "__main__":  # Snakemake's own process has no stages in it
    planned = [Described(*job) for job in json.load(sys.stdin)]
    lacks = Caches(planned).lacks()
    print(*in_all((job.rule, lacks[job.name]) for job in planned if job.name in lacks), sep="\n")
