"""The stages of a trial of a machine (mrt/planning/trial.py): each runs in a separate process.

A stage reports its measurements with `Place.report`, and fails by raising. Its models are the shipped toy base and one
with random weights and the sizes of R1-Distill-Qwen-1.5B, or less where the card has less memory. On a CPU sizes are
small, and no stage uses CUDA.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from math import log2
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from mrt.config.hardware import GIB, Architecture, Hardware
from mrt.config.memory import Training, longest_length, total, training_parts
from mrt.core import accelerator
from mrt.core.artifacts import PROBLEMS, RL_PROMPTS, SET
from mrt.core.storage import atomic_folder, write_table
from mrt.episodes.parameterization import Template
from mrt.planning.calibrate import DECODE, MEMORY, PREFILL, TRAINING, Sizes, speeds, training_speed
from mrt.toy.world import draw_problem

TOY = Path(__file__).parents[1] / "toy" / "weights"
CHAT, OPENING = "<|user|>{}<|assistant|><think>\n", "Final Answer:** \\boxed{"
LARGE = {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2}
LARGE |= {"intermediate_size": 8960, "vocab_size": 151_936, "head_dim": 128, "tie_word_embeddings": False}
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 128, "vocab_size": 607, "head_dim": 32}  # on a CPU
SHARE = 0.3  # of the card's memory: the engine of the toy, and of RL


class NotHere(Exception):
    """The machine lacks something that the stage needs."""


class Place(NamedTuple):
    """Where a stage runs: the trial's folder, the stage's name, the card's numbers, and how many cards there are."""

    folder: Path
    stage: str
    hardware: Hardware
    cards: int  # 0: on a CPU

    @property
    def cpu(self) -> bool:
        """Whether the stage runs on a CPU."""
        return not self.cards

    @property
    def engine(self) -> dict[str, Any]:
        """Settings of an engine of the toy."""
        room = {"cpu_cache_gib": 0.25} if self.cpu else {"gpu_memory_utilization": SHARE}
        return {"max_model_len": 1024, "max_num_seqs": 64, **room}

    def report(self, what: str, value: Any) -> None:
        """Report a number or a text."""
        number = float(value) if isinstance(value, int | float) else None
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        with (self.folder / "measured.jsonl").open("a") as file:
            file.write(json.dumps({"stage": self.stage, "what": what, "value": text, "number": number}) + "\n")
        print(f"{what}: {text}", flush=True)

    def run(self, module: str, *options: Any, processes: int = 0) -> float:
        """Run a stage of the project to its end, a training on `processes` processes: its seconds.

        Raises CalledProcessError if it fails.
        """
        began = time.monotonic()
        command = command_of(module, *options, processes=processes)
        subprocess.run(command, check=True)
        return time.monotonic() - began

    def several(self) -> int:
        """Processes of a training with ZeRO-3: as many as there are cards, a power of two. Raises NotHere on one."""
        if self.cards == 1:
            raise NotHere("needs two cards")
        return 2 ** int(log2(self.cards or 2))

    # ---- inputs

    def problems(self, count: int = 24) -> list[tuple[str, str, str]]:
        """(prompt, the same forced to answer, gold answer) of toy problems, which are also written as tables."""
        rng, rows, prompts, texts = random.Random(5), [], [], []
        for i in range(count):
            problem = draw_problem(rng, 3 + i % 3)
            name, chat, gold = f"t{i:02}", CHAT.format(problem.text), str(problem.answer)
            step = "Try 3 + 4 = 7.\n\n7 is less than 9.\n\nNo answer so far.\n\n"
            prefix = step + "Wait, t" + step[1:] if i % 3 == 0 else ""
            forced = chat + Template().force(prefix)
            rows.append((name, problem.text, gold, None, float(3 + i % 3), "toy", "test"))
            prompts.append((name, 0, 2 * (i % 3 == 0), prefix, chat + prefix, forced, gold, True, None))
            texts.append((chat, forced, gold))
        write_table(pl.DataFrame(rows, schema=PROBLEMS.columns, orient="row"), self.folder / "problems.parquet")
        write_table(pl.DataFrame(prompts, schema=RL_PROMPTS.columns, orient="row"), self.folder / "prompts.parquet")
        return texts

    def examples(self) -> Path:
        """A training set of short examples."""
        rows = [
            (f"p{i}", 0, None, CHAT.format(f"Question {i}"), f"Try {i}.\n</think>\n\n\\boxed{{{i}}}", 1.0)
            for i in range(64)
        ]
        write_table(pl.DataFrame(rows, schema=SET.columns, orient="row"), self.folder / "set.parquet")
        return self.folder / "set.parquet"

    def random_model(self) -> Path:
        """The folder of the model with random weights: 1.8B parameters, with fewer layers below 40 GiB.

        Another process makes it: this one would keep its memory on the card.
        """
        folder = self.folder / "random_model"
        if not folder.is_dir():
            sizes = SMALL if self.cpu else LARGE | {"num_hidden_layers": 28 if self.hardware.memory > 40 else 8}
            device = "cpu" if self.cpu else "cuda"
            process = get_context("spawn").Process(target=make_random_model, args=(sizes, device, folder))
            process.start()
            process.join()
            assert process.exitcode == 0, "the random model cannot be made"
        return folder

    def training(self, *options: Any) -> tuple[list[Any], Path]:
        """Options of a new training of the toy base, and the folder that it writes to."""
        out = self.folder / self.stage
        shutil.rmtree(out, ignore_errors=True)
        files = ["--state", out / "state", "--history", out / "history.parquet", "--out", out / "model"]
        return ["--model", TOY, *options, *files], out

    def sft_options(self, **more: Any) -> list[Any]:
        """Options of SFT on the short examples."""
        recipe = {"epochs": 2, "batch_size": 8, "micro_batch_size": 4, "max_length": 256, "learning_rate": 1e-4}
        return ["--set", self.examples(), "--recipe", json.dumps(recipe | {"bf16": not self.cpu} | more)]


def make_random_model(sizes: dict[str, Any], device: str, folder: Path) -> None:
    """Write a model of these sizes with random weights, in bfloat16, and the toy's tokenizer."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        config = Qwen2Config(**sizes, max_position_embeddings=131_072, bos_token_id=None, eos_token_id=1)
        model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    with atomic_folder(folder) as part:
        AutoTokenizer.from_pretrained(TOY).save_pretrained(part)
        model.save_pretrained(part, max_shard_size="100GB")


def command_of(module: str, *options: Any, processes: int = 0) -> list[str]:
    """The command line of a stage of the project; of a training, with its number of processes, as rules start it."""
    launch = ["mrt.training.launch", "--processes", str(processes)] if processes else []
    return [sys.executable, "-m", *launch, module, *map(str, options)]


# ---- the machine


def card(place: Place) -> None:
    """The shares of the card's data sheet that a matrix product and a copy reach."""
    import torch

    accelerator.claim(1)
    device, dtype = ("cpu", torch.float32) if place.cpu else ("cuda", torch.bfloat16)
    if not place.cpu:
        place.report("compute capability", "{}.{}".format(*torch.cuda.get_device_capability()))
    size = 512 if place.cpu else 8192
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    big = torch.zeros(2**22 if place.cpu else 2**30, dtype=torch.uint8, device=device)

    def seconds(work: Callable[[], Any]) -> float:
        taken = []
        for _ in range(12):
            began = time.monotonic()
            work()
            if not place.cpu:
                torch.cuda.synchronize()
            taken.append(time.monotonic() - began)
        return min(taken)

    flops, bandwidth = 2 * size**3 / seconds(lambda: a @ b), 2 * big.numel() / seconds(big.clone)
    place.report("TFLOP/s of a matrix product", flops / 1e12)
    place.report("GB/s of a copy, read and written", bandwidth / 1e9)
    if not place.cpu:
        place.report("matrix product, share of the data sheet", flops / place.hardware.flops)
        place.report("copy, share of the data sheet", bandwidth / place.hardware.bandwidth)


# ---- the engine


def engine(place: Place, gpus: int = 1) -> None:
    """Log-probabilities of the engine against transformers, sampled and scored, with and without the prefix cache."""
    import torch
    from transformers import AutoModelForCausalLM
    from vllm import SamplingParams

    from mrt.sampling.engine import Decoding, Engine, EngineSettings, Request

    if gpus > max(1, place.cards):
        raise NotHere(f"needs {gpus} cards")
    prompts, began = place.problems(8 if place.cpu else 24), time.monotonic()
    sampler = Engine(str(TOY), EngineSettings(**place.engine, tensor_parallel_size=gpus))
    decoding = Decoding(temperature=1.0, max_tokens=60)
    sampler.generate([Request(prompts[0][0], 1, 0, Decoding(temperature=0.0, max_tokens=8))])
    place.report("seconds until the first answer, compilation included", time.monotonic() - began)
    requests = [
        Request(prompts[0][0], 4, 7, decoding),
        Request(prompts[0][0], 1, 99, decoding.model_copy(update={"stop": ("\n\n",)}), priority=-1),
        Request("9 " * 2000, 2, 0, decoding),
    ]
    many, stopped, too_long = sampler.generate(requests)
    assert len({c.text for c in many}) > 1 and "\n\n" not in stopped[0].text, "several completions, or a stop text"
    assert [(c.text, c.finish_reason) for c in too_long] == [("", "length")] * 2, "a prompt that is too long"
    batch = [Request(chat, 4, 11 * i, decoding) for i, (chat, *_) in enumerate(prompts)]
    first, second = sampler.generate(batch), sampler.generate(batch[::-1])[::-1]
    same = [a.text == b.text for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True)]
    place.report("share of completions that are equal in another order", float(np.mean(same)))

    device = "cpu" if place.cpu else "cuda"
    model = AutoModelForCausalLM.from_pretrained(TOY, dtype=torch.float32).to(device)

    def reference(ids: list[int]) -> Any:
        """Log-probabilities [tokens, vocabulary] of what follows each token, in float32."""
        with torch.no_grad():
            return model(torch.tensor([ids], device=device)).logits[0].float().log_softmax(-1).cpu().numpy()

    ids = sampler.encode([chat for chat, *_ in prompts])
    sampling = SamplingParams(temperature=1.0, max_tokens=200, seed=3, logprobs=0, detokenize=False)
    outputs = sampler.llm.generate([{"prompt_token_ids": i} for i in ids], sampling, use_tqdm=False)
    gaps = []
    for prompt_ids, output in zip(ids, outputs, strict=True):
        completion_ids = list(output.outputs[0].token_ids)
        logps = reference([*prompt_ids, *completion_ids])
        steps = zip(completion_ids, output.outputs[0].logprobs, strict=True)
        gaps += [abs(step[t].logprob - logps[len(prompt_ids) + i - 1, t]) for i, (t, step) in enumerate(steps)]
    place.report("nats a token between engine and transformers, mean", float(np.mean(gaps)))
    place.report("the same, 99 % and largest", f"{np.quantile(gaps, 0.99):.3f}, {np.max(gaps):.3f}")
    assert np.mean(gaps) < 0.02, "log-probabilities disagree"

    scored = [Request(f, 1, 0, Decoding(max_tokens=1), scored=gold, opening=OPENING) for _, f, gold in prompts]
    J = []
    for request, prompt_ids in zip(scored, sampler.encode([forced for _, forced, _ in prompts]), strict=True):
        parts = sampler.as_written(request)
        logps, start = reference([*prompt_ids, *parts.before, *parts.target]), len(prompt_ids) + len(parts.before)
        ends = [i for i in range(logps.shape[1]) if sampler.tokenizer.decode([i]).startswith(parts.end)]
        J.append(
            np.exp(sum(logps[start + i - 1, t] for i, t in enumerate(parts.target))) * np.exp(logps[-1, ends]).sum()
        )
    place.report("J by likelihood, largest", float(max(J)))
    for how in ("first pass", "from the prefix cache", "beside requests that sample"):
        beside = batch if how.startswith("beside") else []
        completions = [c for (c, *_) in sampler.generate([*scored, *beside])[: len(scored)]]
        differences = np.abs(np.exp([(c.mean_logprob or 0) * c.tokens for c in completions]) - J)
        place.report(f"J by likelihood against transformers, {how}: largest difference", float(differences.max()))
        assert differences.max() < 0.1 * max(J), "J by likelihood disagrees"


def throughput(place: Place) -> None:
    """Prefill and decoding as shares of the data sheet; J by likelihood after long prompts."""
    from mrt.sampling.engine import Decoding, Engine, EngineSettings, Request

    accelerator.claim(1)
    settings = {**place.engine, "max_num_seqs": 16} if place.cpu else {"max_model_len": 10_240}
    sizes = (
        Sizes(prompts=4, prompt_tokens=64, sequences=8, tokens=16)
        if place.cpu
        else Sizes(prompt_tokens=2048, tokens=512)
    )
    began = time.monotonic()
    sampler = Engine(str(place.random_model()), EngineSettings(**settings))
    sampler.generate([Request("9 8 7", 1, 0, Decoding(temperature=1.0, max_tokens=8))])
    place.report("seconds until the first answer", time.monotonic() - began)
    prefill, decode = speeds(sampler, place.hardware, sizes)
    place.report(PREFILL, prefill)
    place.report(DECODE, decode)
    texts = [f"{i} " + "7 3 " * (25 if place.cpu else 1500) for i in range(8 if place.cpu else 48)]
    scored = [
        Request(text, 1, 0, Decoding(max_tokens=1), scored=spelling, opening="\\boxed{")
        for text in texts
        for spelling in ("12", "345")
    ]
    tokens, began = sum(sampler.count(texts)), time.monotonic()
    sampler.generate(scored)
    place.report("J by likelihood, prompts' distinct tokens a second", tokens / (time.monotonic() - began))


def two_jobs(place: Place) -> None:
    """Two sampling jobs at once on one card: the second one waits for the first one's claim."""
    if place.cpu:
        raise NotHere("needs a GPU, which jobs claim")
    place.problems(4)
    options = ["--model", TOY, "--names", "base", "--names", "toy", "--engine", json.dumps(place.engine)]
    options += ["--prompt", json.dumps({"instruction": "{problem}"}), "--problems", place.folder / "problems.parquet"]
    one_card = {**os.environ, "CUDA_VISIBLE_DEVICES": accelerator.cards()[0].name}
    began = time.monotonic()
    jobs = [
        subprocess.Popen(
            command_of("mrt.sampling.rollouts", *options, "--out", place.folder / f"job_{i}.parquet"), env=one_card
        )
        for i in range(2)
    ]
    assert [job.wait() for job in jobs] == [0, 0], "one of two jobs on a card failed"
    place.report("seconds of both", time.monotonic() - began)


def sampling(place: Place) -> None:
    """The stages that sample, on the toy, by their command lines."""
    place.problems()
    out = place.folder / "sampling"
    out.mkdir(exist_ok=True)
    base = ["--model", TOY, "--names", "base", "--names", "toy", "--engine", json.dumps(place.engine)]
    rollouts, episodes, problems = out / "rollouts.parquet", out / "episodes.parquet", place.folder / "problems.parquet"
    traces = ["--rollouts", rollouts, "--episodes", episodes]
    decoding = json.dumps({"temperature": 1.0, "max_tokens": 400})
    prompt = ["--prompt", json.dumps({"instruction": "{problem}"}), "--decoding", decoding, "--samples", 4]
    seconds = place.run("mrt.sampling.rollouts", *base, *prompt, "--problems", problems, "--out", rollouts)
    place.report("rollouts, seconds", seconds)
    place.run("mrt.episodes.cut", "--rollouts", rollouts, "--out", episodes)
    answers = json.dumps({"answers": 4, "decoding": {"temperature": 1.0, "max_tokens": 24}})
    seconds = place.run("mrt.sampling.prover", *base, *traces, "--out", out / "prover.parquet", "--prover", answers)
    place.report("forced answers, seconds", seconds)
    options = ["--problems", problems, "--prover", json.dumps({"estimate": "likelihood"})]
    seconds = place.run("mrt.sampling.likelihood", *base, *traces, *options, "--out", out / "likelihood.parquet")
    place.report("J by likelihood, seconds", seconds)
    grades = out / "grades.parquet"
    place.run("mrt.grading.grade", "--problems", problems, "--answers", rollouts, "--out", grades)
    place.report("accuracy of the toy base", float(pl.read_parquet(grades)["correct"].to_numpy().mean()))


# ---- training


def sft(place: Place, *, zero: bool = False) -> None:
    """SFT: the loss falls."""
    from mrt.training.log import log_of

    processes = place.several() if zero else 1
    options, out = place.training(*place.sft_options())
    seconds = place.run("mrt.training.sft", *options, processes=processes)
    log = log_of(out / "history.parquet")
    losses = log["loss"].to_list()
    place.report("seconds with the start, steps, processes", f"{seconds:.0f}, {log.height}, {processes}")
    place.report("loss of the first and of the last step", f"{losses[0]:.3f}, {losses[-1]:.3f}")
    assert losses[-1] < losses[0], f"the loss does not fall: {losses}"


def sft_resumed(place: Place) -> None:
    """SFT is killed after its first checkpoint, and resumes."""
    from mrt.training.log import log_of

    options, out = place.training(*place.sft_options(save_steps=1))
    training = subprocess.Popen(command_of("mrt.training.sft", *options, processes=1))
    while not list((out / "state").glob("*/checkpoint-*/trainer_state.json")):
        assert training.poll() is None, "SFT ended before its first checkpoint"
        time.sleep(0.1)
    training.kill()
    training.wait()
    place.report("seconds to go on and end", place.run("mrt.training.sft", *options, processes=1))
    log = log_of(out / "history.parquet")
    assert log["step"].to_list() == list(range(1, 17)), f"steps are lacking, or twice there: {log['step'].to_list()}"


def rl(place: Place, method: str, *, zero: bool = False, **recipe: Any) -> None:
    """RL: engine and trainer agree about log-probabilities in every step."""
    from mrt.training.log import log_of

    place.problems()
    processes = place.several() if zero else 1
    recipe |= {"epochs": 1, "batch_size": 64, "micro_batch_size": 16, "num_generations": 8, "learning_rate": 1e-4}
    recipe |= {"decoding": {"temperature": 1.0, "max_tokens": 100}}
    recipe |= {"bf16": False, "gradient_checkpointing": False, "batch_size": 32, "epochs": 0.5} if place.cpu else {}
    settings = {name: value for name, value in place.engine.items() if name != "gpu_memory_utilization"}
    given = ["--prompts", place.folder / "prompts.parquet", "--method", method, "--recipe", json.dumps(recipe)]
    options, out = place.training(*given, "--engine", json.dumps(settings))
    seconds = place.run("mrt.training.rl", *options, processes=processes)
    log = log_of(out / "history.parquet")
    place.report("seconds with the start, steps, processes", f"{seconds:.0f}, {log.height}, {processes}")
    place.report("seconds a step", ", ".join(f"{s:.1f}" for s in log["seconds"]))
    gaps = log["logp_difference"].to_list()
    place.report("nats a token between engine and trainer, by step", ", ".join(f"{gap:.4f}" for gap in gaps))
    assert max(gaps) < 0.2, "the engine does not have the trainer's weights"


def memory_sft(place: Place, length: int) -> None:
    """Peak memory and speed of SFT on one row of `length` tokens, against `mrt/config/memory.py`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    from mrt.training.sft import SFT, arguments, make_trainer

    accelerator.claim(1)
    length, folder = min(length, 256) if place.cpu else length, place.random_model()
    architecture, bf16 = Architecture.read(folder), not place.cpu
    length = min(length, longest_length(architecture, Training(1, length, bf16), place.hardware, 0.0, 1))
    if not length:
        raise NotHere(f"{place.hardware.memory:.0f} GiB do not hold a training of the model")
    place.report("tokens of the row" + (", in small" if place.cpu else ""), length)
    recipe = SFT(epochs=1, batch_size=1, micro_batch_size=1, max_length=length, save_steps=1000, bf16=bf16)
    args = arguments(recipe, place.folder / place.stage)
    args.save_strategy = "no"
    rows = [{"input_ids": [5] * length, "labels": [5] * length, "loss_weight": 1.0} for _ in range(4)]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    trainer = make_trainer(model, AutoTokenizer.from_pretrained(TOY), rows, recipe, args)
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if not place.cpu:
                torch.cuda.synchronize()
            ends.append(time.monotonic())

    trainer.add_callback(Clock())
    trainer.train()
    plan = total(training_parts(architecture, Training(1, length, bf16), 1))
    seconds = float(np.median(np.diff(ends)))
    place.report("seconds a step, without the first", seconds)
    place.report(TRAINING, training_speed(architecture, place.hardware, length, seconds))
    place.report("GiB planned", plan)
    if not place.cpu:
        peak = torch.cuda.max_memory_allocated() / GIB
        place.report("GiB at the peak", peak)
        place.report("GiB reserved", torch.cuda.max_memory_reserved() / GIB)
        place.report(MEMORY, peak / plan)
        assert peak <= plan, "SFT takes more memory than planned: lower micro_batch_size, and report this"


def memory_rl(place: Place) -> None:
    """Peak memory of GRPO with its engine, against the plan."""
    import torch

    from mrt.training.rl import Train

    accelerator.claim(1)
    place.problems(4)
    folder, bf16 = place.random_model(), not place.cpu
    architecture, prompt = Architecture.read(folder), 256
    training = Training(1, prompt + (64 if place.cpu else 4096), bf16=bf16, rl=True)
    longest = longest_length(architecture, training, place.hardware, SHARE, 1) - prompt
    if longest <= 0:
        raise NotHere(f"{place.hardware.memory:.0f} GiB do not hold RL of the model")
    training = training._replace(length=prompt + longest)
    place.report("tokens of a completion, at most", longest)
    recipe: dict[str, Any] = {"epochs": 1, "batch_size": 8, "micro_batch_size": 1, "num_generations": 4}
    recipe |= {"decoding": {"temperature": 0.9, "max_tokens": longest}, "bf16": bf16, "save_steps": 1000}
    given = {**place.engine, "max_model_len": longest + 1024, "gpu_memory_utilization": 0.9}
    settings: dict[str, Any] = {"recipe": recipe | {"gpu_memory_utilization": SHARE}, "engine": given}
    out = place.folder / place.stage
    shutil.rmtree(out, ignore_errors=True)
    files: dict[str, Any] = {"prompts": place.folder / "prompts.parquet", "state": out / "state", "out": out / "model"}
    Train(model=str(folder), method="grpo", history=out / "history.parquet", **settings, **files).cli_cmd()
    plan = total(training_parts(architecture, training, 1))
    place.report("GiB planned for the training", plan)
    shutil.rmtree(out)
    if not place.cpu:
        room, peak = SHARE * place.hardware.memory, torch.cuda.max_memory_allocated() / GIB
        place.report("GiB at the peak, and planned, the engine's share included", f"{peak:.1f}, {plan + room:.1f}")
        assert peak <= plan + room, "RL takes more memory than planned: lower micro_batch_size, and report this"


class Limits(NamedTuple):
    """A stage, its limit in seconds, the fewest seconds that it is worth starting with, and whether CPUs run it."""

    work: Callable[[Place], None]
    limit: int
    least: int
    on_cpu: bool = False


BY_EPISODE: dict[str, Any] = {"variant": "per_episode", "answer_tokens": 24}
LIKELIHOOD: dict[str, Any] = {"variant": "explicit", "estimate": "likelihood"}
STAGES = {  # in order of value
    "card": Limits(card, 60, 10, True),
    "engine": Limits(engine, 240, 60, True),
    "sft": Limits(sft, 90, 30, True),
    "grpo": Limits(lambda place: rl(place, "grpo"), 180, 60),
    "mrt_rl": Limits(lambda place: rl(place, "mrt_rl", **BY_EPISODE), 180, 60, True),
    "memory_sft_8k": Limits(lambda place: memory_sft(place, 8192), 120, 40, True),
    "throughput": Limits(throughput, 300, 90, True),
    "memory_sft_16k": Limits(lambda place: memory_sft(place, 16_384), 180, 60),
    "mrt_rl_likelihood": Limits(lambda place: rl(place, "mrt_rl", **LIKELIHOOD), 180, 60),
    "memory_rl": Limits(memory_rl, 240, 90),
    "mrt_rl_parent": Limits(lambda place: rl(place, "mrt_rl", **LIKELIHOOD, mu="parent"), 180, 60),
    "sft_resumed": Limits(sft_resumed, 120, 50),
    "sft_zero3": Limits(lambda place: sft(place, zero=True), 150, 60),
    "grpo_zero3": Limits(lambda place: rl(place, "grpo", zero=True), 240, 60),
    "engine_on_two_cards": Limits(lambda place: engine(place, 2), 300, 90),
    "sampling": Limits(sampling, 400, 120),
    "two_jobs": Limits(two_jobs, 300, 90),
    "memory_sft_24k": Limits(lambda place: memory_sft(place, 24_576), 240, 60),
}
