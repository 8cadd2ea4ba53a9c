"""Checks of what fits: into the memory of GPUs, into an engine's texts, into a model's context."""

from collections.abc import Callable
from functools import cache, partial

from mrt.config import lengths, roots, sizing
from mrt.config.checks.given import Given, Mistakes, parsed
from mrt.config.hardware import Cluster
from mrt.config.schema import Config


def gpu(given: Given) -> Mistakes:
    """A GPU that is not listed."""
    if cluster := parsed(Cluster, given.section("cluster")):
        try:
            _ = cluster.hardware
        except ValueError as error:
            yield "cluster.gpu", str(error)


def memory_and_gpus(config: Config) -> Mistakes:
    """Models that the GPUs cannot hold, train or sample from as configured."""
    models: dict[str, list[str]] = {}  # by error message
    for name, model in config.models.items():
        checks: list[Callable[[Config, str], object]] = [] if model.rollouts else [sizing.sampling_gpus]
        checks += [sizing.check_training] if model.parent else []
        for check in checks:
            try:
                check(config, name)
            except ValueError as error:
                models.setdefault(str(error), []).append(name)
    for message, names in models.items():
        path, _, rest = message.partition(": ")
        if path.startswith("models."):
            yield path, rest
        else:
            on = f" on {config.cluster.gpu}" if config.cluster.gpu and "fit" in message else ""
            yield f"models.{', '.join(dict.fromkeys(names))}{on}", message


def texts(config: Config) -> Mistakes:
    """Settings whose longest texts exceed `engine.max_model_len` or a context: an engine truncates silently."""
    context = cache(partial(roots.context, config))
    for path, tokens, parts, readers in lengths.texts(config):
        contexts = {f"the context of {name}": context(name) for name in readers}
        limits = {"engine.max_model_len": config.engine.max_model_len} | contexts
        known = {what: limit for what, limit in limits.items() if limit}
        shortest = min(known, key=lambda what: known[what], default="")
        if known and (needed := sum(parts.values())) > known[shortest]:
            added = " + ".join(f"{count:,} of {what}" for what, count in parts.items())
            yield path, f"{tokens} does not fit into {shortest}, {known[shortest]}: {added} are {needed:,} tokens"
