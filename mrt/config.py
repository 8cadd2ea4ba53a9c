"""`config.yaml` as a typed model. The rules read their slices from here; the stages never see a config file."""

import json
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mrt.engine import Decoding, EngineSettings
from mrt.episodes import Segmentation
from mrt.problems import ProblemSet
from mrt.prover import ProverSettings
from mrt.sampling import Prompt
from mrt.sets import Rules
from mrt.train.sft import SFT


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Imported(Strict):
    """Completions that somebody sampled elsewhere."""

    file: Path = Field(
        description="JSONL, Parquet or CSV with columns problem_id, text, and perhaps model, tokens, finish."
    )
    model: str | None = Field(None, description="Keep the rows whose `model` is this.")


class Model(Strict):
    """A model: a checkpoint, the toy base, a file of completions, or a child of another model."""

    label: str | None = Field(None, description="Name in tables and figures; else the key.")
    path: str | None = Field(None, description="Checkpoint folder or hub id.")
    revision: str | None = Field(None, description="Commit of a hub model.")
    toy: Literal["shipped", "remade"] | None = Field(
        None, description="The toy base: its shipped weights, or made anew."
    )
    rollouts: Imported | None = Field(None, description="A model that is a file of completions.")
    evaluate_on: list[str] | None = Field(None, description="Evaluation sets that it is measured on; all if not given.")
    parent: str | None = Field(None, description="Model that this one is trained from.")
    method: Literal["star", "mrt"] | None = Field(
        None, description="How its training set is made from its parent's traces."
    )
    problems: str | None = Field(None, description="Problem set that its parent's traces solve.")
    rules: Rules = Field(default_factory=Rules, description="Which traces enter the training set.")
    recipe: SFT | None = Field(None, description="Training hyperparameters; else `training.recipe`.")

    @model_validator(mode="after")
    def one_origin(self) -> Self:
        origins = [name for name in ("path", "toy", "rollouts", "parent") if getattr(self, name) is not None]
        if len(origins) != 1:
            raise ValueError(f"a model has exactly one of path, toy, rollouts, parent; got {origins or 'none'}")
        if (self.parent is None) != (self.method is None) or (self.parent is None) != (self.problems is None):
            raise ValueError("a trained model has all of parent, method and problems; any other model has none")
        return self


class Draws(Strict):
    """What is sampled from a model on a problem set."""

    samples: int = Field(ge=1, description="Rollouts a problem.")
    decoding: Decoding = Field(default_factory=Decoding, description="How rollouts are drawn.")
    prover: ProverSettings = Field(default_factory=ProverSettings, description="How the meta-prover is run.")


class Training(Draws):
    """Sampling for training sets, and the recipe that models share."""

    samples: int = Field(1, ge=1, description="Rollouts a training problem (Algorithm 1, line 5: one).")
    recipe: SFT = Field(default_factory=SFT, description="Training hyperparameters (Table 2).")


class Evaluation(Draws):
    """What is measured, of which models, on which problem sets."""

    samples: int = Field(20, ge=1, description="Rollouts a problem (Section 8.2: 20).")
    problems: list[str] = Field(min_length=1, description="Evaluation problem sets.")
    models: list[str] = Field(min_length=1, description="Models in the tables and figures, in this order.")
    k: list[int] = Field([1, 2, 4, 8], description="Votes of maj@k and draws of pass@k.")
    votes: list[int] = Field([1, 2, 4, 8], description="Votes p of [maj@p]_j at a prefix.")
    budgets: list[int] = Field(
        [4096, 8192, 12288, 16384], description="Token budgets C_0 of normalized regret (Figure 9)."
    )
    measures: list[Literal["accuracy", "maj", "regret", "prefixes", "episodes", "progress"]] = Field(
        ["accuracy", "maj", "regret", "prefixes", "episodes", "progress"], description="What is measured."
    )


class Config(Strict):
    """A whole experiment."""

    results: Path = Field(description="Folder of everything that the experiment makes.")
    seed: int = Field(0, ge=0, description="Seed from which all sampling seeds derive.")
    problems: dict[str, ProblemSet] = Field(description="Problem sets by name.")
    models: dict[str, Model] = Field(description="Models by name.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")
    segmentation: Segmentation = Field(default_factory=Segmentation, description="How thoughts are cut into episodes.")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the sampling engine is built.")
    engine_threads: int = Field(1, ge=1, description="CPU cores of a sampling job.")
    training_threads: int = Field(2, ge=1, description="CPU cores of a training job.")
    training: Training = Field(default_factory=Training, description="Sampling for training sets; the shared recipe.")
    evaluation: Evaluation = Field(description="What is measured.")

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        problems: list[str] = []

        def check(where: str, name: str | None, known: dict[str, Any]) -> None:
            if name is not None and name not in known:
                problems.append(f"{where}: there is no {name!r}; there are {', '.join(known)}")

        for name, model in self.models.items():
            check(f"models.{name}.parent", model.parent, self.models)
            check(f"models.{name}.problems", model.problems, self.problems)
            if model.problems in self.evaluation.problems:
                problems.append(f"models.{name}.problems: {model.problems!r} is an evaluation set; train on another")
            if len(list(self.lineage(name))) > len(self.models):
                problems.append(f"models.{name}.parent: its ancestors go round in a circle")
            for other in model.evaluate_on or []:
                check(f"models.{name}.evaluate_on", other, dict.fromkeys(self.evaluation.problems))
        for name in self.evaluation.models:
            check("evaluation.models", name, self.models)
        for name in self.evaluation.problems:
            check("evaluation.problems", name, self.problems)
        for name, problem_set in self.problems.items():
            for other in problem_set.disjoint_from:
                check(f"problems.{name}.disjoint_from", other, self.problems)
        if max(self.evaluation.k) > self.evaluation.samples and not self.imported:
            problems.append(
                f"evaluation.k: {max(self.evaluation.k)} is more than the {self.evaluation.samples} samples"
            )
        if max(self.evaluation.votes) > self.evaluation.prover.answers:
            problems.append(
                f"evaluation.votes: {max(self.evaluation.votes)} is more than the"
                f" {self.evaluation.prover.answers} answers"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def lineage(self, name: str) -> Iterator[str]:
        """The model and its ancestors, nearest first; stops after one step too many if they go round in a circle."""
        current: str | None = name
        for _ in range(len(self.models) + 1):
            if current is None or current not in self.models:
                return
            yield current
            current = self.models[current].parent

    @property
    def imported(self) -> list[str]:
        """Models that are files of completions."""
        return [name for name, model in self.models.items() if model.rollouts]

    def measured_on(self, name: str) -> list[str]:
        """Evaluation sets that a model is measured on."""
        return [d for d in self.evaluation.problems if d in (self.models[name].evaluate_on or self.evaluation.problems)]

    def draws(self, problem_set: str) -> Draws:
        """What is sampled on a problem set: the evaluation's settings on its sets, else the training's."""
        return self.evaluation if problem_set in self.evaluation.problems else self.training

    def method(self, name: str) -> str:
        """A model's method for colours and labels: `base`, `star` or `mrt`."""
        return self.models[name].method or "base"

    def style(self, name: str) -> dict[str, Any]:
        """How a model appears in figures: label, method (colour) and iteration (how often that method ran in a row)."""
        method = self.method(name)
        chain = [self.method(ancestor) for ancestor in self.lineage(name)]
        iteration = 0 if method == "base" else len(list(takewhile(lambda m: m == method, chain)))
        return {"label": self.models[name].label or name, "method": method, "iteration": iteration}


def load(config: dict[str, Any]) -> Config:
    """The typed config; raises ValueError that lists every mistake with its path and value."""
    try:
        return Config.model_validate(config)
    except ValidationError as error:
        lines = []
        for mistake in error.errors():
            path = ".".join(map(str, mistake["loc"])) or "config"
            value = "" if isinstance(mistake["input"], dict) else f" (got {mistake['input']!r})"
            lines.append(f"  {path}: {mistake['msg'].removeprefix('Value error, ')}{value}")
        raise ValueError("\n".join(["the configuration is not right:", *lines])) from error


def slice_of(settings: BaseModel) -> str:
    """A settings group as canonical JSON: what a rule carries in its params and hands to its stage."""
    return json.dumps(settings.model_dump(mode="json"), sort_keys=True)
