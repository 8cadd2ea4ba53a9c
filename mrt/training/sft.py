"""Supervised fine-tuning on a training set: the training half of STaR and MRT (STaR) (Algorithm 1, line 13; Table 2).

    python -m mrt.training.sft --model results/base --set results/sets/star_1.parquet --out results/models/star_1 \\
        --history history.parquet --state state

An example is a prompt and a completion. The loss is the mean negative log-likelihood of the completion's tokens and the
token by which the model ends (`ends_of`), never of the prompt's. With `weighted`, each example's tokens count by its
weight (progress, Appendix B.2). Trainer state lives in `--state`, outside the output, so that a killed run resumes from
its last complete checkpoint; the output folder appears whole, or not at all.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from mrt.core import accelerator
from mrt.core.artifacts import SET
from mrt.core.cli import run
from mrt.core.digest import slice_of
from mrt.core.hub import ends_of, folder_of, tokenizer_of
from mrt.core.storage import read_table
from mrt.sampling.tokens import encode, encode_completions
from mrt.training.budget import UNBOUNDED, Budget, Budgeted, EndsOnBudget
from mrt.training.devices import batches, join_processes
from mrt.training.flops import Counts, Sizes
from mrt.training.one_card import adapters, load, merge, training
from mrt.training.schedule import LEAST_RATE, EveryStepLearns, Steps, in_words, steps_of, too_few
from mrt.training.stage import (
    EndsOnce,
    TrainingStage,
    keep_on_the_way,
    last_complete_checkpoint,
    save_checkpoint,
    show_progress,
    warn,
)

TRAINED_ON = ("prompt", "completion", "weight")


class SFT(Budgeted):
    """Hyperparameters of supervised fine-tuning; the defaults are Table 2's."""

    execution: ClassVar = {"save_steps", "small_set"}  # fields that do not affect the weights

    learning_rate: float = Field(1e-6, ge=LEAST_RATE, le=1, description="Peak learning rate (Table 2).")
    epochs: float | None = Field(3, gt=0, le=1000, description="Passes over the training set (Table 2).")
    batch_size: int = Field(256, ge=1, le=1_000_000, description="Examples per step, over all devices (Table 2).")
    small_set: Literal["shrink", "refuse"] = Field(
        "shrink",
        description="Handling of a set smaller than `batch_size`. With `shrink` each step takes all examples."
        " With `refuse` the training stops before its first step, or before any job if the"
        " configuration shows the size.",
    )
    micro_batch_size: int = Field(4, ge=1, description="Examples a device trains on at once; gradients accumulate.")
    max_length: int = Field(
        16384, ge=8, le=10_000_000, description="Longest example in tokens (Table 2); longer ones are dropped."
    )
    warmup_ratio: float = Field(0.1, ge=0, lt=1, description="Share of the steps that warm up (Table 2).")
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = Field(
        "linear", description="How the learning rate decays after warm-up (TRL's default; Table 2 names none)."
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay.")
    adam_beta2: float = Field(0.999, gt=0, lt=1, description="AdamW's second-moment decay.")
    bf16: bool = Field(True, description="Autocast to bfloat16 (Table 2).")
    gradient_checkpointing: bool = Field(
        True, description="Recompute activations in the backward pass, which saves memory (Table 2)."
    )
    weighted: bool = Field(False, description="Weight each example's loss by the set's `weight` (Appendix B.2).")
    save_steps: int = Field(200, ge=1, description="Steps between checkpoints to resume from.")
    evaluate_steps: Steps | None = Field(
        None,
        description="Steps whose checkpoints are measured like models, as NAME_step<n> (`snakemake"
        " over_training`). If they change, the model is trained again, to the same weights.",
    )
    seed: int = Field(0, ge=0, description="Seed of shuffling and dropout.")


def tokenize(tokenizer: Any, examples: list[dict[str, Any]], max_length: int) -> tuple[list[dict[str, Any]], int]:
    """Token ids and labels of each example (prompt positions labelled -100), and how many were too long and dropped.

    Prompt and completion are encoded apart, as the sampling engine saw them: a prompt, then the tokens it generated.
    Ids and labels have 32 bits: every process of a training holds all of them.
    """
    rows, end = [], ends_of(tokenizer)[0]
    prompts = encode(tokenizer, (e["prompt"] for e in examples))
    completions = encode_completions(tokenizer, (e["completion"] for e in examples))
    for example, prompt, completion in zip(examples, prompts, completions, strict=True):
        ids = np.array([*prompt, *completion, end], dtype=np.int32)
        if len(ids) <= max_length:
            labels = np.where(np.arange(len(ids)) < len(prompt), np.int32(-100), ids)
            rows.append({"input_ids": ids, "labels": labels, "loss_weight": float(example["weight"])})
    return rows, len(examples) - len(rows)


def bucketed_order(lengths: Sequence[int], batch: int, seed: int) -> list[int]:
    """A shuffled order in which the examples of one batch have similar lengths, so that there is little padding.

    Batches are shuffled too. If they were sorted by length, as by `group_by_length` of transformers, the last batches
    of an epoch would all be short, and the model would learn to stop early.
    """
    rng = random.Random(seed)
    order = list(range(len(lengths)))
    rng.shuffle(order)
    width = 50 * batch
    megabatches = (sorted(order[i : i + width], key=lambda j: lengths[j]) for i in range(0, len(order), width))
    batches = [mega[i : i + batch] for mega in megabatches for i in range(0, len(mega), batch)]
    rng.shuffle(batches)
    batches.sort(key=lambda b: len(b) < batch)  # an incomplete batch stays last
    return [j for b in batches for j in b]


def arguments(recipe: SFT, state: Path, report_to: Sequence[str] = (), deepspeed: Path | None = None) -> Any:
    """TRL's configuration; also joins the processes of a distributed run.

    Build it before loading the model, and keep a reference: ZeRO-3 then shards the model over the processes on loading.
    """
    from trl import SFTConfig

    cpu = not accelerator.on_gpu()
    micro, accumulation = batches(recipe.batch_size, recipe.micro_batch_size)
    args = SFTConfig(
        output_dir=str(state),
        learning_rate=recipe.learning_rate,
        **({"num_train_epochs": recipe.epochs} if recipe.epochs else {"max_steps": UNBOUNDED}),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        max_length=recipe.max_length,
        warmup_steps=recipe.warmup_ratio,
        lr_scheduler_type=recipe.schedule,
        weight_decay=recipe.weight_decay,
        adam_beta2=recipe.adam_beta2,
        **({"optim": recipe.optim} if recipe.optim else {}),
        bf16=recipe.bf16,
        gradient_checkpointing=recipe.gradient_checkpointing,
        save_strategy="steps",
        save_steps=recipe.save_steps,
        save_total_limit=1,
        logging_steps=1,
        report_to=list(report_to),
        use_cpu=cpu,
        seed=recipe.seed,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,  # the collator reads `loss_weight`
        deepspeed=str(deepspeed) if deepspeed else None,
    )
    join_processes(deepspeed, cpu)
    return args


def make_trainer(
    model: Any, tokenizer: Any, rows: list[dict[str, Any]], recipe: SFT, args: Any, budget: Budget | None = None
) -> Any:
    """TRL's SFTTrainer on tokenized rows, with the loss weights of Appendix B.2 if the recipe is `weighted`."""
    import torch
    from datasets import Dataset, Features, List, Value
    from trl import SFTTrainer
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    class Collator(DataCollatorForLanguageModeling):
        def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super().torch_call(examples)
            if recipe.weighted:
                batch["loss_weight"] = torch.tensor([e["loss_weight"] for e in examples])
            return batch

    class Buckets:
        """Sampler in `bucketed_order`, a new order each epoch; a resumed run has the same orders.

        It calls `epoch`, because `set_epoch` is not passed on through the samplers that skip batches and split them
        over processes.
        """

        def __init__(self, epoch: Callable[[], int]) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return len(lengths)

        def __iter__(self) -> Iterator[int]:
            # not by `micro`: a step has the same examples on any number of devices
            return iter(bucketed_order(lengths, recipe.micro_batch_size, recipe.seed + self.epoch()))

    lengths = [len(row["input_ids"]) for row in rows]
    ids = List(Value("int32"))
    features = Features({"input_ids": ids, "labels": ids, "loss_weight": Value("float64")})
    counts = Counts("trained_tokens", "flops")
    step = {"nats": 0.0, "tokens": 0}  # trained on by this process since the last log entry, unweighted

    class Trainer(EndsOnBudget, EndsOnce, EveryStepLearns, SFTTrainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return Buckets(lambda: int(self.state.epoch or 0))

        def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            outputs, again = int((inputs["labels"][:, 1:] != -100).sum()), self.args.gradient_checkpointing
            rows, length = inputs["input_ids"].shape
            spent = sizes.training(rows, length, outputs, backward=True, checkpointing=again)
            counts.add(trained_tokens=int(inputs["attention_mask"].sum()), flops=spent)
            weight = inputs.pop("loss_weight", None)

            def unmasked(**forward: Any) -> Any:
                """The model without a mask: padding ends a row, and causal attention never reads ahead.

                A mask of T x T in each layer would keep attention from its fast kernels. A router's loss counts tokens
                by the mask, and keeps it.
                """
                if not self.aux_loss_enabled:
                    del forward["attention_mask"]
                result = model(**forward)
                if weight is not None:
                    step["nats"] -= float(result.log_probs.detach().sum())
                    step["tokens"] += outputs
                    result.log_probs = result.log_probs * weight[:, None]
                return result

            return super().compute_loss(unmasked, inputs, *args, **kwargs)

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            if recipe.weighted and "loss" in logs:
                totals = torch.tensor(list(step.values()), dtype=torch.float64, device=self.accelerator.device)
                nats, tokens = self.accelerator.reduce(totals, reduction="sum").tolist()
                logs["nll"] = nats / tokens
                step.update(nats=0.0, tokens=0)
            super().log({**logs, **counts.totals(self)}, start_time)

    # padding carries no loss; a tokenizer without a padding token, such as Llama 3.1's, is left as it is
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    trainer = Trainer(
        model,
        args=args,
        train_dataset=Dataset.from_list(rows, features=features),
        processing_class=tokenizer,
        data_collator=Collator(pad_token_id=padding),
        peft_config=adapters(model, recipe.lora),
    )
    sizes = Sizes.of(trainer.model)
    trainer.budget, trainer.spent = budget, counts
    show_progress(trainer)
    return trainer


class Train(TrainingStage):
    """Fine-tune a model on a training set with TRL's SFTTrainer; under `torchrun`, on several processes."""

    set: Path = Field(description="Training set (Parquet): prompt, completion, weight.")
    earlier: list[Path] = Field(
        [], description="Sets of earlier iterations, to which this one is added (Algorithm 1, line 10)."
    )
    recipe: SFT = Field(default_factory=SFT, description="Hyperparameters.")

    def cli_cmd(self) -> None:
        columns = {name: SET.columns[name] for name in TRAINED_ON}
        examples = [
            row for path in (*self.earlier, self.set) for row in read_table(path, columns).iter_rows(named=True)
        ]
        if not examples:
            raise ValueError(f"{self.set}: the training set is empty; loosen its filter rules or sample more problems")
        self.make(examples, slice_of(self.recipe, without=self.recipe.execution))

    def train(self, examples: list[dict[str, Any]], state: Path, made: Path) -> None:
        """Train, or resume, and write `checkpoint`, `history.parquet` and a digest to the folder `made`."""
        import torch

        torch.manual_seed(self.recipe.seed)
        folder = folder_of(self.model, self.revision)
        tokenizer = tokenizer_of(folder)
        rows, dropped = tokenize(tokenizer, examples, self.recipe.max_length)
        print(f"{len(rows)} examples, {dropped} dropped as longer than {self.recipe.max_length} tokens", flush=True)
        if not rows:
            raise ValueError(f"{self.set}: all examples are longer than recipe.max_length; raise it")
        recipe, count = self.recipe, len(rows)
        if recipe.small_set == "refuse" and count < recipe.batch_size:
            wrong = f"{self.set}: a step takes {recipe.batch_size} examples, and there are {count}"
            raise ValueError(f"{wrong}; lower recipe.batch_size, or set recipe.small_set: shrink")
        if recipe.epochs:
            print(in_words("examples", count, recipe.batch_size, recipe.epochs, recipe.warmup_ratio), flush=True)
            warn(too_few(steps_of(count, recipe.batch_size, recipe.epochs), f"{count} examples"))
        if budget := self.budget:
            print(budget.in_words("examples", count, min(count, recipe.batch_size), recipe.warmup_ratio), flush=True)
        args = arguments(self.recipe, state, self.reporters(), self.deepspeed)
        trainer = make_trainer(load(folder, recipe), tokenizer, rows, recipe, args, budget)
        del rows  # the trainer has its own copy
        keep_on_the_way(trainer, recipe.evaluate_steps, state, folder)
        with training(trainer):
            trainer.train(resume_from_checkpoint=last_complete_checkpoint(state))
        merge(trainer, folder)
        save_checkpoint(trainer, tokenizer, state, made)


if __name__ == "__main__":
    run(Train)
