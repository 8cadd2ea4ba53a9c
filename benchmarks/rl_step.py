"""A step of reinforcement learning: where its seconds go, and how it compares with TRL's plain GRPOTrainer.

    python -m benchmarks rl_step

All trainers run in turn in one process and on one engine, with the same prompts of the toy world and the same sizes;
each begins from the same weights and transfers its own to the engine at every step. Seconds per sampled token are
compared (tokens of forced answers count as sampled). Phases do not overlap, and together they are the step.
"""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.record import TOY_BASE, Goal, Record, Report, has, markdown, middle

TITLE = "A step of reinforcement learning"
PLAIN = "TRL's GRPOTrainer"
KINDS = (PLAIN, "grpo", "mrt_rl explicit", "mrt_rl per_episode")
PHASES = ("sampling", "forced answers", "grading", "log-probabilities", "forward", "backward", "weights", "rest")
TOKEN = "milliseconds a sampled token"
REPEATS, STEPS, COMPLETIONS, GROUP, LONGEST = 3, 2, 64, 8, 192


class Clock:
    """Seconds by phase; a nested phase counts towards the outer one."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.running: list[str] = []
        self.since = time.perf_counter()

    def switch(self) -> None:
        """Add the time since the last switch to the running phase."""
        now = time.perf_counter()
        self.seconds[self.running[0] if self.running else "rest"] += now - self.since
        self.since = now

    def watch(self, owner: Any, method: str, phase: str) -> None:
        """Count the time in an object's method towards a phase."""
        inner = getattr(owner, method)

        @wraps(inner)
        def watched(*arguments: Any, **options: Any) -> Any:
            self.switch()
            self.running.append(phase)
            try:
                return inner(*arguments, **options)
            finally:
                self.switch()
                self.running.pop()

        setattr(owner, method, watched)


def make_prompts(path: Path, count: int) -> None:
    """Write prompts for problems of the toy world."""
    from transformers import AutoTokenizer

    from mrt.core.artifacts import RL_PROMPTS
    from mrt.episodes.parameterization import Template
    from mrt.episodes.thinking import THINK
    from mrt.sampling.prompt import Prompt
    from mrt.toy.world import draw_problem

    tokenizer, rng, rows = AutoTokenizer.from_pretrained(TOY_BASE), random.Random(0), []
    for i in range(count):
        problem = draw_problem(rng, 4)
        chat = Prompt(instruction="{problem}").render(tokenizer, problem.text)
        rows.append(
            (
                f"p{i:03}",
                0,
                0,
                "",
                chat,
                chat + Template().force(""),
                str(problem.answer),
                True,
                THINK.cell(),
            )
        )
    pl.DataFrame(rows, schema=RL_PROMPTS.columns, orient="row").write_parquet(path)


@contextmanager
def one_engine() -> Iterator[Callable[[], None]]:
    """Let all trainers share the first one's engine; yields a function that removes a trainer's wrapper from it."""
    from trl.generation import vllm_generation

    build, built = vllm_generation.LLM, []

    def shared(**options: Any) -> Any:
        if not built:
            built.append(build(**options))
        return built[0]

    vllm_generation.LLM = shared
    try:
        yield lambda: built[0].__dict__.pop("generate", None) if built else None
    finally:
        vllm_generation.LLM = build


def trainer_of(kind: str, prompts: Path, folder: Path, completions: int, longest: int) -> Any:
    """A trainer of a kind, on the engine that TRL builds."""
    from mrt.grading.task import task_of
    from mrt.sampling.engine import Decoding, EngineSettings
    from mrt.training import rl
    from mrt.training.rl.trainer import outcome_reward

    method, _, variant = ("grpo explicit" if kind == PLAIN else kind).partition(" ")
    recipe = rl.RL(
        variant=variant or "explicit", learning_rate=1e-4, batch_size=completions, micro_batch_size=completions,
        num_generations=GROUP, answer_tokens=24, decoding=Decoding(temperature=1.0, max_tokens=longest), bf16=False,
        gradient_checkpointing=False, save_steps=1000,
    )  # fmt: skip
    stage = rl.Train(
        model=str(TOY_BASE), prompts=prompts, method=method, recipe=recipe, engine=EngineSettings(max_model_len=512),
        out=folder / "out", history=folder / "history", state=folder / "state",
    )  # fmt: skip
    usual = stage.usual(pl.read_parquet(prompts).to_dicts(), folder / "state")
    if kind == PLAIN:
        from trl import GRPOTrainer

        return GRPOTrainer(reward_funcs=outcome_reward(task_of(), usual["processing_class"]), **usual)
    ours = {"variant": stage.variant, "recipe": recipe, "task": task_of(), "parameterization": stage.parameterization}
    return stage.trainer_class(usual)(**ours, **usual)


def steps_of(trainer: Any) -> list[tuple[Counter[str], float]]:
    """Train; seconds by phase and sampled tokens of each step."""
    from transformers import PrinterCallback, ProgressCallback, TrainerCallback

    clock, found = Clock(), []

    class Steps(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.since = time.perf_counter()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "step_time" in logs:
                clock.switch()
                found.append((clock.seconds, dict(logs)))
                clock.seconds = Counter()

    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    trainer.add_callback(Steps())
    for owner, method, phase in (
        (trainer.vllm_generation, "sync_weights", "weights"),
        (trainer.vllm_generation, "generate", "sampling"),
        (trainer, "_calculate_rewards", "grading"),
        (getattr(trainer, "mu", None), "accuracy_at", "forced answers"),
        (trainer, "_get_per_token_logps_and_entropies", "log-probabilities"),
        (trainer, "compute_loss", "forward"),
        (trainer.accelerator, "backward", "backward"),
    ):
        if hasattr(owner, method):
            clock.watch(owner, method, phase)
    trainer.train()
    steps, before = [], 0
    for seconds, logs in found:
        forced = logs.get("tokens_forced", 0)
        own = trainer.args.per_device_train_batch_size * logs["completions/mean_length"]
        steps.append((seconds, own + forced - before))
        before = forced
    return steps


def measure(record: Record, quick: bool) -> None:
    """Each trainer in turn, after an uncounted run of each."""
    from mrt.sampling.engine import EngineSettings
    from mrt.training.rl.engine import cpu_vllm

    kinds, repeats = (KINDS[::3], 1) if quick else (KINDS, REPEATS)
    completions, longest, steps = (16, 64, 1) if quick else (COMPLETIONS, LONGEST, STEPS)
    with tempfile.TemporaryDirectory() as name, cpu_vllm(EngineSettings(max_model_len=512)), one_engine() as bare:
        folder = Path(name)
        make_prompts(folder / "first", completions // GROUP)
        make_prompts(folder / "prompts", steps * completions // GROUP)
        for repeat in range(repeats + 1):
            for kind in kinds:
                bare()
                prompts = folder / ("prompts" if repeat else "first")
                found = steps_of(trainer_of(kind, prompts, folder / f"{kind} {repeat}", completions, longest))
                if not repeat:
                    continue
                for seconds, tokens in found:
                    record.add(kind, "seconds a step", seconds.total())
                    record.add(kind, "tokens a step", tokens)
                    for phase in PHASES:
                        record.add(kind, f"seconds, {phase}", seconds[phase])
                took, drawn = (sum(each) for each in zip(*((s.total(), t) for s, t in found), strict=True))
                record.add(kind, TOKEN, 1000 * took / drawn)


def report(table: pl.DataFrame) -> Report:
    """Seconds by phase, one row per trainer, and the ratio to TRL's."""
    kinds = [kind for kind in KINDS if has(table, kind)]
    to_plain = {kind: middle(table, kind, TOKEN) / middle(table, PLAIN, TOKEN) for kind in kinds}
    columns = ("seconds a step", "tokens a step", TOKEN)
    rows = [(kind, *(middle(table, kind, column) for column in columns), ratio) for kind, ratio in to_plain.items()]
    phases = {kind: [middle(table, kind, f"seconds, {phase}") for phase in PHASES] for kind in kinds}
    share = {kind: [f"{part / sum(seconds):.1%}" for part in seconds] for kind, seconds in phases.items()}
    goals = [
        Goal(f"RL, {kind}: seconds a sampled token, to TRL's GRPOTrainer", ratio, bound, at_most=True)
        for kind, ratio in to_plain.items()
        if kind != PLAIN and (bound := 1.0 if kind == "grpo" else 1.1)
    ]
    text = [
        f"TRL's GRPOTrainer and ours take turns on one engine with the toy base: {COMPLETIONS} completions a step in"
        f" groups of {GROUP}, each of at most {LONGEST} tokens; medians over the steps. Sampled tokens include those of"
        " forced answers, which are not trained on. Ours trains without padding, and gives every completion its own"
        " seed.",
        markdown(("trainer", *columns, "to TRL's"), rows),
        "Seconds of a step by phase, then their shares. `log-probabilities`: the trainer computes those of the sampled"
        " tokens, for TRL's importance ratio, and ours stops if they differ from the engine's. `forced answers`:"
        " sampled and graded. `weights`: handed to the engine once a step.",
        markdown(("trainer", *PHASES), [(kind, *seconds) for kind, seconds in phases.items()]),
        markdown(("trainer", *PHASES), [(kind, *parts) for kind, parts in share.items()]),
        "A phase's share is the most that one could save by overlapping it with another: all of `grading` if it ran"
        " beside the engine, and less than the explicit variant's `forced answers` if they were sampled together with"
        " the completions. A step of the per-episode variant takes longer because it forces answers after every"
        " episode.",
    ]
    return Report(text, goals)
