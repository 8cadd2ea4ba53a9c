"""The sections of a `config.yaml`: models, training, evaluation, what to expect."""

from collections.abc import Callable
from math import comb
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from mrt.analysis.measure import listed, measures, needing
from mrt.analysis.votes import ENUMERATION_LIMIT
from mrt.config.hardware import Architecture
from mrt.core.settings import Settings
from mrt.figures.looks import Drawing, Style
from mrt.methods.cold_start import ColdStart
from mrt.methods.mrt import Rules
from mrt.sampling.allocation import Allocation
from mrt.sampling.budget_forcing import BudgetForcing
from mrt.sampling.engine import Decoding
from mrt.sampling.imports import Completions
from mrt.sampling.linearized import Linearized
from mrt.sampling.prompt import Prompt
from mrt.sampling.prover import ProverSettings
from mrt.sampling.tree import BeamSearch
from mrt.training.method import Method, RLMethod, SFTMethod, method_named, methods, one_of
from mrt.training.rl.recipe import RL
from mrt.training.sft import SFT
from mrt.training.stage import Keep

Count = Annotated[int, Field(ge=1, le=10_000_000)]
ORIGINS = ("path", "toy", "rollouts", "parent", "checkpoint_of")  # where a model comes from


class Imported(Completions):
    """Completions that were sampled elsewhere."""

    file: Path = Field(
        description="JSONL, Parquet or CSV with columns problem_id, text, and optionally model, prompt, tokens,"
        " finish_reason. Or a file of lighteval, lm-evaluation-harness or vLLM (docs/parity.md)."
    )


class Model(Settings):
    """A model: a checkpoint, the toy base, a file of completions, or a child of another model."""

    label: str | None = Field(None, description="Name in tables and figures; by default the key.")
    style: Style | None = Field(
        None,
        description="Colour, marker and line in figures. By default the method gives the colour, the iteration"
        " its shade, and the model's place in the file marker and line. Models added after it change"
        " none of these.",
    )
    path: str | None = Field(None, description="Checkpoint folder or hub id.")
    revision: str | None = Field(None, description="Commit of a hub model.")
    toy: Literal["shipped", "remade"] | None = Field(
        None, description="The toy base: its shipped weights, or weights trained from scratch (`remade`)."
    )
    rollouts: Imported | None = Field(None, description="The completions of a model that was sampled elsewhere.")
    prompt: Prompt | None = Field(None, description="How a problem becomes a prompt; by default the shared `prompt`.")
    training_log: Path | None = Field(
        None,
        description="Log of this model's RL training elsewhere, for Figures 10 and 11: CSV or Parquet with columns"
        " step, reward, completion_tokens.",
    )
    evaluate_on: list[str] | None = Field(
        None, min_length=1, description="Evaluation sets of this model; by default all."
    )
    parent: str | None = Field(None, description="Model that this one is trained from.")
    method: str | None = Field(
        None,
        description="Training method. SFT on traces: star, mrt. RL: grpo, grpo_prefixes, length_penalty, mrt_rl,"
        " vineppo, s_grpo, brpo. SFT on correct completions of a model without thoughts, to teach"
        " thinking: cold_start. SFT on solution trees, to teach backtracking: warmstart, rise,"
        " rejection (Figure 14). Or one of yours, `FILE.py:NAME` (docs/extend.md).",
        json_schema_extra=one_of(methods),
    )
    settings: dict[str, Any] | None = Field(None, description="Settings of a method of yours, if it has any.")
    teacher: str | None = Field(
        None,
        description="cold_start: the model whose correct completions are learnt. warmstart, rise, rejection: the"
        " model whose solution trees are learnt. By default the parent.",
    )
    cold_start: ColdStart = Field(
        default_factory=ColdStart, description="cold_start: how completions become thoughts with an answer."
    )
    problems: str | None = Field(None, description="Training set, whose problems the parent solves.")
    rules: Rules = Field(default_factory=Rules, description="Which traces enter the training set.")
    accumulate: bool = Field(
        False,
        description="star, mrt: train on the sets of all earlier iterations, too (Algorithm 1 never empties"
        " D_ft). By default a model learns only from the traces of its parent.",
    )
    recipe: SFT | None = Field(None, description="Hyperparameters of SFT that override `training.recipe`.")
    rl: RL | None = Field(None, description="Hyperparameters of RL that override `training.rl`.")
    replicate_of: str | None = Field(
        None, description="Model whose training is repeated with another `seed`, for intervals over training runs."
    )
    seed: int | None = Field(None, ge=0, description="Seed of the training; by default that of its hyperparameters.")
    checkpoint_of: str | None = Field(
        None,
        description="Model from whose training this checkpoint is, after `step` steps. `evaluate_steps` of a"
        " recipe makes such models, NAME_step<n>.",
    )
    step: int | None = Field(None, ge=1, description="checkpoint_of: one of its `evaluate_steps`.")
    architecture: Architecture | None = Field(
        None,
        description="Sizes of a hub model that is not downloaded; those of folders and of models trained here"
        " are known.",
    )

    @property
    def trained_by(self) -> Method:
        """The method that a trained model is trained by."""
        return method_named(str(self.method))

    @property
    def method_settings(self) -> BaseModel | None:
        """The settings of its method itself, if that has any."""
        if not self.method or not self.trained_by.settings:
            return None
        name, kind = self.trained_by.settings
        value = getattr(self, name)
        return value if isinstance(value, kind) else kind.model_validate(value or {})

    @field_validator("method")
    @classmethod
    def _known(cls, method: str | None) -> str | None:
        if method is not None:
            method_named(method)
        return method

    @field_validator("rules", "recipe", "rl", "teacher", "cold_start", "accumulate", "settings")
    @classmethod
    def _of_the_method(cls, value: Any, info: ValidationInfo) -> Any:
        """Each is for models of some methods."""
        name, field = info.data.get("method"), info.field_name
        method = method_named(name) if name else None

        def names(fits: Callable[[SFTMethod], Any]) -> str:
            return ", ".join(n for n, each in methods().items() if isinstance(each, SFTMethod) and fits(each))

        if field in ("cold_start", "rules", "settings") and value is not None:
            wanted = method.settings[0] if method and method.settings else None
            if wanted != field and (method or field != "rules"):
                of = names(lambda each: each.settings and each.settings[0] == field)
                subject = "they are" if field == "rules" else "it is"
                raise ValueError(f"{subject} for a model of method {of or 'FILE.py:NAME, if that has settings'}")
            if field == "settings" and method and method.settings:
                method.settings[1].model_validate(value)
        if field == "teacher" and not (method and method.teacher):
            raise ValueError(f"it is for a model of method {names(lambda each: each.teacher)}")
        if field == "accumulate" and value and not (isinstance(method, SFTMethod) and method.of_own_traces):
            of = names(lambda each: each.of_own_traces).replace(", ", " or ")
            raise ValueError(f"it is for a model of method {of}")
        if field == "recipe" and isinstance(method, RLMethod):
            raise ValueError(f"{name} is trained by RL; its hyperparameters stand under rl")
        if field == "rl" and isinstance(method, SFTMethod):
            raise ValueError(f"{name} is trained by SFT; its hyperparameters stand under recipe")
        return value

    @model_validator(mode="after")
    def one_origin(self) -> Self:
        origins = [name for name in ORIGINS if getattr(self, name) is not None]
        # a replicate of an unknown model has no origin; mrt.config.checks reports that
        if len(origins) != 1 and not (self.replicate_of and not origins):
            raise ValueError(f"a model has exactly one of {', '.join(ORIGINS)}; got {origins or 'none'}")
        if (self.parent is None) != (self.method is None) or (self.parent is None) != (self.problems is None):
            raise ValueError("a trained model has all of parent, method and problems; any other model has none")
        if (self.checkpoint_of is None) != (self.step is None):
            raise ValueError("a checkpoint on the way has both of checkpoint_of and step; any other model has none")
        return self


class SamplingSettings(Settings):
    """Sampling from a model on a dataset."""

    samples: int = Field(ge=1, le=10_000, description="Rollouts per problem.")
    decoding: Decoding = Field(
        Decoding(max_tokens=16384),
        description="How rollouts are sampled (Section 8.1: 16K tokens).",
    )
    prover: ProverSettings = Field(default_factory=ProverSettings, description="How the meta-prover is run.")
    mu: str | None = Field(
        None,
        description="The model used as meta-prover (Section 6.2: another LLM); by default the one that wrote the"
        " thought. It reads that model's chat prompt and thought, with its own tokenizer. Regret is"
        " then not extrapolated by budget forcing, where each model answers by itself.",
    )


Group = TypeVar("Group", bound=Settings)


def keep_to(settings: Group, **most: int) -> Group:
    """The settings, with values above the limits removed from lists that were not set explicitly."""
    for name, limit in most.items():
        if name not in settings.model_fields_set:
            vars(settings)[name] = [value for value in getattr(settings, name) if value <= limit]
    return settings


def at_most(numbers: list[int], limit: int | None, what: str) -> list[int]:
    """The numbers; raises ValueError if one is beyond the limit."""
    if limit is not None and max(numbers) > limit:
        raise ValueError(f"{max(numbers)} is more than the {limit} {what}")
    return numbers


class Training(SamplingSettings):
    """Sampling for training sets, and the hyperparameters that models share."""

    samples: int = Field(1, ge=1, le=10_000, description="Rollouts per training problem (Algorithm 1, line 5: one).")
    runs: int = Field(
        1,
        strict=True,
        ge=1,
        le=100,
        description="Training runs of every trained model, for intervals over runs. Run s > 0 of a model is its"
        " replicate NAME_seed<s>: trained with seed s from run s of its parent, on new traces.",
    )
    recipe: SFT = Field(default_factory=SFT, description="Hyperparameters of SFT (Table 2).")
    rl: RL = Field(default_factory=RL, description="Hyperparameters of RL (Table 3).")
    allocation: Allocation | None = Field(
        None,
        description="Sample only as many of the meta-prover's `answers` at a prefix of a training trace as the"
        " filter of MRT (STaR) needs. `{}` has the defaults of mrt.sampling.allocation. By default"
        " all answers are sampled.",
    )
    tree: BeamSearch = Field(default_factory=BeamSearch, description="How solution trees are searched (Appendix A.2).")
    report_to: list[Literal["tensorboard", "trackio", "wandb"]] = Field(
        [],
        description="Where trainers log besides Parquet: TensorBoard (a folder beside the checkpoint), Trackio, Weights"
        " & Biases.",
    )
    keep: Keep = Field(
        default_factory=Keep,
        description="Which checkpoints of earlier settings to keep: a return to such a setting trains nothing.",
    )

    @model_validator(mode="after")
    def _one_way_to_save(self) -> Self:
        if self.allocation and self.prover.estimate == "likelihood":
            raise ValueError(
                "allocation spares sampled answers, and prover.estimate: likelihood samples none; drop one"
            )
        return self


class Direct(Settings):
    """The baseline that does not think (Section 5): pass@k of one model's answers."""

    model: str = Field(description="A model whose prompt skips the thought.")
    samples: int = Field(32, ge=1, le=10_000, description="Answers per problem (Appendix D: 32).")
    k: list[Count] = Field(
        [1, 2, 4, 8, 16, 32],
        min_length=1,
        description="The k of pass@k; if not given, the defaults up to `samples`.",
    )
    inserted_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens of a stop phrase in the model's prompt, which count too (docs/metrics.md).",
    )

    @field_validator("k")
    @classmethod
    def _of_the_samples(cls, k: list[int], info: ValidationInfo) -> list[int]:
        return at_most(k, info.data.get("samples"), "samples")

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        return keep_to(self, k=self.samples)


class Extrapolation(BudgetForcing):
    """Budget forcing (Appendix F), and the budgets to which it extrapolates normalized regret (Figure 9)."""

    models: list[str] | None = Field(None, description="Models whose thoughts are extended; by default all.")
    budgets: list[Count] = Field(
        [20480, 24576, 28672, 32768],
        description="C_0 for each number of extensions with forced answers, except 0. For extended models they"
        " replace the values of `evaluation.budgets` that are at least the smallest of them.",
    )


class Evaluation(SamplingSettings):
    """Measures, their models and their datasets."""

    samples: int = Field(20, ge=1, le=10_000, description="Rollouts per problem (Section 8.2: 20).")
    problems: list[str] = Field(min_length=1, description="Evaluation datasets.")
    models: list[str] = Field(min_length=1, description="Models in the tables and figures, in this order.")
    k: list[Count] = Field(
        [1, 2, 4, 8],
        min_length=1,
        description="The k of maj@k (votes) and pass@k (samples); if not given, the defaults up to `samples`.",
    )
    votes: list[Count] = Field(
        [1, 2, 4, 8],
        min_length=1,
        description="Votes p of [maj@p]_j at a prefix; if not given, the defaults up to `prover.answers`.",
    )
    episode_groups: list[tuple[Count, Count]] | None = Field(
        None,
        description="Groups of traces in Figure 3, by number of episodes from and to, such as `[[6, 10], [26, 30]]`"
        " (Section 5); by default terciles.",
    )
    weighted_votes: bool = Field(
        False,
        description="Weigh each vote of [maj@p]_j by 2^(mean token log-probability), as the authors do; needs"
        " `prover.decoding.logprobs`. If all votes weigh the same, maj@2 equals maj@1.",
    )
    budgets: list[Count] = Field(
        [4096, 8192, 12288, 16384],
        min_length=1,
        description="Token budgets C_0 of normalized regret (Figure 9); if not given, quarters of `max_tokens`.",
    )
    regret_tokens: Literal["answer", "thought"] = Field(
        "answer",
        description="Tokens of normalized regret. `answer`: all until there is an answer, that is the prefix,"
        " the text that forces the answer, and the answer. `thought`: the thought alone, so that"
        " answers are free.",
    )
    direct: Direct | None = Field(None, description="The baseline that does not think (Figure 3).")
    linearized: Linearized | None = Field(None, description="Linearized search, in a sliding window (Section 8.4).")
    episodes: int | None = Field(
        None,
        ge=1,
        description="Backtracking search: cut completions after this number of episodes, as if sampling stopped"
        " there. The paper's parallel mode has 3: attempt, backtrack, revision (Section 8.4).",
    )
    budget_forcing: Extrapolation = Field(default_factory=Extrapolation, description="How thoughts are extended.")
    measures: list[Annotated[str, Field(json_schema_extra=one_of(listed))]] = Field(
        default_factory=listed,
        min_length=1,
        description="Measures to compute; by default all of these. Or a measure of yours, `FILE.py:NAME`"
        " (docs/extend.md).",
    )

    @field_validator("problems", "models")
    @classmethod
    def _once(cls, names: list[str]) -> list[str]:
        if len(set(names)) < len(names):
            raise ValueError("a name occurs twice")
        return names

    @field_validator("measures")
    @classmethod
    def _known(cls, references: list[str]) -> list[str]:
        measures(references)
        return references

    @field_validator("votes")
    @classmethod
    def _of_the_answers(cls, votes: list[int], info: ValidationInfo) -> list[int]:
        prover = info.data.get("prover")
        return at_most(votes, prover.answers if prover else None, "answers")

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.weighted_votes and not self.prover.decoding.logprobs:
            raise ValueError("weighted_votes weighs by log-probabilities; set prover.decoding.logprobs: true")
        voting = needing(self.measures, "prover")
        if self.prover.estimate == "likelihood" and voting:
            raise ValueError(
                f"with prover.estimate: likelihood there are no votes; leave {', '.join(voting)} out of measures"
            )
        longest = self.decoding.max_tokens
        if "budgets" not in self.model_fields_set:
            vars(self)["budgets"] = sorted({-(-longest * i // 4) for i in range(1, 5)})
        fitted = keep_to(self, k=self.samples, votes=self.prover.answers)
        subsets = max(comb(self.prover.answers, votes) for votes in self.votes)
        if self.weighted_votes and subsets > ENUMERATION_LIMIT:
            raise ValueError(
                f"weighted_votes counts all subsets of as many answers as votes, at most {ENUMERATION_LIMIT:,}, and of"
                f" {self.prover.answers} answers there are {subsets:,}; lower prover.answers or votes"
            )
        return fitted


class Figures(Drawing):
    """The look of all figures, and figures of yours."""

    files: list[Path] = Field(
        [],
        description="Your figures and tables, beside those of `mrt/figures/`: Python files, relative to the"
        " working folder, each with the parts that docs/architecture.md lists under Figure.",
    )

    def drawing(self) -> dict[str, Any]:
        """The given settings of the look."""
        return self.model_dump(exclude={"files"}, exclude_none=True)


class TracesPage(Settings):
    """The page of traces (`snakemake traces`)."""

    megabytes: float = Field(
        20.0,
        gt=0,
        le=500,
        description="Maximum size of the page. Of a larger experiment it shows a sample of the problems.",
    )
    seed: int = Field(0, ge=0, description="Seed of this sample.")
    prefix_accuracy: Path | None = Field(
        None,
        description="Curves measured elsewhere along imported traces: JSON lines of problem_id, model, chunks"
        " [{text, accuracy}]. An accuracy is that of completions continued from the text before its"
        " chunk.",
    )


class Expected(Settings):
    """Estimates of sizes unknown before the first run, for `python -m mrt plan` and the time limits of jobs."""

    problems: dict[str, Count] = Field(
        {}, description="Number of problems of datasets that are not made yet and have no `count`."
    )
    tokens: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="Mean tokens of a rollout by model and its descendants; by default half of `max_tokens`."
    )
    prompt_tokens: float = Field(150, gt=0, description="Tokens of a problem with its chat prompt.")
    episodes: float = Field(20, gt=0, description="Episodes of a thought.")
    answer_tokens: float = Field(300, gt=0, description="Tokens of a forced answer.")
    kept: float = Field(0.5, gt=0, description="Fraction of the traces that training sets keep.")
