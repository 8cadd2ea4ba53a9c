"""Shared by the training stages: resuming, and the checkpoints that are kept.

Everything that determines the weights (parent, data, recipe, code) is hashed to a key. Trainer state is stored under
this key: a killed job resumes from its last complete checkpoint; an edited recipe, or another number of processes,
starts afresh. With `--cache.folder`, the trained checkpoint is kept under its key too. A job with the key of a kept
checkpoint takes it and trains nothing.
"""

import ctypes
import json
import os
import shutil
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import Field

from mrt.core import accelerator
from mrt.core.cli import Stage
from mrt.core.digest import digest, digest_of_files
from mrt.core.fingerprint import fingerprint
from mrt.core.hub import folder_of, identity
from mrt.core.settings import Settings
from mrt.core.storage import atomic_file, atomic_folder, link_folder, write_table, write_text
from mrt.training.budget import Budget, budget_of
from mrt.training.devices import parameters
from mrt.training.flops import Sizes
from mrt.training.one_card import check, has_adapters, in_words, save
from mrt.training.schedule import NO_GRADIENT, did_not_fall

SLOW = "bf16: this CPU has no bfloat16 instructions; with `bf16: false` it trains several times faster"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
ON_THE_WAY = "on_the_way"  # folder of the weights of `evaluate_steps`, in a trainer's state
LARGE_BLOCK, SMALL_MODEL = 4 * 2**20, 100 * 2**20  # bytes


def check_reporters(names: Iterable[str]) -> None:
    """Raise ValueError if a tool that trainers are to log to is not installed."""
    for name in names:
        # A folder has no origin, such as `wandb`, in which W&B keeps its runs.
        if not any(getattr(find_spec(module), "origin", None) for module in (name, f"{name}X")):
            raise ValueError(f"report_to: {name} is not installed in this environment; pip install {name}")


class EndsOnce:
    """A trainer that does not go on when it resumes after its last step.

    transformers trains one step more where the last epoch is not whole, as with `epochs: 0.5`.
    """

    state: Any
    control: Any

    def is_over(self) -> bool:
        """Whether there is no step left."""
        return bool(self.state.global_step >= self.state.max_steps)

    def _run_epoch(self, *arguments: Any, **options: Any) -> None:
        if self.is_over():
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*arguments, **options)  # type: ignore[misc]


class Keep(Settings):
    """How many checkpoints of a model are kept; the least recently used one goes first."""

    settings: int = Field(
        5, ge=1, le=1000, description="Number of checkpoints kept of a model: the present one and earlier ones."
    )
    gib: float = Field(
        100.0,
        ge=0,
        description="Maximum GiB of a model's earlier checkpoints. The present one takes none: its files are"
        " those of `models/`. In float32 a model of 7B parameters takes 28 GiB.",
    )


class KeptCheckpoints(Keep):
    """A folder of a model's trained checkpoints by key, each with its log and its digest."""

    folder: Path | None = Field(None, description="Folder of kept checkpoints; without it, none are kept.")

    def of(self, key: str) -> Path | None:
        """Where the checkpoint of a key is kept, or will be."""
        return self.folder / key if self.folder else None

    def forget(self, present: Path) -> None:
        """Remove checkpoints beyond the limits; `present` is kept, and counts as used now (the folder's date)."""
        os.utime(present)
        others = sorted(present.parent.iterdir(), key=lambda each: each.stat().st_mtime_ns, reverse=True)
        room = self.gib * 2**30
        for place, each in enumerate((each for each in others if each != present), start=1):
            room -= sum(file.stat().st_size for file in each.rglob("*"))
            if place >= self.settings or room < 0 or not is_complete(each):
                shutil.rmtree(each)


def is_complete(kept: Path) -> bool:
    """Whether a kept checkpoint was written whole, and not left half by a killed job."""
    return not kept.name.startswith(".") and (kept / "digest").is_file()


class TrainingStage(Stage):
    """A stage that trains a model from its parent."""

    model: str = Field(description="Parent model: a Hugging Face checkpoint folder or hub id.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    out: Path = Field(description="Folder of the trained checkpoint (safetensors and tokenizer).")
    history: Path = Field(description="The trainer's log (Parquet), one row per entry; `mrt.training.log` reads it.")
    state: Path = Field(description="Folder of the trainer's state; removed after success.")
    cache: KeptCheckpoints = Field(default_factory=KeptCheckpoints, description="Checkpoints for jobs that run again.")
    recipe: Any = Field(description="Hyperparameters.")
    spent: Path | None = Field(
        None, description="With `recipe.flops`: cost of data and ancestors (Parquet), see mrt.training.cost."
    )
    report_to: list[Literal["tensorboard", "trackio", "wandb"]] = Field(
        [], description="Where the trainer also logs: TensorBoard (a folder beside `history`), Trackio, W&B."
    )
    deepspeed: Path | None = Field(
        None, description="DeepSpeed's configuration for several processes, such as ZeRO-3's (Tables 3 and 5)."
    )

    def lock(self) -> Path | None:
        """That of the trainer's state, in which a model is trained."""
        return self.state.with_name(f"{self.state.name}.lock")

    @abstractmethod
    def train(self, examples: list[dict[str, Any]], state: Path, made: Path) -> None:
        """Train on the examples, or resume, and save the model in the folder `made` (`save_checkpoint`)."""

    @property
    def budget(self) -> Budget | None:
        """The budget of `recipe.flops`, or None; raises ValueError if nothing is left of it."""
        return budget_of(self.recipe, self.spent)

    def key(self, *decisive: str) -> str:
        """Hash of all that determines the weights: the parent, the stage's code, and `decisive` texts of the stage.

        A budget adds the FLOPs before the training.
        """
        return digest(
            identity(self.model, self.revision),
            *decisive,
            *([repr(budget.before)] if (budget := self.budget) else []),
            *([self.deepspeed.read_text()] if self.deepspeed else []),
            fingerprint(self.module(), *self.plugins(), with_versions=self.track_versions),
        )

    def reporters(self) -> list[str]:
        """`report_to` for the trainer; ValueError if one is not installed."""
        check_reporters(self.report_to)
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(self.history.with_suffix(".tensorboard")))
        return list(self.report_to)

    def make(self, examples: list[dict[str, Any]], *decisive: str) -> None:
        """Take the kept checkpoint, or train; then write checkpoint and history to their outputs."""
        processes = os.environ.get("WORLD_SIZE", "1")
        sharded = processes != "1" or self.deepspeed is not None
        check(self.recipe, sharded=sharded)
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL would report each training run to the hub
        key = self.key(json.dumps(examples), *decisive)
        cached = self.cache.of(key)
        if cached and matches_digest(cached):
            print("trained before, from all that decides the weights: the cached checkpoint is taken", flush=True)
        else:
            made = cached or self.state / "made"
            # each process saves its part of a sharded state, which only as many processes can read again
            state = self.state / (key if processes == "1" else f"{key}-{processes}")
            for other in self.state.iterdir() if self.state.exists() and is_first_process() else []:
                if other != state:  # of another recipe, set, parent or number of processes
                    shutil.rmtree(other)
            state.mkdir(parents=True, exist_ok=True)
            accelerator.claim(1)  # a trainer would use all GPUs that it sees
            check(self.recipe, cpu=not accelerator.on_gpu())
            slow = self.recipe.bf16 and accelerator.emulates_bfloat16() and not accelerator.on_gpu()
            if slow and is_first_process():
                print(SLOW, flush=True)
            folder = folder_of(self.model, self.revision)
            tune_malloc(sum(file.stat().st_size for file in folder.glob("*.safetensors")))
            self.train(examples, state, made)
            cached = made
        if not is_first_process():  # one process of a distributed run writes the outputs
            return
        link_folder(cached / "checkpoint", self.out)
        with atomic_file(self.history) as part:
            shutil.copyfile(cached / "history.parquet", part)
        if self.cache.folder:
            self.cache.forget(cached)
        shutil.rmtree(self.state, ignore_errors=True)


def tune_malloc(weights: int) -> None:
    """Have glibc keep freed memory if the model is small, and return large blocks to the system at once if it is not.

    Keeping is fast: the system clears each page that it gives, which was a third of the CPU time of a training of the
    toy. But batches all have other lengths, so that the kept memory grows. With the default thresholds of glibc a model
    of 0.5B parameters filled 24 GB after 120 examples, where 13 are enough. Nothing is done where the C library is
    another one.

    Args:
        weights: Size of the model in bytes.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    small = {M_TRIM_THRESHOLD: -1, M_MMAP_MAX: 0}
    large = {M_TRIM_THRESHOLD: LARGE_BLOCK, M_MMAP_THRESHOLD: LARGE_BLOCK}
    for name, value in (small if weights < SMALL_MODEL else large).items():
        mallopt(name, value)


def show_progress(trainer: Any) -> None:
    """Show a trainer's progress bar without its log lines: the log goes to Parquet. Say what adapters it trains."""
    from tqdm.auto import tqdm
    from transformers import ProgressCallback, TrainerCallback

    class Bar(TrainerCallback):
        """transformers' bar, in which a budget shows an estimate of its steps."""

        def on_train_begin(self, _: Any, state: Any, control: Any, **others: Any) -> None:
            steps = None if trainer.budget else state.max_steps
            self.bar = tqdm(total=steps, dynamic_ncols=True, disable=not state.is_world_process_zero)

        def on_step_end(self, _: Any, state: Any, control: Any, **others: Any) -> None:
            self.bar.total = trainer.expected_steps or self.bar.total
            self.bar.update(state.global_step - self.bar.n)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.bar.close()

    if has_adapters(trainer.model):
        print(in_words(trainer.model), flush=True)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(Bar)


def on_the_way(step: int) -> str:
    """Where, in the folder of a trained checkpoint, that of a step on the way is; Trainer's own name for it."""
    return f"checkpoint-{step}"


def keep_on_the_way(trainer: Any, steps: Sequence[int] | None, state: Path, parent: Path) -> None:
    """Have a trainer write its weights after these steps; `save_checkpoint` puts them into the trained checkpoint.

    `parent` is the checkpoint folder that it came from. Raises ValueError, before the first step, for a step that the
    training does not reach, or that is its last.
    """
    if not steps:
        return
    from transformers import TrainerCallback

    kept, last = {*steps}, steps[-1]

    class Keeper(TrainerCallback):
        def on_train_begin(self, _: Any, training: Any, control: Any, **others: Any) -> None:
            if last >= training.max_steps:
                has = f"the training has {training.max_steps} steps, whose last gives the model itself"
                raise ValueError(f"evaluate_steps: {last}, but {has}; leave it out")

        def on_step_end(self, _: Any, training: Any, control: Any, **others: Any) -> None:
            if training.global_step in kept:
                save(trainer, state / ON_THE_WAY / on_the_way(training.global_step), parent)

    trainer.add_callback(Keeper)


def warn(what: str | None) -> None:
    """Print a warning, if there is one; what runs the stage shows such lines of its log (workflow/terminal.py)."""
    if what and is_first_process():
        print(f"warning: {what}", flush=True)


def is_first_process() -> bool:
    """Whether this is the first process of a distributed run, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def save_checkpoint(trainer: Any, tokenizer: Any, state: Path, made: Path) -> None:
    """Write a trained model, its tokenizer, its log and a digest to the folder `made`, atomically.

    All processes of a distributed run must call it: saving a sharded model needs all of them.
    """
    trainer.save_model(str(state / "final"))
    if trainer.accelerator.is_main_process:
        sizes = {"parameters": parameters(trainer.model), "examples": len(trainer.train_dataset)}
        sizes |= Sizes.of(trainer.model)._asdict()
        history = [sizes | entry for entry in trainer.state.log_history]
        norms = [entry["grad_norm"] for entry in history if "grad_norm" in entry]
        if norms and not any(norms):
            warn(NO_GRADIENT)
        by_rl = any("reward" in entry for entry in history)
        steps = [entry for entry in history if "loss" in entry and not by_rl]
        warn(did_not_fall([entry["loss"] for entry in steps], [entry["epoch"] for entry in steps]))
        with atomic_folder(made) as folder:
            shutil.move(state / "final", folder / "checkpoint")
            tokenizer.save_pretrained(folder / "checkpoint")
            for leftover in ("training_args.bin", "README.md"):  # a pickle, and TRL's model card for the hub
                (folder / "checkpoint" / leftover).unlink(missing_ok=True)
            add_those_on_the_way(state / ON_THE_WAY, folder / "checkpoint")
            write_table(pl.DataFrame(history, infer_schema_length=None, strict=False), folder / "history.parquet")
            write_text(digest_of_files([folder / "checkpoint"]), folder / "digest")
    trainer.accelerator.wait_for_everyone()


def add_those_on_the_way(kept: Path, checkpoint: Path) -> None:
    """Put the weights of steps on the way into a trained checkpoint, each with settings and tokenizer of the last."""
    shared = [file for file in checkpoint.iterdir() if not is_of_weights(file)]
    for weights in sorted(kept.glob("checkpoint-*")):
        (folder := checkpoint / weights.name).mkdir()
        for file in filter(is_of_weights, weights.iterdir()):
            shutil.move(file, folder)
        for file in shared:
            shutil.copyfile(file, folder / file.name)


def is_of_weights(file: Path) -> bool:
    """Whether a checkpoint's file holds weights, or says which file does."""
    return file.suffix == ".safetensors" or file.name.endswith(".safetensors.index.json")


def matches_digest(made: Path) -> bool:
    """Whether a folder that `save_checkpoint` wrote still matches its digest."""
    digest_file = made / "digest"
    return digest_file.is_file() and digest_file.read_text() == digest_of_files([made / "checkpoint"])


def last_complete_checkpoint(state: Path) -> str | None:
    """The trainer's last complete checkpoint; incomplete ones, left by a killed job, are removed.

    All processes of a distributed run call it after they have joined; the first one looks and tells the others.
    """
    from torch import distributed

    shared = [last_complete_in(state) if is_first_process() else None]
    if distributed.is_initialized():
        distributed.broadcast_object_list(shared)
    return shared[0]


def last_complete_in(state: Path) -> str | None:
    """`last_complete_checkpoint` in a single process."""
    complete = []
    for folder in sorted(state.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])):
        try:
            json.loads((folder / "trainer_state.json").read_text())  # written last
            complete.append(str(folder))
        except (OSError, ValueError):
            shutil.rmtree(folder)
    return complete[-1] if complete else None
