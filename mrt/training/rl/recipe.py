"""The recipe of RL: its hyperparameters, and which of them a method reads."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from mrt.sampling.engine import Decoding
from mrt.sampling.prover import ProverSettings
from mrt.training.method import advantages_of, is_chosen_by_recipe, one_of, variant_named, variants
from mrt.training.one_card import OneCard


class RL(OneCard):
    """Hyperparameters of RL; the defaults are Table 3's, or TRL's where the table gives none."""

    execution: ClassVar = {"save_steps", "gpu_memory_utilization"}  # fields that do not affect the weights
    of_prompts: ClassVar = {"prefixes", "least_prefix", "max_prompt_length"}  # which are read, and count, as prompts
    of_variants: ClassVar = {"alpha", "centred"}  # which only variants read that have a parameter of this name
    of_mu: ClassVar = {"answers", "estimate", "mu", "opening", "answer_tokens"}  # of variants that ask it

    variant: str = Field(
        "explicit",
        description="How MRT (RL) rewards progress (Section 6.2; Figure 6 shows the implicit one; the authors' code"
        " has `termination`); or `FILE.py:NAME`, a function of yours (docs/your_own.md).",
        json_schema_extra=one_of(variants),
    )
    settings: dict[str, Any] | None = Field(
        None, description="Values of parameters that a variant has and that are no fields of this table."
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

    @model_validator(mode="after")
    def _samples_what_it_trains(self) -> Self:
        if self.lora and self.lora.dropout:
            raise ValueError(
                "lora.dropout: the engine samples without it, so that its probabilities would not be those that are"
                " learnt with; leave it at 0 in RL"
            )
        return self

    def unread(self, method: str) -> set[str]:
        """The fields that do not affect the weights of a model that is trained by this method."""
        variant = advantages_of(method, self.variant)
        unread = self.execution | self.of_prompts | self.of_variants - set(variant.parameters)
        if not variant.asks_mu:
            unread |= self.of_mu
        else:
            unread |= {"answers", "answer_tokens"} if self.estimate == "likelihood" else {"opening"}
        return unread if is_chosen_by_recipe(method) else unread | {"variant", "settings"}

    def values(self) -> dict[str, Any]:
        """What a variant may read, by name."""
        return {**dict(self), **(self.settings or {})}
