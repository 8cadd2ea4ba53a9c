"""The stage that trains a model by RL."""

import random
from pathlib import Path
from typing import Any

from pydantic import Field

from mrt.core import accelerator
from mrt.core.artifacts import RL_PROMPTS
from mrt.core.digest import options_of, slice_of
from mrt.core.hub import folder_of, tokenizer_of
from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.episodes.segmentation import ways_of
from mrt.grading.task import Choice, reference, task_of
from mrt.sampling.cache import engine_decides
from mrt.sampling.engine import EngineSettings
from mrt.sampling.tokens import encode
from mrt.training.devices import batches, join_processes
from mrt.training.method import advantages_of, parts_of
from mrt.training.one_card import adapters, load, merge, training
from mrt.training.prompt_cache import applies, reading_prompts_once
from mrt.training.rl.engine import cpu_vllm
from mrt.training.rl.recipe import RL
from mrt.training.rl.trainer import make_trainer_class
from mrt.training.schedule import in_words, too_few
from mrt.training.stage import TrainingStage, keep_on_the_way, last_complete_checkpoint, save_checkpoint, warn
from mrt.training.variant import Variant


class Train(TrainingStage):
    """Train a model by RL with TRL's GRPOTrainer; under `torchrun`, on several processes."""

    prompts: Path = Field(description="Prompts (Parquet), see mrt.training.prompts.")
    method: str = Field(description="The method: a name of mrt/methods, or FILE.py:NAME.")
    recipe: RL = Field(default_factory=RL, description="Hyperparameters.")
    parameterization: Parameterization = Field(
        default_factory=OpenEnded, description="mrt_rl: how episodes are cut, and the text that forces an answer."
    )
    task: Choice | None = Field(
        None, description="The task that judges: its name, or name and settings; by default math."
    )
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the engine is built.")

    @property
    def variant(self) -> Variant:
        """The reward or the advantages that the model is trained by."""
        return advantages_of(self.method, self.recipe.variant)

    def plugins(self) -> tuple[str, ...]:
        parts = parts_of(self.method, self.recipe.variant)
        return (*parts, reference(self.task), *ways_of(self.parameterization))

    def cli_cmd(self) -> None:
        examples, recipe = RL_PROMPTS.read(self.prompts).to_dicts(), self.recipe
        if len(examples) < (groups := recipe.batch_size // recipe.num_generations):
            raise ValueError(
                f"{self.prompts}: a step takes {groups} prompts, and there are {len(examples)}; lower batch_size"
            )
        self.check_engine()
        if recipe.epochs:
            sizes, iterations = (len(examples), groups, recipe.epochs, recipe.warmup_ratio), recipe.num_iterations or 1
            print(in_words("problems", *sizes, carried=True, iterations=iterations), flush=True)
            warn(too_few(recipe.steps(len(examples)), f"{len(examples)} problems"))
        if budget := self.budget:
            print(budget.in_words("problems", len(examples), groups, recipe.warmup_ratio), flush=True)
        decisive = (
            slice_of(recipe, recipe.unread(self.method)),
            slice_of(self.parameterization),
            options_of(task=self.task),
        )
        self.make(examples, self.method, *decisive, engine_decides(self.engine))

    def check_engine(self) -> None:
        """Raise ValueError where the engine cannot be as the recipe wants it, for this variant and on this machine."""
        for field, why in self.recipe.clashes(self.variant):
            raise ValueError(f"recipe.{field}: with the {self.variant.name} variant, {why}")
        if not accelerator.on_gpu() and (needing := self.recipe.for_a_gpu()):
            raise ValueError(f"recipe.{needing}: it needs a GPU, and this training has none")

    def train(self, examples: list[dict[str, Any]], state: Path, made: Path) -> None:
        """Train, or resume, and write `checkpoint`, `history.parquet` and a digest to the folder `made`."""
        random.Random(self.recipe.seed).shuffle(examples)
        asks_parent = self.variant.asks_mu and self.recipe.mu == "parent"
        frozen = self.frozen() if asks_parent else None  # before ZeRO-3 shards all that is loaded
        words = self.recipe.cutting(self.parameterization) if self.variant.cuts else self.parameterization
        with cpu_vllm(self.engine):
            usual = self.usual(examples, state)
            padded = usual["processing_class"].pad_token is not None
            trainer = self.trainer_class(usual)(
                variant=self.variant,
                recipe=self.recipe,
                task=task_of(self.task),
                parameterization=words,
                frozen=frozen,
                **usual,
            )
            trainer.budget = self.budget
            keep_on_the_way(trainer, self.recipe.evaluate_steps, state, folder_of(self.model, self.revision))
            with training(trainer):
                trainer.train(resume_from_checkpoint=last_complete_checkpoint(state))
        merge(trainer, folder_of(self.model, self.revision))
        if not padded:  # TRL then sets the end token as padding; the saved model does not keep it
            trainer.processing_class.pad_token = None
            for config in (trainer.model.config.get_text_config(), trainer.model.generation_config):
                config.pad_token_id = None
        save_checkpoint(trainer, trainer.processing_class, state, made)

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
        from datasets import Dataset
        from trl import GRPOConfig

        recipe, folder = self.recipe, folder_of(self.model, self.revision)
        micro, accumulation = batches(recipe.batch_size, recipe.micro_batch_size)
        args = GRPOConfig(
            output_dir=str(state),
            learning_rate=recipe.learning_rate,
            lr_scheduler_type=recipe.schedule,
            warmup_steps=recipe.warmup_ratio,
            weight_decay=recipe.weight_decay,
            max_steps=recipe.steps(len(examples)),
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=accumulation,
            num_generations=recipe.num_generations,
            temperature=recipe.decoding.temperature,
            max_completion_length=recipe.decoding.max_tokens,
            beta=recipe.beta,
            loss_type=recipe.loss,
            mask_truncated_completions=recipe.mask_truncated,
            # divided by the deviation, a penalty would have the same size at any alpha where all of a group are right
            scale_rewards="none" if self.variant.gives == "centred rewards" else "group",
            bf16=recipe.bf16,
            gradient_checkpointing=recipe.gradient_checkpointing,
            use_cpu=not accelerator.on_gpu(),
            use_vllm=True,
            vllm_max_model_length=self.engine.max_model_len,
            vllm_tensor_parallel_size=self.engine.tensor_parallel_size or 1,
            **recipe.for_trl(),
            vllm_gpu_memory_utilization=recipe.gpu_memory_utilization,
            save_strategy="steps",
            save_steps=recipe.saved_every,
            save_total_limit=1,
            logging_steps=1,
            report_to=self.reporters(),
            seed=recipe.seed,
            deepspeed=str(self.deepspeed) if self.deepspeed else None,
            **({"optim": recipe.optim} if recipe.optim else {}),
        )
        join_processes(self.deepspeed, args.use_cpu)
        model = load(folder, recipe)
        return {
            "model": model,
            "peft_config": adapters(model, recipe.lora),
            "args": args,
            "train_dataset": Dataset.from_list(examples),
            "processing_class": tokenizer_of(folder, padding_side="left"),
        }
