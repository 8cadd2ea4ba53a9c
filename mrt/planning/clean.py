"""Show the files in a results folder that no configuration needs, and remove them.

    mrt clean --configfile config/gsm8k.yaml         show it, with sizes
    mrt clean --configfile config/gsm8k.yaml --yes   remove it
    mrt clean --also other.yaml                      keep the files that another configuration of the folder needs

These are checkpoints of earlier settings (`training.keep`), and all files of models that are no longer in the
configuration. Completions for problem sets that it lacks, and the state of trainings that have finished, are others.
Results, and completions of models and problem sets in the configuration, stay. Files that a job holds stay. While
Snakemake works on the folder nothing is removed.
"""

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic_settings import CliImplicitFlag

from mrt.config.load import read_files
from mrt.config.schema import Config
from mrt.core.artifacts import OTHERS, TABLES
from mrt.core.cli import Stage, run
from mrt.core.lock import Locked, held, lives, record_of
from mrt.planning.dry_run import config_files_named
from mrt.planning.plan import short


class Clean(Stage):
    """Show the files in a results folder that no configuration needs, or remove them."""

    timed: ClassVar[bool] = False
    configfile: list[Path] = Field([], description="Configuration files, as Snakemake takes them; else config.yaml.")
    also: list[Path] = Field([], description="Further configurations of the same results folder.")
    yes: CliImplicitFlag[bool] = Field(False, description="Remove the listed files.")

    def cli_cmd(self) -> None:
        configs = [read_files(self.configfile), *(read_files([file]) for file in self.also)]
        results = configs[0].results
        if others := [file for file, config in zip(self.also, configs[1:], strict=True) if config.results != results]:
            raise ValueError(f"{others[0]}: its results are not in {results}")
        if lives(record := record_of(results / ".running"), results / ".running"):
            raise ValueError(f"{results}: Snakemake works there (process {record.get('process')}); wait until it ends")
        rows = sorted(dict(unneeded(results, configs)).items())
        for path, why in rows:
            print(f"{short(size_of([path])):>6}B  {path}  ({why})")
        total = f"{len(rows)} files and folders that no configuration needs, {short(size_of(dict(rows)))}B"
        if not self.yes:
            print(total + ("; to remove them: --yes" if rows else ""))
            return
        print(f"{sum(remove(path, results) for path, _ in rows)} removed of {total}")


def unneeded(results: Path, configs: Sequence[Config]) -> Iterator[tuple[Path, str]]:
    """The files and folders that no configuration needs, each with its reason."""
    models = {"toy_base", *(name for config in configs for name in config.models)}
    datasets = {name for config in configs for name in config.problems}
    for pattern in (*(kind.path for kind in TABLES), *OTHERS, ".sampling/{kind}/{m}/", "metrics/{m}/"):
        folder, _, rest = pattern.partition("{m}")
        if rest and "{" not in folder and not folder.startswith("."):
            for path in sorted(Path(results, folder).glob("*")):
                if model_of(path) not in models:
                    yield path, "of a model that is not in the configuration"
    for path in sorted(results.glob(".sampling/*/*")):
        if path.name not in models:
            yield path, "of a model that is not in the configuration"
    for path in sorted(each for each in results.glob(".cache/*/*") if each.is_dir()):
        if path.name not in models:
            yield path, "of a model that is not in the configuration"
        elif path.parent.name == "models":
            present = Path(results, "models", path.name)
            yield from ((each, "a checkpoint of earlier settings") for each in earlier(path, present))
        else:
            for each in sorted(path.iterdir()):
                if each.is_dir() and each.name not in datasets:
                    yield each, "of a problem set that is not in the configuration"
    for path in sorted(each for each in results.glob(".state/*") if each.is_dir()):
        if path.name not in models:
            yield path, "of a model that is not in the configuration"
        elif Path(results, "models", f"{path.name}.history.parquet").is_file():
            yield path, "of a training that has finished"


def earlier(kept: Path, present: Path) -> list[Path]:
    """Kept checkpoints that are not the present one, which is that of `models/`, else the one that was used last."""
    checkpoints = sorted(kept.iterdir(), key=lambda each: each.stat().st_mtime_ns)
    inodes = {file.stat().st_ino for file in present.glob("*.safetensors")}

    def is_present(each: Path) -> bool:
        return any(file.stat().st_ino in inodes for file in each.glob("checkpoint/*.safetensors"))

    others = [each for each in checkpoints if not is_present(each)]
    return others if len(others) < len(checkpoints) else checkpoints[:-1]


def model_of(path: Path) -> str:
    """The model that a file or folder is named after; its name may have points."""
    return re.sub(r"(\.(rules|history|log))?\.(parquet|tensorboard|lock|json)$", "", path.name)


def size_of(paths: Iterable[Path]) -> int:
    """Bytes of files and folders; a file with several hard links counts once."""
    files = (file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    return sum({state.st_ino: state.st_size for state in (file.stat() for file in files)}.values())


def remove(path: Path, results: Path) -> bool:
    """Remove a file or folder, unless a job holds it."""
    inside = path.relative_to(results).parts
    model = inside[2] if inside[0] in (".cache", ".sampling") else model_of(path)
    locks = {results / ".state" / f"{model}.lock", *results.glob(f".cache/*/{model}/*.lock")}
    if inside[0] == ".cache" and inside[1] != "models" and len(inside) == 4:
        locks = {path.with_name(f"{path.name}.lock"), *path.parent.glob(f"{path.name}.*-of-*.lock")}
    try:
        with ExitStack() as stack:
            for lock in sorted(locks):
                stack.enter_context(held(lock, wait=False))
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    except Locked as error:
        print(f"{path}: stays, as a job holds it: {error}")
        return False
    return True


if __name__ == "__main__":
    sys.argv[1:] = config_files_named(sys.argv[1:])
    run(Clean)
