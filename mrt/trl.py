"""MRT (RL) beside TRL: `MRTConfig` is TRL's GRPOConfig with the settings of progress, `MRTTrainer` its GRPOTrainer.

    from mrt.trl import MRTConfig, MRTTrainer

    trainer = MRTTrainer("Qwen/Qwen3-0.6B", MRTConfig("out", variant="per_episode"), train_dataset)
    trainer.train()

The trainer is the workflow's (mrt.training.rl.trainer). Both classes are made when they are first read, since importing
TRL takes seconds. docs/api.md describes them.
"""

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from mrt.core import accelerator
from mrt.core.hub import folder_of, tokenizer_of
from mrt.episodes.parameterization import OpenEnded, Segmentation, Template
from mrt.episodes.thinking import THINK, Thinking, in_prompt, last_tag, left_open, of_template, shown_in
from mrt.grading.task import Choice, Task, golds_of, scores, task_of
from mrt.sampling.engine import Decoding, EngineSettings
from mrt.sampling.prompt import Chat
from mrt.training.method import VARIANTS
from mrt.training.prompts import continued
from mrt.training.rl.engine import cpu_vllm
from mrt.training.rl.recipe import RL
from mrt.training.rl.trainer import make_trainer_class
from mrt.training.variant import Group, Variant, variant

__all__ = ["Group", "MRTConfig", "MRTTrainer", "variant"]

MRTConfig: Any  # both: see __getattr__
MRTTrainer: Any
OF_RECIPE = (  # fields of RL that GRPOConfig has under no name
    *("variant", "settings", "alpha", "centred", "answers", "estimate", "mu", "opening", "answer_tokens"),
    *("budgets", "overlong_buffer"),
)
HELP = {name: RL.model_fields[name].description or "" for name in OF_RECIPE} | {
    "segmentation": "How thoughts are cut into episodes, by name: `by`, `min_steps`, `max_episodes`, `markers`.",
    "template": "Texts that force an answer after a prefix, by name: `stop`, `close`, `header`.",
    "thinking": "How the model writes thoughts. auto: as its chat template or the first prompt shows; none: it writes"
    " none; or the texts that open and close a thought, `{open: ..., close: ...}`.",
}
GIVEN_AS_JSON = ("settings", "segmentation", "template", "thinking")  # on a command line
BIASED = "completions would be drawn from another distribution than they are learnt from, which biases the gradient"
NEEDED: dict[str, tuple[Any, str]] = {  # fields of GRPOConfig with the one value that works, and the reason
    "use_vllm": (True, "mu answers from the engine that samples"),
    "vllm_mode": ("colocate", "mu answers from the engine in this process"),
    "vllm_enable_sleep_mode": (False, "mu answers after sampling, when the engine would sleep"),
    "vllm_importance_sampling_correction": (True, "without it no step shows whether the engine has the new weights"),
    "top_p": (1.0, BIASED),
    "top_k": (0, BIASED),
    "min_p": (None, BIASED),
    "repetition_penalty": (1.0, BIASED),
    "generation_kwargs": (None, BIASED),
    "shuffle_dataset": (True, "problems are carried over from one shuffled epoch to the next"),
}


def __getattr__(name: str) -> Any:
    if name in ("MRTConfig", "MRTTrainer"):
        return mrt_config() if name == "MRTConfig" else mrt_trainer()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def of_recipe(name: str) -> Any:
    """A field of a dataclass with the default and the description that the recipe of RL has."""
    return field(default=RL.model_fields[name].default, metadata={"help": HELP[name]})


@cache
def mrt_config() -> type:
    """`MRTConfig`; a function because importing TRL takes seconds."""
    from trl import GRPOConfig

    names = "\n".join(f"        {name}:\n            {text}" for name, text in HELP.items())

    @dataclass
    class MRTConfig(GRPOConfig):
        __qualname__ = "MRTConfig"  # so that it can be saved beside a checkpoint
        __doc__ = (
            "Configuration of [`MRTTrainer`]: the arguments of TRL's [`GRPOConfig`], and these.\n\n"
            f"    > Parameters of MRT\n\n{names}\n\n"
            "    Two defaults differ: `use_vllm` is on, and importance ratios are cut token by token\n"
            "    (`vllm_importance_sampling_mode`). Without a GPU `use_cpu` is on, and `bf16` is off by default.\n\n"
            "    Raises ValueError for a value that the trainer cannot use, with the reason."
        )

        variant: str = of_recipe("variant")
        settings: dict[str, Any] | str | None = field(default=None, metadata={"help": HELP["settings"]})
        alpha: float = of_recipe("alpha")
        centred: bool = of_recipe("centred")
        answers: int | None = of_recipe("answers")
        estimate: Literal["answers", "likelihood"] = of_recipe("estimate")
        mu: Literal["policy", "parent"] = of_recipe("mu")
        opening: str = of_recipe("opening")
        answer_tokens: int = of_recipe("answer_tokens")
        budgets: int = of_recipe("budgets")
        overlong_buffer: int | None = of_recipe("overlong_buffer")
        segmentation: dict[str, Any] | str | None = field(default=None, metadata={"help": HELP["segmentation"]})
        template: dict[str, Any] | str | None = field(default=None, metadata={"help": HELP["template"]})
        thinking: dict[str, Any] | str | None = field(default="auto", metadata={"help": HELP["thinking"]})
        use_vllm: bool = field(default=True, metadata={"help": "Sample with vLLM; MRTTrainer needs it."})
        vllm_importance_sampling_mode: str = field(
            default="token_truncate", metadata={"help": "How TRL corrects for the engine's rounding (docs/rl.md)."}
        )

        def __post_init__(self) -> None:
            for name in GIVEN_AS_JSON:
                value = getattr(self, name)
                setattr(self, name, json.loads(value) if isinstance(value, str) and value[:1] == "{" else value)
            self.use_cpu = self.use_cpu or not accelerator.on_gpu()  # type: ignore[has-type]
            if self.bf16 is None and self.use_cpu:  # type: ignore[has-type]
                self.bf16 = False  # as the engine: it computes in float32 there
            super().__post_init__()
            for name, (value, why) in NEEDED.items():
                if getattr(self, name) != value:
                    raise ValueError(f"MRTConfig: {name} has to be {value!r}, not {getattr(self, name)!r}: {why}")
            recipe_of(self)

    return MRTConfig


def recipe_of(args: Any) -> RL:
    """The recipe of RL in an `MRTConfig`, as far as the trainer reads it. Raises ValueError if it is none."""
    return RL(
        **{name: getattr(args, name) for name in OF_RECIPE},
        num_generations=args.num_generations,
        decoding=Decoding(temperature=args.temperature, max_tokens=args.max_completion_length),
        seed=args.seed,
        **({"loss": args.loss_type} if args.loss_type in ("grpo", "dapo", "dr_grpo") else {}),
    )


def thinking_of(choice: Any, tokenizer: Any, prompt: Any) -> Thinking | None:
    """How a model writes thoughts, by `MRTConfig.thinking`; `prompt` is the first of the dataset."""
    if choice not in (None, "auto"):
        return None if choice == "none" else Thinking.model_validate(choice)
    shown = [of_template(tokenizer.get_chat_template())] if getattr(tokenizer, "chat_template", None) else []
    return next(filter(None, [*shown, *(shown_in("", prompt) if isinstance(prompt, str) else [])]), None)


def chat_of(prompt: Any, tokenizer: Any, thinking: Thinking | None, arguments: Mapping[str, Any]) -> Chat:
    """A prompt of a dataset as TRL renders it, a text or messages, and whether it leaves a thought open.

    Raises ValueError if that cannot be known, or if the template drops the last message or closes the thought itself.
    So it does if a thought of another kind than the model's is open.
    """
    if isinstance(prompt, str):
        text, last = prompt, in_prompt(prompt, thinking) if thinking else None
        others = [kind for kind in shown_in("", prompt) if kind != thinking and in_prompt(prompt, kind) == "opens"]
        other = others[0].opening if others else None
    else:
        message, content = prompt[-1], str(prompt[-1]["content"]).strip()
        if message["role"] == "assistant":
            raise ValueError("the last message is the assistant's; put the beginning of a thought into `prefix_text`")
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **arguments)
        if content not in text:
            raise ValueError(f"the chat template drops the last message, {content[:60]!r}")
        tail = text.rpartition(content)[2]
        last = last_tag(tail, thinking)
        other = left_open(tail, thinking if last == "opens" else None)
    if other:
        raise ValueError(
            f"the prompt opens a thought with {other!r}, but the model"
            f" {f'thinks in {thinking.opening!r}' if thinking else 'writes no thoughts'}; set MRTConfig's `thinking`"
        )
    if last == "may open":
        raise ValueError("a tag may open a thought or belong to the question; add a column `inside`, true or false")
    if last == "closes":
        raise ValueError(
            f"the prompt closes the thought itself: it ends in {text[-60:]!r}. Switch thinking on"
            " (chat_template_kwargs={'enable_thinking': True}), or set MRTConfig's thinking='none'"
        )
    return Chat(text, last == "opens")


def rows_of(dataset: Iterable[Mapping[str, Any]], tokenizer: Any, args: Any, task: Task) -> list[dict[str, Any]]:
    """The columns that the trainer reads, of each row of a dataset. Raises ValueError, which names the row."""
    rows: list[dict[str, Any]] = []
    thinking, words = None, OpenEnded()
    columns = task.columns if type(task).posed is Task.posed else ()  # rows that `posed` made may lack the source's
    for number, given in enumerate(dataset):
        try:
            if lacking := [name for name in ("prompt", "answer", *columns) if given.get(name) is None]:
                raise ValueError(f"no {' and no '.join(lacking)}; its columns are {', '.join(given)}")
            problem = {"id": str(number), **given, "answer": str(given["answer"])}
            prompt = problem.pop("prompt")
            if not rows:
                thinking = thinking_of(args.thinking, tokenizer, prompt)
                words = OpenEnded(template=Template(**args.template or {})).of(thinking)
                scores(task, [problem["answer"]], [problem])  # whether the task has all columns that it reads
                if args.estimate == "likelihood":
                    golds_of(task, problem)
            if given.get("inside") is None:
                chat = chat_of(prompt, tokenizer, thinking, args.chat_template_kwargs or {})
            elif isinstance(prompt, str):
                chat = Chat(prompt, bool(given["inside"]))
            else:
                raise ValueError("`inside` is for prompts that are texts; of messages it follows from the template")
            row = continued(chat, given.get("prefix_text") or "", words, thinking)
            rows.append({**row, "answer": problem["answer"], "row": json.dumps(problem, default=str)})
        except KeyError as error:
            kind = type(task)
            raise ValueError(
                f"row {number} of the dataset: the task {kind.__name__} reads {error}, as `posed(row)` of"
                f" {kind.__module__}.{kind.__name__}() has it"
            ) from error
        except ValueError as error:
            raise ValueError(f"row {number} of the dataset: {error}") from error
    if not rows:
        raise ValueError("the dataset has no rows")
    return rows


def frozen_of(model: Any, args: Any) -> Any:
    """The model before training, to stay as it is (`mu: parent`)."""
    import torch
    from transformers import AutoModelForCausalLM

    if not isinstance(model, str):
        return deepcopy(model)
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    return AutoModelForCausalLM.from_pretrained(model, **{"dtype": dtype, **(args.model_init_kwargs or {})})


@cache
def mrt_trainer() -> type:
    """`MRTTrainer`; a function because importing TRL takes seconds."""
    from datasets import Dataset

    trainer_class: Any = make_trainer_class()

    class OnDatasets(trainer_class):
        """Trains a model by GRPO with rewards or advantages of progress (Sections 6.2, 7.1; docs/rl.md).

        Args:
            model: a checkpoint folder, a hub id, or a causal language model of transformers.
            args: an `MRTConfig`; by default one that writes to `NAME-MRT`.
            train_dataset: a sized dataset with `prompt`, a text or messages, and `answer`, the gold answer. Optional
                columns: `prefix_text`, episodes of a thought that the completion continues; `inside`, whether a prompt
                leaves a thought open; and those that the task reads.
            eval_dataset: one like it, or several by name.
            processing_class: a tokenizer; by default the model's.
            task: decides which answers are right: a name, name and settings, or a task; by default `math`.
            variant: a function with the decorator `variant`, which replaces `args.variant`; its parameters are fields
                of MRTConfig or have defaults.
            options: further arguments of GRPOTrainer: `callbacks`, `optimizers`, `peft_config`.

        Raises:
            ValueError: a row of the dataset, with its number and the reason; a setting that the variant lacks.
        """

        def __init__(
            self,
            model: Any,
            args: Any = None,
            train_dataset: Any = None,
            eval_dataset: Any = None,
            processing_class: Any = None,
            *,
            task: Choice | Task | None = None,
            variant: Variant | None = None,
            **options: Any,
        ) -> None:
            model = str(model) if isinstance(model, Path) else model
            name = model if isinstance(model, str) else model.name_or_path
            args = args or mrt_config()(f"{Path(name).name}-MRT")
            judge = task if isinstance(task, Task) else task_of(task)
            recipe = recipe_of(args)
            chosen = VARIANTS.find(recipe.variant) if variant is None else variant
            if not isinstance(chosen, Variant):
                raise ValueError(f"variant: {chosen!r} lacks the decorator mrt.trl.variant")
            chosen.check(RL.model_fields, recipe.settings or {})
            for setting, why in chosen.refuses(recipe):
                raise ValueError(f"MRTConfig: {'loss_type' if setting == 'loss' else setting}: {why}")
            tokenizer = processing_class or tokenizer_of(folder_of(name), padding_side="left")
            if chosen.gives == "centred rewards":  # which a division by the group's deviation would undo
                args.scale_rewards = "none"

            def read(dataset: Any) -> Any:
                if isinstance(dataset, dict):
                    return {each: read(part) for each, part in dataset.items()}
                return None if dataset is None else Dataset.from_list(rows_of(dataset, tokenizer, args, judge))

            if train_dataset is None:
                raise ValueError("MRTTrainer: it needs a train_dataset with the columns prompt and answer")
            rows = read(train_dataset)
            thinking = rows[0]["thinking"]
            with cpu_vllm(EngineSettings()):
                super().__init__(
                    variant=chosen,
                    recipe=recipe,
                    task=judge,
                    parameterization=OpenEnded(
                        segmentation=Segmentation(**args.segmentation or {}),
                        template=Template(**args.template or {}),
                        thinking=Thinking.model_validate_json(thinking) if thinking else THINK,
                    ),
                    frozen=frozen_of(model, args) if chosen.asks_mu and recipe.mu == "parent" else None,
                    model=model,
                    args=args,
                    train_dataset=rows,
                    eval_dataset=read(eval_dataset),
                    processing_class=tokenizer,
                    **options,
                )

        def train(self, *arguments: Any, **options: Any) -> Any:
            """Train; the arguments are those of transformers' `Trainer.train`, the result is its TrainOutput."""
            with cpu_vllm(EngineSettings()):
                return super().train(*arguments, **options)

        def evaluate(self, *arguments: Any, **options: Any) -> Any:
            """Evaluate; the arguments are those of transformers' `Trainer.evaluate`, the result is its metrics."""
            with cpu_vllm(EngineSettings()):
                return super().evaluate(*arguments, **options)

    return type("MRTTrainer", (OnDatasets,), {"__doc__": OnDatasets.__doc__, "__module__": __name__})
