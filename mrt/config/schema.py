"""`config.yaml` as a typed model: data alone. The stages never see a config file.

Derived quantities are functions of a `Config`, in modules that import only those above them:

| module | content |
|---|---|
| `lineage` | a model's ancestors, runs, teacher, prompt, recipe and variant |
| `measuring` | the samples and measures of a model on a dataset, and their mu |
| `steps` | the most examples and steps that a training can have |
| `roots` | the weights that a lineage begins with: where they are, their sizes, their context |
| `lengths` | the longest texts that an engine samples |
| `sizing` | the GPUs of an engine, the nodes and processes of a training |
| `checks` | contradictions between settings that are valid one by one |
"""

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from mrt.analysis.claims import Claim
from mrt.config.hardware import Cluster
from mrt.config.sections import Evaluation, Expected, Figures, Model, TracesPage, Training
from mrt.core.settings import Settings
from mrt.episodes.parameterization import Backtracking, Segmentation, Template
from mrt.problems.settings import Dataset
from mrt.sampling.engine import EngineSettings
from mrt.sampling.prompt import Prompt


def or_a_file(field: dict[str, Any]) -> None:
    """Let the schema of a list admit the path of a table, which `mrt.config.load` reads."""
    field["anyOf"] = [{name: field.pop(name) for name in ("items", "type")}, {"format": "path", "type": "string"}]


class Config(Settings):
    """A whole experiment."""

    results: Path = Field(description="Folder for all outputs of the experiment.")
    seed: int = Field(0, ge=0, lt=2**62, description="Seed from which all sampling seeds derive.")
    problems: dict[str, Dataset] = Field(description="Datasets by name.")
    models: dict[str, Model] = Field(description="Models by name.")
    prompt: Prompt = Field(default_factory=Prompt, description="How a problem becomes a prompt.")
    segmentation: Segmentation = Field(default_factory=Segmentation, description="How thoughts are cut into episodes.")
    template: Template = Field(
        default_factory=Template,
        description="Texts that the meta-prover adds to a prefix, to end the thought and to answer.",
    )
    backtracking: Backtracking | None = Field(
        None,
        description="Backtracking search (Appendix A) instead of thoughts; `{}` for its defaults.",
    )
    engine: EngineSettings = Field(default_factory=EngineSettings, description="How the sampling engine is built.")
    engine_threads: int = Field(1, ge=1, le=1024, description="CPU cores of a sampling job.")
    training_threads: int = Field(2, ge=1, le=1024, description="CPU cores of a training job.")
    track_versions: bool = Field(
        True, description="Whether a new version of vllm, torch, transformers, trl ... reruns the stages that use it."
    )
    cluster: Cluster = Field(default_factory=Cluster, description="GPUs that jobs are sized for.")
    expected: Expected = Field(default_factory=Expected, description="Estimated lengths and counts, to plan with.")
    training: Training = Field(
        default_factory=Training, description="Sampling for training sets, and the recipes that models share."
    )
    evaluation: Evaluation = Field(description="Measures, and their models and datasets.")
    figures: Figures = Field(default_factory=Figures, description="The look of figures; figures and tables of yours.")
    traces: TracesPage = Field(default_factory=TracesPage, description="The page that shows traces.")
    claims: list[Claim] = Field(
        [],
        description="Claims of the paper that the table `claims` decides. Or a tab-separated file (`.tsv`) of them: a"
        " row is a claim, a column a field.",
        json_schema_extra=or_a_file,
    )

    @field_validator("figures", mode="before")
    @classmethod
    def _names_its_files(cls, given: Any) -> Any:
        if isinstance(given, list):
            raise ValueError("figures of yours stand in its list `files`: write `figures: {files: [my_figure.py]}`")
        return given
