"""Publish a trained model of a finished experiment on the Hugging Face hub, with a card; with `--data`, its data too.

    mrt publish mrt_1 --dry-run                      print the files and the cards, and send nothing
    mrt publish mrt_1 --repo OWNER/NAME              upload the checkpoint and its card
    mrt publish mrt_1 --repo OWNER/NAME --data       and its data, to the dataset OWNER/NAME-data

The token is that of `hf auth login`, or of HF_TOKEN. Other files of a repository stay.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

from pydantic import AliasChoices, Field
from pydantic_settings import CliImplicitFlag, CliPositionalArg

from mrt.config.load import read_files
from mrt.config.schema import Config
from mrt.core.artifacts import COST
from mrt.core.cli import Stage, run
from mrt.core.hub import FILES, missing
from mrt.core.settings import suggestion
from mrt.planning import card
from mrt.planning.dry_run import config_files_named


class Repository(NamedTuple):
    """A repository to upload: its name and kind, its files by their names in it, and its card."""

    name: str
    kind: str  # model, dataset
    files: dict[str, Path]
    card: str


class Publish(Stage):
    """Upload a trained model, with a card and perhaps its data, to the Hugging Face hub."""

    timed: ClassVar[bool] = False
    model: CliPositionalArg[str] = Field(description="Name of a trained model of the configuration.")
    repo: str | None = Field(None, description="Repository on the hub, OWNER/NAME; made if it does not exist.")
    data: CliImplicitFlag[bool] = Field(
        False, description="Also upload its training set, completions and J, to the dataset OWNER/NAME-data."
    )
    private: CliImplicitFlag[bool] = Field(False, description="Make private repositories, and upload to no public one.")
    dry_run: CliImplicitFlag[bool] = Field(
        False,
        validation_alias=AliasChoices("dry-run", "dry_run"),
        description="Print the files, with sizes, and the cards; send nothing.",
    )
    configfile: list[Path] = Field([], description="Configuration files, as Snakemake takes them; else config.yaml.")

    def cli_cmd(self) -> None:
        config = read_files(self.configfile)
        folder = checkpoint(config, self.model)
        name = repository_name(self.repo, self.model, needed=not self.dry_run)
        dataset = f"{name}-data" if self.data else None
        text = card.model_text(config, self.model, dataset)
        files = {file.name: file for pattern in FILES for file in sorted(folder.glob(pattern))}
        metadata = card.model_metadata(config, self.model, dataset)
        repositories = [Repository(name, "model", files, with_metadata(metadata, text))]
        if dataset:  # first, as the model's card links to it
            tables = {f"{table}.parquet": file for table, (_, file) in card.data_of(config, self.model).items()}
            text = card.data_text(config, self.model, name)
            metadata = card.data_metadata(config, self.model)
            repositories.insert(0, Repository(dataset, "dataset", tables, with_metadata(metadata, text, "dataset")))
        for repository in repositories:
            if self.dry_run:
                show(repository)
            else:
                upload(repository, private=self.private)


def checkpoint(config: Config, name: str) -> Path:
    """The folder of a trained model; raises ValueError, with the remedy, if it cannot be published."""
    if name not in config.models:
        raise ValueError(f"the configuration has no model {name!r}{suggestion(name, config.models)}")
    model = config.models[name]
    if model.checkpoint_of:
        raise ValueError(f"{name} is a checkpoint during the training of {model.checkpoint_of}; publish that model")
    if not model.parent:
        raise ValueError(f"{name} is given, not trained by this experiment; there is nothing to publish")
    folder, history = config.results / "models" / name, card.history_of(config, name)
    if not folder.is_dir() or not history.is_file():
        raise ValueError(f"{name} is not trained yet: there is no {folder}; run snakemake first")
    if lacking := missing(folder):
        raise ValueError(f"{folder}: lacks {', '.join(lacking)}; delete the folder and run snakemake again")
    for table in (COST.path.format(m=name), card.RUNS):
        file = config.results / table
        if not file.is_file() or file.stat().st_mtime < history.stat().st_mtime:
            why = "is older than the model" if file.is_file() else "does not exist"
            raise ValueError(f"{file} {why}, and the card shows it; run `snakemake --cores 2 runs` first")
    return folder


def repository_name(given: str | None, model: str, *, needed: bool) -> str:
    """The repository OWNER/NAME; raises ValueError if it is missing, and needed, or has another form."""
    if given is None:
        if needed:
            raise ValueError("name the repository: --repo OWNER/NAME (or look at the files and the card: --dry-run)")
        return f"OWNER/{model}"
    if given.count("/") != 1:
        raise ValueError(f"--repo {given}: OWNER/NAME is needed, with a user or an organization as the owner")
    return given


def with_metadata(metadata: dict[str, Any], text: str, kind: str = "model") -> str:
    """A card as the file README.md has it: metadata, then text."""
    from huggingface_hub import DatasetCardData, ModelCardData

    data = DatasetCardData(**metadata) if kind == "dataset" else ModelCardData(**metadata)
    return f"---\n{data.to_yaml()}\n---\n\n{text}"


def show(repository: Repository) -> None:
    """Print the files of a repository with their sizes, and its card."""
    sizes = {name: file.stat().st_size for name, file in repository.files.items()}
    sizes |= {"README.md": len(repository.card.encode())}
    print(f"{repository.kind} {repository.name}: {len(sizes)} files, {sum(sizes.values()):,} bytes; nothing is sent")
    print(*(f"    {name}: {size:,} bytes" for name, size in sizes.items()), "", repository.card, sep="\n")


@contextmanager
def laid_out(repository: Repository) -> Iterator[Path]:
    """A temporary folder with the files of a repository, as links, and its card."""
    with TemporaryDirectory(prefix="mrt-publish-") as temporary:
        folder = Path(temporary)
        for name, file in repository.files.items():
            (folder / name).symlink_to(file.resolve())
        (folder / "README.md").write_text(repository.card, encoding="utf-8")
        yield folder


def upload(repository: Repository, *, private: bool) -> None:
    """Make a repository, if there is none, and upload its files in one commit.

    Raises ValueError without a token, for a name that the hub does not admit, or if it must be private and is public;
    OSError if the hub refuses.
    """
    from httpx import HTTPError
    from huggingface_hub import HfApi, get_token

    if not get_token():
        raise ValueError("no token for the hub: `hf auth login`, or export HF_TOKEN, with the right to write")
    api, name, kind = HfApi(), repository.name, repository.kind
    try:
        api.create_repo(name, repo_type=kind, private=private or None, exist_ok=True)
        if private and not api.repo_info(name, repo_type=kind).private:
            raise ValueError(f"{name} exists and is public; leave out --private, or name another repository")
        with laid_out(repository) as folder:
            done = api.upload_folder(repo_id=name, repo_type=kind, folder_path=folder, commit_message="Publish by mrt")
    except HTTPError as error:
        raise OSError(f"{name} could not be uploaded: {error}") from error
    print(f"{kind} {name}: {done.commit_url}")


if __name__ == "__main__":
    sys.argv[1:] = config_files_named(sys.argv[1:])
    run(Publish)
