"""Reinforcement learning: GRPO, MRT (RL), a length penalty (Sections 6.2, 7.1, 8.2; Algorithm 2; Table 3).

    python -m mrt.training.rl --model results/base --prompts results/prompts/mrt_rl_1.parquet --method mrt_rl \\
        --history history.parquet --state state --out results/models/mrt_rl_1

The trainer is TRL's GRPOTrainer with vLLM in the same process. This module adds the reward and the advantage of each
completion i in a group of G; r_i is its 0/1 outcome.

| method | prompt | advantage A_i |
|---|---|---|
| grpo | x | (r_i - mean r) / std r |
| length_penalty | x | s_i - mean s; s_i = r_i (1 - alpha sigmoid(z_i)), z_i: length, as below |
| mrt_rl, explicit | x, z_0:j | r_i + alpha (r_i - J(mu; z_0:j)), not normalised over the group |
| mrt_rl, implicit | x, z_0:j | as grpo, but half of the group is told that time is up |
| mrt_rl, per_episode | x, z_0:j | r_i + alpha (J_t - J_t-1) for a token of episode t; J_t of the last one is r_i |
| mrt_rl, termination | x, z_0:j | r_i - J(mu; z_0:j), as the authors' RL code has it |

z_i is the length of completion i, standardised over the right ones of its group. The length penalty's advantage is not
divided by the deviation: where all of a group are right, alpha would cancel.

J(mu; z_0:j) is estimated from G further answers that the current policy is forced to give at the prefix, or with
`estimate: likelihood` it is the probability that this policy gives the gold answer there. It is the same
for the whole group, so subtracting the group's mean would cancel it; the explicit advantage is therefore not normalised
(Algorithm 2, line 11, "in place of"). J does not depend on the completion, so it is a baseline: the expected gradient
is 1 + alpha times that of the outcome, under the distribution of prefixes. In the implicit variant J enters through the
group's mean, which is a baseline too, as the stop phrase is in the prompt; the half that is told to stop trains mu.
Equation 3 itself holds the contexts c_j-1 fixed and differentiates each episode's own progress alone; `per_episode` has
this gradient, in which nothing cancels by telescoping. With `centred`, the group's mean outcome is subtracted from the
outcome term (docs/rl.md).
"""

import random
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from mrt.core import accelerator
from mrt.core.artifacts import RL_PROMPTS
from mrt.core.cli import run
from mrt.core.digest import options_of, slice_of
from mrt.core.hub import folder_of, tokenizer_of
from mrt.core.settings import Settings
from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.grading.task import Choice, reference, task_of
from mrt.sampling.cache import engine_decides
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.sampling.prover import ProverSettings
from mrt.sampling.tokens import encode
from mrt.training.devices import batches, join_processes
from mrt.training.methods import RLMethod
from mrt.training.prompt_cache import applies, reading_prompts_once
from mrt.training.rl_engine import cpu_vllm
from mrt.training.rl_trainer import make_trainer_class
from mrt.training.schedule import carried_steps_of, in_words
from mrt.training.stage import TrainingStage, last_complete_checkpoint, leave


class RL(Settings):
    """Hyperparameters of RL; the defaults are Table 3's, or TRL's where the table gives none."""

    execution: ClassVar = {"save_steps", "gpu_memory_utilization"}  # fields that do not affect the weights
    of_prompts: ClassVar = {"prefixes", "least_prefix", "max_prompt_length"}  # which are read, and count, as prompts
    progress: ClassVar = {"variant", "centred", "answers", "estimate", "mu", "opening", "answer_tokens"}  # of MRT (RL)

    variant: Literal["explicit", "implicit", "per_episode", "termination"] = Field(
        "explicit",
        description="How MRT (RL) rewards progress (Section 6.2; Figure 6 shows the implicit one; the authors' code"
        " has `termination`).",
    )
    alpha: float = Field(
        1.0,
        ge=0,
        le=100,
        description="Weight of progress (Equation 3) in `explicit` and `per_episode`, or of the length penalty.",
    )
    centred: bool = Field(
        False,
        description="`explicit`, `per_episode`: subtract the group's mean from the outcome only; Algorithm 2 does not.",
    )
    prefixes: float = Field(1.0, ge=0, le=1, description="MRT (RL): share of the problems whose prompt has a prefix.")
    least_prefix: int = Field(
        0,
        ge=0,
        description="Episodes of the parent's trace that every prompt has, whatever the method; MRT (RL) adds to them."
        " 1 for backtracking: the attempt z_0 (Appendix A.1).",
    )
    max_prompt_length: int | None = Field(
        None,
        ge=1,
        description="Longest prompt with its prefix, in tokens (Tables 3, 5); prefixes are drawn among those that fit.",
    )
    learning_rate: float = Field(1e-6, gt=0, le=1, description="Peak learning rate (Table 3).")
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = Field(
        "cosine", description="How the learning rate decays after warm-up (Table 3)."
    )
    warmup_ratio: float = Field(0.1, ge=0, lt=1, description="Share of the steps that warm up (Table 3).")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay (Table 3).")
    epochs: float = Field(1, gt=0, le=1000, description="Passes over the problems (Table 3).")
    batch_size: int = Field(256, ge=2, description="Completions per step, over all devices (Table 3).")
    micro_batch_size: int = Field(4, ge=1, description="Completions a device trains on at once; gradients accumulate.")
    num_generations: int = Field(4, ge=2, description="Completions per prompt, G (Table 3).")
    decoding: Decoding = Field(
        Decoding(temperature=0.9, max_tokens=24576),
        description="How completions are sampled (Table 3).",
    )
    answers: int | None = Field(
        None, ge=1, description="MRT (RL): forced answers of mu per prefix; else G (Algorithm 2, line 9)."
    )
    estimate: Literal["answers", "likelihood"] = Field(
        "answers",
        description="MRT (RL), all but implicit: J from sampled answers, or the probability of the gold answer"
        " (mrt.sampling.likelihood).",
    )
    mu: Literal["policy", "parent"] = Field(
        "policy",
        description="likelihood: the model whose J counts, the one that is trained or the frozen one that it started"
        " from.",
    )
    opening: str = Field(
        ProverSettings.model_fields["opening"].default,
        pattern=r"\\boxed\{$",
        description="likelihood: how mu's answer goes on behind `template.header`; ends in `\\boxed{`.",
    )
    answer_tokens: int = Field(4096, ge=1, description="Longest forced answer of mu, in tokens (Appendix D).")
    mask_truncated: bool = Field(
        False,
        description="Do not learn from completions that `decoding.max_tokens` cuts (TRL's mask_truncated_completions).",
    )
    overlong_buffer: int | None = Field(
        None,
        ge=1,
        description="Last tokens before `decoding.max_tokens` over which the outcome of a completion loses up to 1,"
        " linearly in its length (DAPO, Equation 13).",
    )
    beta: float = Field(0.0, ge=0, description="Weight of the KL divergence to the parent.")
    loss: Literal["grpo", "dapo", "dr_grpo"] = Field("dapo", description="How TRL averages the loss over tokens.")
    bf16: bool = Field(True, description="Autocast to bfloat16 (Table 3).")
    gradient_checkpointing: bool = Field(True, description="Trade compute for memory.")
    gpu_memory_utilization: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Share of each GPU's memory for the engine; Table 3's 0.8 fits only without the trainer.",
    )
    save_steps: int = Field(50, ge=1, description="Steps between checkpoints to resume from.")
    seed: int = Field(0, ge=0, description="Seed of the order of the prompts and of sampling.")

    @model_validator(mode="after")
    def _asks(self) -> Self:
        if self.variant == "implicit" and self.estimate == "likelihood":
            raise ValueError("the implicit variant asks mu nothing: half of each group answers; leave out estimate")
        if self.mu == "parent" and self.estimate == "answers":
            raise ValueError("mu: parent needs estimate: likelihood, as only the policy has an engine to sample from")
        if self.decoding.stop:
            raise ValueError("decoding.stop: completions of RL end by themselves or at max_tokens; leave it out")
        if self.decoding.top_p < 1:
            raise ValueError(
                "decoding.top_p: below 1 completions are drawn from a part of the distribution, but learnt from with"
                " the probabilities of the whole, which biases the gradient; leave it at 1 in RL"
            )
        if (self.overlong_buffer or 0) > self.decoding.max_tokens:
            raise ValueError(
                f"overlong_buffer: {self.overlong_buffer} tokens are more than decoding.max_tokens,"
                f" {self.decoding.max_tokens}; every completion would be punished"
            )
        if not self.decoding.temperature:
            raise ValueError(
                "decoding.temperature: at 0 all completions of a group are alike; RL has nothing to compare"
            )
        return self

    def unread(self, method: str) -> set[str]:
        """The fields that do not affect the weights of a model that is trained by this method."""
        never = self.execution | self.of_prompts
        if method != "mrt_rl":
            return never | self.progress | ({"alpha"} if method == "grpo" else set())
        if self.variant == "implicit":
            return never | self.progress - {"variant"} | {"alpha"}
        of_mu = {"answers", "answer_tokens"} if self.estimate == "likelihood" else {"opening"}
        return never | of_mu | ({"alpha", "centred"} if self.variant == "termination" else set())


class Train(TrainingStage):
    """Train a model by RL with TRL's GRPOTrainer; under `torchrun`, on several processes."""

    prompts: Path = Field(description="Prompts (Parquet), see mrt.training.prompts.")
    method: RLMethod = Field(description="Which reward and advantage.")
    recipe: RL = Field(default_factory=RL, description="Hyperparameters.")
    parameterization: Parameterization = Field(
        default_factory=OpenEnded, description="mrt_rl: how episodes are cut, and what forces an answer."
    )
    task: Choice | None = Field(None, description="The task that judges: its name, or name and settings; else math.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the engine is built.")

    def plugins(self) -> tuple[str, ...]:
        return (reference(self.task),)

    def cli_cmd(self) -> None:
        examples, recipe = RL_PROMPTS.read(self.prompts).to_dicts(), self.recipe
        if len(examples) < (groups := recipe.batch_size // recipe.num_generations):
            raise ValueError(
                f"{self.prompts}: a step takes {groups} prompts, and there are {len(examples)}; lower batch_size"
            )
        print(in_words("problems", len(examples), groups, recipe.epochs, recipe.warmup_ratio, carried=True), flush=True)
        decisive = (
            slice_of(recipe, recipe.unread(self.method)),
            slice_of(self.parameterization),
            options_of(task=self.task),
        )
        self.make(examples, self.method, *decisive, engine_decides(self.engine))

    def train(self, examples: list[dict[str, Any]], state: Path, made: Path) -> None:
        """Train, or resume, and write `checkpoint`, `history.parquet` and a digest to the folder `made`."""
        random.Random(self.recipe.seed).shuffle(examples)
        asks_parent = self.method == "mrt_rl" and self.recipe.mu == "parent"
        frozen = self.frozen() if asks_parent else None  # before ZeRO-3 shards all that is loaded
        with cpu_vllm(self.engine):
            usual = self.usual(examples, state)
            padded = usual["processing_class"].pad_token is not None
            trainer = self.trainer_class(usual)(
                method=self.method,
                recipe=self.recipe,
                task=task_of(self.task),
                parameterization=self.parameterization,
                frozen=frozen,
                **usual,
            )
            trainer.train(resume_from_checkpoint=last_complete_checkpoint(state))
        if not padded:  # TRL then sets the end token as padding; the saved model does not keep it
            trainer.processing_class.pad_token = None
            for config in (trainer.model.config.get_text_config(), trainer.model.generation_config):
                config.pad_token_id = None
        leave(trainer, trainer.processing_class, state, made)

    def trainer_class(self, usual: dict[str, Any]) -> type:
        """The trainer; where that works, one that reads each prompt once."""
        trainer_class, model, args = make_trainer_class(), usual["model"], usual["args"]
        once = applies(
            model.config.get_text_config(),
            encode(usual["processing_class"], usual["train_dataset"]["prompt"]),
            processes=args.world_size,
            checkpointing=args.gradient_checkpointing,
        )
        return reading_prompts_once(trainer_class) if once else trainer_class

    def frozen(self) -> Any:
        """The model that is trained from, to stay as it is."""
        import torch
        from transformers import AutoModelForCausalLM

        dtype = torch.bfloat16 if self.recipe.bf16 else torch.float32
        return AutoModelForCausalLM.from_pretrained(folder_of(self.model, self.revision), dtype=dtype)

    def usual(self, examples: list[dict[str, Any]], state: Path) -> dict[str, Any]:
        """Arguments of any GRPOTrainer: model, tokenizer, data and TRL's configuration."""
        import torch
        from datasets import Dataset
        from transformers import AutoModelForCausalLM
        from trl import GRPOConfig

        recipe, folder = self.recipe, folder_of(self.model, self.revision)
        micro, accumulation = batches(recipe.batch_size, recipe.micro_batch_size)
        args = GRPOConfig(
            output_dir=str(state),
            learning_rate=recipe.learning_rate,
            lr_scheduler_type=recipe.schedule,
            warmup_steps=recipe.warmup_ratio,
            weight_decay=recipe.weight_decay,
            max_steps=carried_steps_of(len(examples), recipe.batch_size // recipe.num_generations, recipe.epochs),
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=accumulation,
            num_generations=recipe.num_generations,
            temperature=recipe.decoding.temperature,
            max_completion_length=recipe.decoding.max_tokens,
            beta=recipe.beta,
            loss_type=recipe.loss,
            mask_truncated_completions=recipe.mask_truncated,
            # TRL's default weighs a completion by the product of its tokens' ratios, which in bfloat16 is far from 1
            vllm_importance_sampling_mode="token_truncate",
            # divided by the deviation, a penalty would have the same size at any alpha where all of a group are right
            scale_rewards="none" if self.method == "length_penalty" else "group",
            bf16=recipe.bf16,
            gradient_checkpointing=recipe.gradient_checkpointing,
            use_cpu=not accelerator.on_gpu(),
            use_vllm=True,
            vllm_mode="colocate",
            vllm_max_model_length=self.engine.max_model_len,
            vllm_tensor_parallel_size=self.engine.tensor_parallel_size or 1,
            vllm_gpu_memory_utilization=recipe.gpu_memory_utilization,
            save_strategy="steps",
            save_steps=recipe.save_steps,
            save_total_limit=1,
            logging_steps=1,
            report_to=self.reporters(),
            seed=recipe.seed,
            deepspeed=str(self.deepspeed) if self.deepspeed else None,
        )
        join_processes(self.deepspeed, args.use_cpu)
        return {
            "model": AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            "args": args,
            "train_dataset": Dataset.from_list(examples),
            "processing_class": tokenizer_of(folder, padding_side="left"),
        }


if __name__ == "__main__":
    run(Train)
