"""How many steps a training takes at most, as far as a configuration tells before any job."""

from collections.abc import Iterator

import polars as pl

from mrt.config import lineage, measuring
from mrt.config.schema import Config
from mrt.problems.sources import READ_AT_ONCE, read_file
from mrt.training.budget import contradictions
from mrt.training.method import SFTMethod
from mrt.training.rl.recipe import RL
from mrt.training.schedule import steps_of, too_few


def most_problems(config: Config, dataset: str) -> int | None:
    """The most problems that a dataset can have: by its settings, its file, or its table; None if nothing tells."""
    settings = config.problems[dataset]
    file, table = settings.file, config.results / "problems" / f"{dataset}.parquet"
    if settings.size:
        return settings.size
    if file and file.is_file():
        return len(read_file(file)) if file.stat().st_size <= READ_AT_ONCE else None  # else rows enough
    return int(pl.scan_parquet(table).select(pl.len()).collect().item()) if table.is_file() else None


def most_examples(config: Config, name: str) -> int | None:
    """The most examples that a model's set can have, one a trace; None if nothing tells, as of solution trees."""
    model = config.models[name]
    dataset, teacher = str(model.problems), lineage.teacher(config, name)
    count, reads = most_problems(config, dataset), lineage.sources(config, name)
    if count is None or "rollouts" not in reads or config.models[teacher].rollouts:
        return None
    limits = [measuring.samples(config, teacher, dataset)]
    limits += [limit for limit in (config.training.prover.traces if "prover" in reads else None,) if limit]
    limits += [limit for limit in (getattr(model.method_settings, "per_problem", None),) if limit]
    earlier = most_examples(config, str(model.parent)) if model.accumulate else 0
    return None if earlier is None else count * min(limits) + earlier


def most_steps(config: Config, name: str) -> tuple[int | None, str]:
    """The most steps that a model's training can have, and on what; None if nothing tells, as with `flops`."""
    recipe = lineage.recipe(config, name)
    if recipe.epochs is None:
        return None, ""
    if isinstance(recipe, RL):
        count = most_problems(config, str(config.models[name].problems))
        return count and recipe.steps(count), f"{count} problems"
    count = most_examples(config, name)
    return count and steps_of(count, recipe.batch_size, recipe.epochs), f"{count} examples, one a trace"


def short_trainings(config: Config) -> Iterator[str]:
    """Of each training that cannot have enough steps, a line that says so and what to change."""
    for name in lineage.trained(config):
        if config.models[name].replicate_of:  # it has as many as the model that it repeats
            continue
        steps, data = most_steps(config, name)
        if steps and (remark := too_few(steps, data, most=True)):
            yield f"models.{name}: {remark}"


def unkept(config: Config) -> Iterator[tuple[str, str]]:
    """Checkpoints on the way that their training does not keep."""
    for name, model in config.models.items():
        of = model.checkpoint_of
        steps = (lineage.recipe(config, of).evaluate_steps or []) if of else []
        if of and model.step not in steps:
            kept = f"those of steps {', '.join(map(str, steps))}" if steps else "none; set evaluate_steps in its recipe"
            yield f"models.{name}.step", f"of the checkpoints on the way {of!r} keeps {kept}"


def unbudgeted(config: Config) -> Iterator[tuple[str, str]]:
    """Trainings of which a budget of FLOPs does not know all steps."""
    for name in lineage.trained(config):
        recipe = lineage.recipe(config, name)
        where = f"models.{name}.{'rl' if isinstance(recipe, RL) else 'recipe'}"
        for field, wrong in contradictions(recipe):
            yield f"{where}.{field}", wrong


def refused(config: Config) -> Iterator[tuple[str, str]]:
    """Trainings that end before their `evaluate_steps`, or whose set is too small where `small_set` refuses that."""
    for name in lineage.trained(config):
        model, recipe = config.models[name], lineage.recipe(config, name)
        last = recipe.evaluate_steps[-1] if recipe.evaluate_steps else 0
        steps, data = most_steps(config, name) if last else (None, "")
        if steps and last >= steps:
            yield f"models.{name}", f"evaluate_steps: {last} is not before its last step: at most {steps}, on {data}"
        if isinstance(recipe, RL) or not isinstance(model.trained_by, SFTMethod) or recipe.small_set == "shrink":
            continue
        count = most_examples(config, name)
        if count is not None and count < recipe.batch_size:
            wrong = f"a step takes {recipe.batch_size} examples (recipe.batch_size), and its set has at most {count}"
            yield f"models.{name}", f"{wrong}; lower it, or set recipe.small_set: shrink"
