"""The recipe of RL: its hyperparameters, and which of them a method reads.

- A cut completion is graded like any other, and trained on. With `mask_truncated` nothing is learnt from it, but it
  counts in the group's mean and deviation. `overlong_buffer: L` costs nothing up to `max_tokens` - L tokens, then
  linearly more, and 1 at `max_tokens`. It changes the outcome alone; J and progress stay. Of the two, only this penalty
  makes a model finish earlier.
- `num_iterations: n` makes n steps of each batch of completions. `epochs` still counts passes over the problems.
  Advantages, J and the probabilities that ratios refer to are computed once a batch.
- Correcting the engine: `token_truncate` cuts each token's ratio at `vllm_importance_sampling_clip_max`; `token_mask`
  leaves out tokens beyond it. `sequence_truncate` and `sequence_mask` do so with the product over a completion. `none`
  weighs all by 1; the log still shows the ratio.
- Sleep mode (never run) discards the engine's weights between generations. Memory is planned as without it.
- A server (never run) gets a whole group as one request, without seeds: a training that resumes samples other
  completions, and `seed` decides the order of the problems alone. `mrt plan` does not count its GPUs.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from mrt.episodes.parameterization import OpenEnded, Parameterization
from mrt.episodes.segmentation import ways_of
from mrt.sampling.engine import Decoding
from mrt.sampling.prover import ProverSettings
from mrt.training.budget import UNBOUNDED, Budgeted
from mrt.training.method import advantages_of, is_chosen_by_recipe, one_of, variant_named, variants
from mrt.training.schedule import LEAST_RATE, Steps, carried_steps_of
from mrt.training.variant import Variant

ONE_RATIO = (
    "sequence: the one ratio of a completion would credit each of its tokens with the mean of their advantages; leave"
    " it out where tokens have advantages of their own"
)
BIASING = ("top_k", "min_p")
BIAS = (
    "completions are drawn from a part of the distribution, but learnt from with the probabilities of the whole, which"
    " biases the gradient"
)


class RL(Budgeted):
    """Hyperparameters of RL; the defaults are Table 3's, or TRL's where the table gives none."""

    execution: ClassVar = {  # fields that do not affect the weights
        *("save_steps", "gpu_memory_utilization", "vllm_enable_sleep_mode"),
        *("vllm_server_host", "vllm_server_port", "vllm_group_port"),
    }
    of_prompts: ClassVar = {  # which are read, and count, as prompts
        *("prefixes", "least_prefix", "max_prompt_length", "pass_rate"),
    }
    of_variants: ClassVar = {"alpha", "centred", "budgets"}  # which only variants with such a parameter read
    of_mu: ClassVar = {"answers", "estimate", "mu", "opening", "answer_tokens"}  # of variants that ask it
    of_reuse: ClassVar = ("epsilon", "epsilon_high", "importance_sampling_level")  # count with num_iterations above 1
    of_server: ClassVar = ("vllm_server_host", "vllm_server_port", "vllm_group_port")
    of_trl: ClassVar = (  # which TRL has by the same name
        *("num_iterations", *of_reuse, "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
        *("vllm_enable_sleep_mode", *of_server),
    )

    variant: str = Field(
        "explicit",
        description="How MRT (RL) rewards progress (Section 6.2). Figure 6 shows `implicit`; the authors' code"
        " has `termination`. Or `FILE.py:NAME`, a function of yours (docs/extend.md).",
        json_schema_extra=one_of(variants),
    )
    settings: dict[str, Any] | None = Field(None, description="Parameters of the variant that are not in this table.")
    alpha: float = Field(
        1.0,
        ge=0,
        le=100,
        description="Weight of progress (Equation 3) in `explicit` and `per_episode`, or of the length penalty.",
    )
    centred: bool = Field(
        False,
        description="`explicit`, `per_episode`: subtract the group's mean from the outcome, but not from"
        " progress; Algorithm 2 subtracts nothing.",
    )
    budgets: int = Field(
        4,
        ge=1,
        le=64,
        description="`budget_relative` (brpo): token budgets, evenly spaced up to `decoding.max_tokens`.",
    )
    max_episodes: int | None = Field(
        None,
        ge=0,
        description="Maximum number of cuts of a completion where credit is by episode, instead of"
        " `segmentation.max_episodes`: 5 gives at most six episodes after the prompt. Prefixes are cut by"
        " `segmentation`.",
    )
    prefixes: float = Field(1.0, ge=0, le=1, description="MRT (RL): share of the problems whose prompt has a prefix.")
    least_prefix: int = Field(
        0,
        ge=0,
        description="Episodes of the parent's trace that every prompt has at least, with any method. 1 for"
        " backtracking: the attempt z_0 (Appendix A.1).",
    )
    max_prompt_length: int | None = Field(
        None,
        ge=1,
        description="Longest prompt with its prefix, in tokens (Tables 3, 5); prefixes are chosen among those"
        " that fit.",
    )
    pass_rate: tuple[float, float] | None = Field(
        None,
        description="Lowest and highest pass rate of a problem to train on: the share of the parent's"
        " `training.samples` completions that are right. Both bounds are included.",
    )
    learning_rate: float = Field(1e-6, ge=LEAST_RATE, le=1, description="Peak learning rate (Table 3).")
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = Field(
        "cosine", description="How the learning rate decays after warm-up (Table 3)."
    )
    warmup_ratio: float = Field(0.1, ge=0, lt=1, description="Share of the steps that warm up (Table 3).")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay (Table 3).")
    epochs: float | None = Field(1, gt=0, le=1000, description="Passes over the problems (Table 3).")
    batch_size: int = Field(256, ge=2, description="Completions per step, over all devices (Table 3).")
    micro_batch_size: int = Field(4, ge=1, description="Completions a device trains on at once; gradients accumulate.")
    num_generations: int = Field(4, ge=2, description="Completions per prompt, G (Table 3).")
    decoding: Decoding = Field(
        Decoding(temperature=0.9, max_tokens=24576),
        description="How completions are sampled (Table 3).",
    )
    answers: int | None = Field(
        None,
        ge=1,
        description="MRT (RL): forced answers of mu at a prefix. vineppo: continuations. By default G (Algorithm"
        " 2, line 9).",
    )
    estimate: Literal["answers", "likelihood"] = Field(
        "answers",
        description="J from sampled answers, or the probability of the gold answer (mrt.sampling.likelihood);"
        " read by `explicit`, `per_episode`, `termination`, `early_exits` and `budget_relative`.",
    )
    mu: Literal["policy", "parent"] = Field(
        "policy",
        description="likelihood: the model that gives J, the trained one (`policy`) or the frozen one that it"
        " started from (`parent`).",
    )
    opening: str = Field(
        ProverSettings.model_fields["opening"].default,
        pattern=r"\\boxed\{$",
        description="likelihood: the text of mu's answer after `template.header`, up to the gold answer; ends in"
        " `\\boxed{`.",
    )
    answer_tokens: int = Field(4096, ge=1, description="Longest forced answer of mu, in tokens (Appendix D).")
    mask_truncated: bool = Field(
        False,
        description="Do not learn from completions that `decoding.max_tokens` truncates (TRL's"
        " mask_truncated_completions).",
    )
    overlong_buffer: int | None = Field(
        None,
        ge=1,
        description="Last tokens before `decoding.max_tokens` over which the outcome of a completion loses up to 1,"
        " linearly in its length (DAPO, Equation 13).",
    )
    num_iterations: int | None = Field(
        None,
        ge=1,
        le=100,
        description="Updates with each batch of completions (TRL's name; mu in GRPO's Algorithm 1); by default"
        " one. A step is an update.",
    )
    epsilon: float | None = Field(
        None, gt=0, le=1, description="num_iterations: ratios are clipped at 1 - epsilon; by default TRL's 0.2."
    )
    epsilon_high: float | None = Field(
        None,
        gt=0,
        le=100,
        description="num_iterations: ratios are clipped at 1 + epsilon_high, by default epsilon; clip-higher"
        " (DAPO, Equation 10, with 0.28).",
    )
    importance_sampling_level: Literal["token", "sequence"] | None = Field(
        None,
        description="num_iterations: `sequence` is one ratio for a completion, the geometric mean of its tokens'"
        " ratios (GSPO, Equation 7, with `loss: grpo`). By default each token has a ratio.",
    )
    dynamic_sampling: int | None = Field(
        None,
        ge=1,
        le=100,
        description="Maximum rounds of generation, in which further problems replace groups whose outcomes are"
        " all alike (DAPO, Equation 11).",
    )
    vllm_importance_sampling_mode: (
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "none"] | None
    ) = Field(
        None,
        description="Correction for differences between the trainer's probabilities and the engine's, by a ratio"
        " for each token or completion (TRL's modes). Ratios beyond the bounds are cut (truncate) or"
        " set to 0 (mask). By default token_truncate; `none` corrects nothing.",
    )
    vllm_importance_sampling_clip_max: float | None = Field(
        None, gt=0, description="Upper bound of these ratios; by default TRL's 3."
    )
    vllm_importance_sampling_clip_min: float | None = Field(
        None, ge=0, description="Lower bound of these ratios; by default none."
    )
    beta: float = Field(0.0, ge=0, description="Weight of the KL divergence to the parent.")
    loss: Literal["grpo", "dapo", "dr_grpo"] = Field("dapo", description="How TRL averages the loss over tokens.")
    bf16: bool = Field(True, description="Autocast to bfloat16 (Table 3).")
    gradient_checkpointing: bool = Field(
        True, description="Recompute activations in the backward pass, which saves memory."
    )
    gpu_memory_utilization: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Share of each GPU's memory for the engine; Table 3's 0.8 fits only without the trainer.",
    )
    vllm_enable_sleep_mode: bool = Field(
        False,
        description="Never run: the engine frees its memory while the trainer learns (TRL; vLLM's sleep mode,"
        " level 2). Needs a GPU.",
    )
    vllm_mode: Literal["colocate", "server"] | None = Field(
        None,
        description="Never run: `server` samples from an engine that `vllm serve` runs; its completions have no"
        " seeds (docs/rl.md). Needs a GPU. By default the engine is in the trainer's process.",
    )
    vllm_server_host: str | None = Field(None, min_length=1, description="server: its host; by default TRL's 0.0.0.0.")
    vllm_server_port: int | None = Field(None, ge=1, le=65535, description="server: its port; by default TRL's 8000.")
    vllm_group_port: int | None = Field(
        None, ge=1, le=65535, description="server: the port over which weights are sent; by default TRL's 51216."
    )
    save_steps: int = Field(
        50,
        ge=1,
        description="Steps between checkpoints to resume from; with num_iterations, up to the next generation.",
    )
    evaluate_steps: Steps | None = Field(
        None,
        description="Steps whose checkpoints are measured like models, as NAME_step<n> (`snakemake"
        " over_training`). If they change, the model is trained again, to the same weights.",
    )
    seed: int = Field(0, ge=0, description="Seed of the order of the prompts and of sampling.")

    @model_validator(mode="before")
    @classmethod
    def _unbiased(cls, given: Any) -> Any:
        decoding = given.get("decoding") if isinstance(given, dict) else None
        if isinstance(decoding, dict) and (biasing := [name for name in BIASING if name in decoding]):
            raise ValueError(f"decoding.{biasing[0]}: {BIAS}; RL has no such setting")
        return given

    @field_validator("variant")
    @classmethod
    def _known(cls, variant: str) -> str:
        variant_named(variant)
        return variant

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        variant = variant_named(self.variant)
        if self.estimate == "likelihood" and not variant.asks_mu:
            how = ": half of each group answers" if variant.asks == "stop" else ""
            raise ValueError(f"the {variant.name} variant asks mu nothing{how}; leave out estimate")
        variant.check(type(self).model_fields, self.settings or {})
        if self.mu == "parent" and self.estimate == "answers":
            raise ValueError("mu: parent needs estimate: likelihood, as only the policy has an engine to sample from")
        if self.decoding.stop:
            raise ValueError("decoding.stop: completions of RL end by themselves or at max_tokens; leave it out")
        if self.decoding.top_p < 1:
            raise ValueError(f"decoding.top_p: below 1 {BIAS}; leave it at 1 in RL")
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

    @field_validator("pass_rate")
    @classmethod
    def _range(cls, rates: tuple[float, float] | None) -> tuple[float, float] | None:
        if rates and not 0 <= rates[0] <= rates[1] <= 1:
            raise ValueError(f"{list(rates)} is no lowest and highest share of right completions, such as [0.1, 0.9]")
        return rates

    @model_validator(mode="after")
    def _samples_what_it_trains(self) -> Self:
        if self.lora and self.lora.dropout:
            raise ValueError(
                "lora.dropout: the engine samples without it, so that its probabilities would not be those that are"
                " learnt with; leave it at 0 in RL"
            )
        return self

    @model_validator(mode="after")
    def _counts(self) -> Self:
        """Refuse settings that would change nothing, or cannot be."""
        for name in self.of_reuse if (self.num_iterations or 1) == 1 else ():
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: with one update for each batch of completions all ratios are 1, and none is clipped; set"
                    " num_iterations to 2 or more"
                )
        low, high = self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        for name, bound in (("clip_min", low), ("clip_max", high)):
            if bound is not None and self.vllm_importance_sampling_mode == "none":
                raise ValueError(f"vllm_importance_sampling_{name}: no ratio is bounded with mode none; leave it out")
        if low is not None and low >= (most := 3.0 if high is None else high):
            raise ValueError(f"vllm_importance_sampling_clip_min: {low:g} is not below clip_max, {most:g}")
        if self.vllm_mode == "server":
            if self.vllm_enable_sleep_mode:
                raise ValueError("vllm_enable_sleep_mode: a server's engine is not in this process; leave one out")
            if self.dynamic_sampling:
                raise ValueError(
                    "dynamic_sampling: TRL asks a server for equally many groups of each process, and what is drawn"
                    " again are few of some; leave out vllm_mode: server"
                )
        elif given := [name for name in self.of_server if getattr(self, name) is not None]:
            raise ValueError(f"{given[0]}: it is read with vllm_mode: server alone")
        return self

    def clashes(self, variant: Variant) -> Iterator[tuple[str, str]]:
        """(field, why) of each field that does not work with a variant."""
        continues = variant.asks == "continuations"
        from_engine = continues or (variant.asks_mu and self.mu == "policy")
        subject = "continuations are sampled" if continues else "mu answers"
        remedy = "leave it out" if continues else "set mu: parent with estimate: likelihood, or leave it out"
        if self.importance_sampling_level == "sequence" and variant.asks_along:
            yield "importance_sampling_level", ONE_RATIO
        if self.vllm_enable_sleep_mode and from_engine:
            why = f"{subject} after the completions are drawn, when the engine sleeps and has no weights"
            yield "vllm_enable_sleep_mode", f"{why}; {remedy}"
        if self.vllm_mode == "server" and from_engine:
            yield "vllm_mode", f"{subject} from the engine in this process, and there is none; {remedy}"
        if variant.asks == "budgets" and self.budgets > self.decoding.max_tokens:
            yield (
                "budgets",
                f"{self.budgets} are more than the {self.decoding.max_tokens} tokens of decoding.max_tokens",
            )
        if self.vllm_mode == "server" and variant.asks == "stop":
            yield "vllm_mode", "TRL asks a server for one prompt a group, and here half of a group has another one"
        yield from variant.refuses(self)

    def for_a_gpu(self) -> str | None:
        """The first field that has no effect, or cannot be, without a GPU; None if all have."""
        fields = ("vllm_enable_sleep_mode", "vllm_mode")
        return next((name for name in fields if getattr(self, name) in (True, "server")), None)

    def cutting(self, words: Parameterization) -> Parameterization:
        """How completions are cut in this training, given how the experiment cuts. The trainer counts `max_episodes`.

        Raises ValueError if `max_episodes` is set where its markers do not cut.
        """
        if self.max_episodes is None:
            return words
        if not isinstance(words, OpenEnded) or ways_of(words):
            raise ValueError("max_episodes: neither attempts nor a function of yours are cut by it; leave it out")
        segmentation = words.segmentation.model_copy(update={"max_episodes": None})
        return words.model_copy(update={"segmentation": segmentation})

    def budget_tokens(self) -> list[int]:
        """Token budgets at which a thought is cut, evenly spaced up to `decoding.max_tokens`."""
        return [self.decoding.max_tokens * k // self.budgets for k in range(1, self.budgets + 1)]

    def steps(self, problems: int) -> int:
        """Steps of a training on this number of problems: updates; with `flops`, more than there can be."""
        if self.epochs is None:
            return UNBOUNDED
        batches = carried_steps_of(problems, self.batch_size // self.num_generations, self.epochs)
        return batches * (self.num_iterations or 1)

    @property
    def saved_every(self) -> int:
        """Steps between checkpoints: whole generations, as TRL's checkpoints have no completions to go on with."""
        iterations = self.num_iterations or 1
        return -(-self.save_steps // iterations) * iterations

    def for_trl(self) -> dict[str, Any]:
        """Arguments of TRL's GRPOConfig that have the same name here."""
        mode = self.vllm_importance_sampling_mode
        # TRL's default weighs a completion by the product of its tokens' ratios, which in bfloat16 is far from 1. With
        # `none` TRL keeps its ratios, as it needs the log-probabilities that `check_fresh` compares
        options: dict[str, Any] = {
            "vllm_importance_sampling_mode": "token_truncate" if mode in (None, "none") else mode
        }
        options["vllm_mode"] = self.vllm_mode or "colocate"
        return options | {name: value for name in self.of_trl if (value := getattr(self, name)) is not None}

    def unread(self, method: str) -> set[str]:
        """The fields that do not affect the weights of a model that is trained by this method."""
        variant = advantages_of(method, self.variant)
        unread = self.execution | self.of_prompts | self.of_variants - set(variant.parameters)
        unread = unread - {"budgets"} if variant.asks == "budgets" else unread
        if not variant.cuts:
            unread |= {"max_episodes"}
        if not variant.asks_mu:
            unread |= self.of_mu - ({"answers"} if variant.asks == "continuations" else set())
        else:
            unread |= {"answers", "answer_tokens"} if self.estimate == "likelihood" else {"opening"}
        return unread if is_chosen_by_recipe(method) else unread | {"variant", "settings"}

    def values(self) -> dict[str, Any]:
        """The settings that a variant may read, by name."""
        return {**dict(self), **(self.settings or {})}
