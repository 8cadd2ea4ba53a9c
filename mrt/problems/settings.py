"""Settings of a dataset: where its problems are from, and which of them are kept."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from mrt.core.settings import Settings, defaults
from mrt.grading.task import canonical
from mrt.toy.world import DIFFICULTIES


class Toy(Settings):
    """Problems sampled from the toy world; a larger `count` only appends."""

    count: int = Field(ge=1, le=1_000_000, description="Number of problems, all different.")
    seed: int = Field(0, description="Seed of the problems.")
    difficulties: list[int] = Field(
        list(DIFFICULTIES), min_length=1, description="Numbers of a problem (3 to 8), used in turn."
    )

    unseen: bool = Field(
        False,
        description="Only problems that no shipped toy base was trained on, in any order of their numbers. The"
        " bases saw all problems of 3 numbers.",
    )

    @field_validator("difficulties")
    @classmethod
    def _possible(cls, values: list[int]) -> list[int]:
        # with 2 numbers, or with 9 and more, valid problems are rare or do not exist
        if any(not 3 <= value <= 8 for value in values):
            raise ValueError("a toy problem has 3 to 8 numbers")
        return values

    @model_validator(mode="after")
    def _left(self) -> Self:
        if self.unseen and 3 in self.difficulties:
            raise ValueError("unseen: the toy bases were trained on all problems of 3 numbers; set difficulties")
        return self


class Hub(Settings):
    """A dataset on the Hugging Face hub, at a pinned revision; its code is never run."""

    path: str = Field(min_length=1, description="Dataset on the hub, owner/name (or a local dataset folder).")
    revision: str = Field(min_length=1, description="Commit hash or tag; a branch such as `main` may change.")
    split: str = Field("train", min_length=1, description="Split to read, by its name on the hub.")
    name: str | None = Field(None, description="Configuration of the dataset; null for its default.")


class Columns(Settings):
    """The source column of each field; null means the column of the same name, if there is one."""

    problem: str | None = Field(None, description="Column of the problem's text (needed).")
    answer: str | None = Field(None, description="Column of the gold answer (needed unless `answer_from_solution`).")
    id: str | None = Field(None, description="Column of the id; without one, ids are `<set>-<row>`, rows from 0.")
    solution: str | None = Field(None, description="Column of the worked solution.")
    difficulty: str | None = Field(None, description="Column of the difficulty; in text, the first number counts.")
    source: str | None = Field(None, description="Column of the problem's source.")


class Dataset(Settings):
    """A dataset: exactly one of `toy`, `hub` and `file`, and what to keep of it."""

    toy: Toy | None = Field(None, description="Generate problems of the toy task.")
    hub: Hub | None = Field(None, description="Read a Hugging Face dataset.")
    file: Path | None = Field(None, description="Read a local .jsonl, .parquet or .csv file.")
    split: Literal["train", "val", "test"] = Field(
        "test", description="Whether the set is for training, validation or test."
    )
    task: str | dict[str, Any] | None = Field(
        None,
        description="How answers are judged: by a task's name (docs/your_own.md lists them; by default `math`),"
        " or its name and settings, `{name: math, by: ...}`. Or a file of yours, `my_task.py:Task`.",
    )
    columns: Columns = Field(default_factory=Columns, description="Source column of each field.")
    answer_from_solution: bool = Field(
        False, description="The gold answer is the last balanced \\boxed{} of the solution; without one, drop the row."
    )
    answer_after: str | None = Field(
        None,
        min_length=1,
        description="With `answer_from_solution`: the gold answer is the text after the last occurrence of this mark,"
        ' as "####" in GSM8K.',
    )
    keep: dict[str, tuple[float, float]] = Field(
        default_factory=dict,
        description="Inclusive range of a source column, or of a field of the schema; in text (`1983-I-1`), the first "
        "number counts. Rows without a value are dropped.",
    )
    difficulties: list[float] | None = Field(None, min_length=1, description="Keep exactly these difficulties.")
    drop: list[Literal["empty", "proof", "multiple_choice"]] = Field(
        default_factory=list,
        description="Drop problems that lack a text or an answer (otherwise an error), that demand a proof, or"
        " that offer options to choose from. A column `question_type`, as in NuminaMath-1.5, decides"
        " as well.",
    )
    no_answer: list[str] | None = Field(
        None,
        description="Texts that mean that there is no answer, in any case and spacing; null for `notfound`,"
        " `N/A` and the like (and `none` where `problem_is_valid` or `solution_is_valid` is not yes)."
        " With [] every text is an answer.",
    )
    disjoint_from: list[str] = Field(
        default_factory=list, description="Sets with which this one must share no problem (decontamination)."
    )
    count: int | None = Field(None, ge=1, description="Number of problems to sample; null for all.")
    per_difficulty: int | None = Field(None, ge=1, description="Number of problems to sample of each difficulty.")
    seed: int = Field(0, description="Seed of the sample.")

    @field_validator("task")
    @classmethod
    def _canonical(cls, task: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        return canonical(task)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [name for name in ("toy", "hub", "file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of toy, hub and file; got {' and '.join(given) or 'none'}")
        if self.toy:
            allowed = {"toy", "split", "disjoint_from", "task"}
            odd = [name for name, value in defaults(type(self)).items() if getattr(self, name) != value]
            odd = [name for name in odd if name not in allowed]
            if odd:
                raise ValueError(f"{', '.join(odd)}: not for the toy world, where `toy` says all of it")
        if self.answer_from_solution and self.columns.answer:
            raise ValueError("columns.answer and answer_from_solution exclude each other")
        if self.answer_after and not self.answer_from_solution:
            raise ValueError("answer_after goes with `answer_from_solution: true`")
        if self.count and self.per_difficulty:
            raise ValueError("count and per_difficulty exclude each other")
        for name, (low, high) in self.keep.items():
            if not low <= high:
                raise ValueError(f"keep.{name}: the range is empty, {low:g} > {high:g}")
        return self

    @property
    def size(self) -> int | None:
        """The requested number of problems; None if all that there are, or as many of each difficulty that there is."""
        if self.toy:
            return self.toy.count
        return self.count or (self.per_difficulty or 0) * len(self.difficulties or ()) or None

    @property
    def local(self) -> Path | None:
        """The file or dataset folder on this machine that it is read from."""
        folder = Path(self.hub.path) if self.hub else None
        return self.file or (folder if folder and folder.is_dir() else None)

    @property
    def origin(self) -> str:
        """Where the problems are from, for messages and the column `source`."""
        if self.hub:
            return f"{self.hub.path}@{self.hub.revision}:{self.hub.split}"
        return str(self.file) if self.file else "toy"
