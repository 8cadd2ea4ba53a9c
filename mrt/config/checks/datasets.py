"""Checks of the folder of results, of names, and of datasets."""

import re

from mrt.config.checks.given import Given, Mistakes, file_mistakes, in_a_circle, unknown
from mrt.grading.task import task_of


def result_folder(given: Given) -> Mistakes:
    """A folder that Snakemake would read as a pattern."""
    if {"{", "}"} & set(str(given.raw.get("results"))):
        yield "results", "braces are Snakemake's; name the folder without them"


def names(given: Given) -> Mistakes:
    """Names that are invalid in a path or a pattern."""
    for section in ("problems", "models"):
        for name in given.section(section):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
                why = "a name is made of letters, digits, _, - and ., and begins with one of the first two"
                yield f"{section}.{name}", why


def sources(given: Given) -> Mistakes:
    """Mistakes of a dataset: its file, its task, the sets that it must be disjoint from."""
    known, built = given.section("problems"), given.built

    def disjoint_from(name: str) -> list[str]:
        return given.problems[name].disjoint_from if name in given.problems else []

    for name, dataset in given.problems.items():
        for other in dataset.disjoint_from:
            yield from unknown(f"problems.{name}.disjoint_from", other, known)
        if in_a_circle(name, disjoint_from):
            yield f"problems.{name}.disjoint_from", "the sets that it must be disjoint from wait for itself"
        try:
            task = task_of(dataset.task) if dataset.task else None
            columns, unmet = (task.columns, task.unmet()) if task else ((), "")
        except ValueError as error:
            yield f"problems.{name}.task", str(error)
        else:
            if dataset.toy and columns:
                why = f"it reads {', '.join(columns)}, which problems of the toy world do not have"
                yield f"problems.{name}.task", why
            if unmet:
                yield f"problems.{name}.task", unmet
        if dataset.file:
            yield from file_mistakes(f"problems.{name}.file", dataset.file, lambda: None)
        if isinstance(wrong := built.get(name), Exception):
            yield f"problems.{name}.file", str(wrong)


def remade_toy(given: Given) -> Mistakes:
    """Problems that a toy base is not to have seen, where it is remade from other traces than the shipped one."""
    if not given.raw.get("seed") or all(model.toy != "remade" for model in given.models.values()):
        return
    for name, dataset in given.problems.items():
        if dataset.toy and dataset.toy.unseen:
            why = "what a base saw is known of the shipped ones alone; with `toy: remade` leave it out, or `seed` at 0"
            yield f"problems.{name}.toy.unseen", why
