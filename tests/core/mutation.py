"""Look for edits that change an artifact and no fingerprint.

    python tests/core/mutation.py                                                    every stage, a sample of the edits
    python tests/core/mutation.py --stages training.prompts --modules mrt.core.hub --all

Stages run on toy inputs, and the lines that they execute are noted, whatever the fingerprint says of them. Then each
operator, comparison, constant, condition, call and pair of arguments on these lines is changed, one at a time. Where
the stage's fingerprint stays the same, the stage runs with the change: its artifact has to stay the same too, or not to
be made. Nothing of it depends on time or chance: a sample is seeded.

Stages are forked from a process that has imported what they need, but not polars, whose threads do not survive a fork.
"""

import argparse
import ast
import copy
import hashlib
import json
import os
import random
import resource
import runpy
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ[variable] = "1"
os.environ |= {"HF_HUB_OFFLINE": "1", "MRT_DEVICE": "cpu", "TRANSFORMERS_VERBOSITY": "error", "MPLBACKEND": "agg"}

ROOT = Path(__file__).parents[2]
IMPORTS = ("torch", "transformers", "datasets", "trl", "matplotlib.pyplot", "pydantic_settings", "huggingface_hub")
LAZY = {"transformers": ("AutoModelForCausalLM", "AutoTokenizer", "AutoConfig"), "trl": ("SFTTrainer", "SFTConfig")}
SECONDS = 60  # of CPU time: a change may make a loop endless
SPEED = ("train_runtime", "train_samples_per_second", "train_steps_per_second")  # columns of a training's history

OTHER = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod, ast.Mod: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip

# ---- what runs ----

RECIPE = {
    **{"learning_rate": 1e-3, "epochs": 0.75, "batch_size": 2, "micro_batch_size": 2, "max_length": 256},
    **{"bf16": False, "gradient_checkpointing": False, "save_steps": 1, "schedule": "cosine"},
}
# {stage: runs of it, by name: its options, where what begins with @ is a file of the inputs, `made/...` what it makes}
STAGES: dict[str, dict[str, list[str]]] = {
    "problems.build": {
        "problems": ["--name", "toy", "--set", '{"toy": {"count": 6, "seed": 1, "difficulties": [3, 4]}}']
        + ["--out", "made/problems.parquet"],
    },
    "sampling.imports": {
        "rollouts": ["--file", "@answers.jsonl", "--problems", "@problems.parquet", "--out", "made/rollouts.parquet"],
    },
    "episodes.cut": {"episodes": ["--rollouts", "@rollouts.parquet", "--out", "made/episodes.parquet"]},
    "grading.grade": {
        "grades": ["--problems", "@problems.parquet", "--answers", "@rollouts.parquet", "--out", "made/grades.parquet"],
        "prover_grades": ["--problems", "@problems.parquet", "--answers", "@prover.parquet"]
        + ["--out", "made/prover_grades.parquet"],
    },
    "analysis.progress": {
        "progress": ["--prover", "@prover.parquet", "--grades", "@prover_grades.parquet"]
        + ["--out", "made/progress.parquet"],
    },
    "analysis.evaluate": {
        "accuracy": ["--measure", "accuracy", "--problems", "@problems.parquet", "--rollouts", "@rollouts.parquet"]
        + ["--grades", "@grades.parquet", "--out", "made/accuracy.parquet"],
        "maj": ["--measure", "maj", "--rollouts", "@rollouts.parquet", "--grades", "@grades.parquet"]
        + ["--ks", "[1, 2]", "--out", "made/maj.parquet"],
        "regret": ["--measure", "regret", "--progress", "@progress.parquet", "--budgets", "[16, 64]"]
        + ["--out", "made/regret.parquet"],
    },
    "training.sets": {
        "star": ["--method", "star", "--rollouts", "@rollouts.parquet", "--grades", "@grades.parquet"]
        + ["--out", "made/set.parquet", "--out_rules", "made/set.rules.parquet"],
        "mrt": ["--method", "mrt", "--rollouts", "@rollouts.parquet", "--grades", "@grades.parquet", "--out"]
        + ["made/mrt.parquet", "--out_rules", "made/mrt.rules.parquet", "--episodes", "@episodes.parquet"]
        + ["--progress", "@progress.parquet", "--prover", "@prover.parquet", "--prover_grades"]
        + ["@prover_grades.parquet"],
    },
    "training.prompts": {
        "prompts": ["--method", "mrt_rl", "--model", "@base", "--problems", "@problems.parquet", "--episodes"]
        + ["@episodes.parquet", "--out", "made/prompts.parquet"],
        "wrong tokenizer": ["--method", "grpo", "--model", "@wrong", "--problems", "@problems.parquet"]
        + ["--out", "made/prompts.parquet"],
    },
    "figures.pass1": {
        "table": ["--tables", '{"accuracy": {"base": {"toy": "@accuracy.parquet"}}}', "--models"]
        + ['{"base": {"label": "Base"}}', "--out", "made/pass1"],
    },
    "figures.regret": {
        "figure": ["--tables", '{"regret": {"base": {"toy": "@regret.parquet"}}}', "--models"]
        + ['{"base": {"label": "Base"}}', "--out", "made/regret"],
    },
    "training.sft": {
        "model": ["--model", "@base", "--set", "@set.parquet", "--out", "made/model", "--history"]
        + ["made/history.parquet", "--state", "state", "--recipe", json.dumps(RECIPE)],
    },
}
KILLED_AFTER = (2, 3)  # steps: a training is killed when it has saved one of these, the last one among them


def inputs(folder: Path, package: Path) -> None:
    """Toy inputs of all stages: completions and answers are written here, the rest is made by the stages."""
    shutil.copytree(package / "toy" / "weights", folder / "base")
    shutil.copytree(folder / "base", folder / "wrong")  # names a class that loses spaces, as R1-Distill-Llama does
    settings = json.loads((folder / "wrong" / "tokenizer_config.json").read_text())
    (folder / "wrong" / "tokenizer_config.json").write_text(
        json.dumps(settings | {"tokenizer_class": "LlamaTokenizerFast"})
    )
    made(package, folder, "problems.build", "problems")

    def write_answers() -> None:
        import polars as pl

        problems = pl.read_parquet(folder / "problems.parquet")
        with (folder / "answers.jsonl").open("w") as file:
            for number, (problem, answer) in enumerate(problems.select("id", "answer").iter_rows()):
                for sample in range(3):
                    said = answer if (number + sample) % 3 else "1"
                    steps = [f"{word}try {i} + 4 = {i + 4}.\n\n" for i, word in enumerate(("", "Wait, ", "Wait, "))]
                    text = "<think>\n" + "".join(steps[: 1 + sample]) + f"</think>\n\nSo it is \\boxed{{{said}}}."
                    row = {"problem_id": problem, "sample": sample, "text": text, "finish_reason": "stop"}
                    print(json.dumps(row | {"tokens": 20 + number, "prompt": "Add up.<think>\n"[:8]}), file=file)

    forked(write_answers)
    for stage, run in (("sampling.imports", "rollouts"), ("episodes.cut", "episodes"), ("grading.grade", "grades")):
        made(package, folder, stage, run)

    def write_prover() -> None:
        import polars as pl

        problems = dict(pl.read_parquet(folder / "problems.parquet").select("id", "answer").iter_rows())
        episodes = pl.read_parquet(folder / "episodes.parquet")
        rows = []
        for (problem, sample), table in episodes.group_by("problem_id", "sample", maintain_order=True):
            for prefix in range(table.height + 1):
                for index in range(4):
                    said = problems[problem] if index < 1 + prefix else "1"
                    text, spent = f"It is \\boxed{{{said}}}.", 9 * prefix
                    rows.append((problem, sample, prefix, index, text, 6 + index % 2, 5, spent, 5 + spent + 4, "stop"))
        keys = ["problem_id", "sample", "prefix", "answer_index", "text", "tokens", "problem_tokens", "prefix_tokens"]
        table = pl.DataFrame(rows, schema=[*keys, "prompt_tokens", "finish_reason"], orient="row")
        table.with_columns(mean_logprob=pl.lit(None, pl.Float64)).write_parquet(folder / "prover.parquet")

    forked(write_prover)
    for stage, run in (("grading.grade", "prover_grades"), ("analysis.progress", "progress")):
        made(package, folder, stage, run)
    for stage, run in (("analysis.evaluate", "accuracy"), ("analysis.evaluate", "regret"), ("training.sets", "star")):
        made(package, folder, stage, run)


def made(package: Path, folder: Path, stage: str, run: str) -> None:
    """Run a stage and have what it makes among the inputs. Raises ValueError if it makes nothing."""
    work = folder / "work"
    if not artifact(package, folder, stage, run, work):
        raise ValueError(f"{stage} failed:\n{(work / 'log').read_text()}")
    for file in (work / "made").iterdir():
        file.rename(folder / file.name)


def artifact(package: Path, given: Path, stage: str, run: str, work: Path, trace: Path | None = None) -> str:
    """Run a stage in a folder; the digest of what it makes, empty if it fails. `trace`: where executed lines go."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "made").mkdir(parents=True)
    options = [option.replace("@", f"{given}/") for option in STAGES[stage][run]]

    def work_of_stage() -> None:
        output = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        if stage == "training.sft":
            kill_training()
        sys.argv = [stage, *options]
        lines = traced(package) if trace else {}
        try:
            runpy.run_module(f"mrt.{stage}", run_name="__main__", alter_sys=True)
        finally:
            if trace:
                sys.settrace(None)
                known = json.loads(trace.read_text()) if trace.exists() else {}
                merged = {name: sorted({*known.get(name, ()), *lines.get(name, ())}) for name in {*known, *lines}}
                trace.write_text(json.dumps(merged))

    for _ in range(len(KILLED_AFTER) + 1 if stage == "training.sft" else 1):
        status = forked(work_of_stage, package, work)
        if status != KILLED:
            break
    if status:
        return ""
    forked(lambda: (work / "digest").write_text(digest_of(work / "made")))
    return (work / "digest").read_text()


KILLED = 9


def kill_training() -> None:
    """Have this process end, as if killed, when its trainer has saved a certain step; each one once."""
    from transformers import Trainer

    save = Trainer._save_checkpoint

    def saved(self, *arguments, **options):
        save(self, *arguments, **options)
        mark = Path(f"killed-{self.state.global_step}")
        if self.state.global_step in KILLED_AFTER and not mark.exists():
            mark.touch()
            if lines := sys.gettrace() and TRACED:
                keep = Path(os.environ["TRACE"])
                keep.write_text(json.dumps({name: sorted(numbers) for name, numbers in lines.items()}))
            os._exit(KILLED)

    Trainer._save_checkpoint = saved


TRACED: dict[str, set[int]] = {}


def traced(package: Path) -> dict[str, set[int]]:
    """Note from now on which lines of the package are executed, by file."""
    inside = f"{package}/"

    def of_line(frame, event, _):
        TRACED.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return of_line

    sys.settrace(lambda frame, event, _: of_line(frame, event, _) if frame.f_code.co_filename.startswith(inside) else None)
    return TRACED


def forked(work, package: Path | None = None, folder: Path | None = None) -> int:
    """Run a function in a fork; its exit status. With a package: as a process that has imported nothing of it yet."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        if package:
            for name in [name for name in sys.modules if name == "mrt" or name.startswith("mrt.")]:
                del sys.modules[name]
            sys.path[:] = [str(package.parent), *(p for p in sys.path if p not in (str(ROOT), str(package.parent)))]
            os.environ["PYTHONPATH"] = str(package.parent)
            os.chdir(folder or ".")
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def digest_of(folder: Path) -> str:
    """Digest of what a stage made: the rows of tables, without what their metadata tell of code, and other files."""
    import polars as pl

    found = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".pdf", ".png")):
        content = file.read_bytes()
        if file.suffix == ".parquet":
            table = pl.read_parquet(file)
            table = table.drop(SPEED, strict=False)
            content = f"{table.schema} {table.rows()!r}".encode()
        found.update(f"{file.relative_to(folder)} {len(content)} ".encode() + content)
    return found.hexdigest()


# ---- what is changed ----


def executed(statements: list[ast.stmt], lines: set[int]) -> Iterator[ast.AST]:
    """The nodes of executed statements; of a block, those of its head, and what is executed within it."""
    for statement in statements:
        blocks = [getattr(statement, name) for name in ("body", "orelse", "finalbody") if hasattr(statement, name)]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        blocks += [case.body for case in getattr(statement, "cases", [])]
        inner = {id(each) for block in blocks if isinstance(block, list) for each in block}
        head = [statement] if inner else list(ast.walk(statement))
        waiting = [child for child in ast.iter_child_nodes(statement) if id(child) not in inner] if inner else []
        while waiting:
            node = waiting.pop()
            if not isinstance(node, ast.ExceptHandler | ast.match_case):
                head.append(node)
                waiting += ast.iter_child_nodes(node)
        end = min((each.lineno for block in blocks for each in block), default=statement.end_lineno + 1)
        if lines & set(range(statement.lineno, max(end, statement.lineno + 1))):
            yield from head
        for block in blocks:
            yield from executed(block, lines) if isinstance(block, list) else ()


def changes(node: ast.AST) -> Iterator[tuple[str, str, object]]:
    """Changes of a node: what is done, the field that is set, and its new value."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, str, bool):
        value = node.value
        yield "constant", "value", not value if isinstance(value, bool) else value + ("x" if type(value) is str else 1)
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OTHER:
        yield "operator", "op", OTHER[type(node.op)]()
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        yield "comparison", "ops", [OTHER[type(node.ops[0])](), *node.ops[1:]]
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition", "test", ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "sign", "op", ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
    if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        yield "call left out", "value", ast.Constant(None)
    if isinstance(node, ast.Return) and node.value is not None:
        yield "value not returned", "value", None
    if isinstance(node, ast.AugAssign):
        yield "statement left out", "value", ast.Constant(0)
    if isinstance(node, ast.Call) and len(node.args) > 1 and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
        yield "arguments swapped", "args", [node.args[1], node.args[0], *node.args[2:]]
    if isinstance(node, ast.Call) and node.keywords:
        yield "argument left out", "keywords", node.keywords[1:]


class Mutation:
    """Changes of a package, and what its fingerprints say of them."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.fp = import_module("mrt.core.fingerprint")
        self.fp.PACKAGE = package
        self.plain = dict[tuple[str, int], object]()

    def module_of(self, file: str) -> str:
        parts = Path(file).relative_to(self.package).with_suffix("").parts
        return ".".join(["mrt", *parts]).removesuffix(".__init__")

    def of_module(self, module: str, lines: set[int]) -> Iterator[tuple[ast.stmt, ast.AST, str, str, object]]:
        """Each change of the executed lines of a module, with the statement at its top level that has it."""
        for statement in self.fp.parsed(module).body:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                for node in executed([statement], lines):
                    for change in changes(node):
                        yield statement, node, *change

    def counts(self, stage: str, module: str, statement: ast.stmt, node: ast.AST, field: str, value: object) -> bool:
        """Whether a change is seen: the fingerprint has the statement, and the statement's part of it changes."""
        fp, key = self.fp, (module, id(statement))
        names = [name for name, those in fp.statements_of(module).items() if statement in those]
        if not any(f"{module}.{name}" in fp.reached(f"mrt.{stage}").definitions for name in names):
            return False
        if key not in self.plain:
            self.plain[key] = fp.defined(statement, module)
        before = getattr(node, field)
        setattr(node, field, value)
        try:
            return fp.defined(statement, module) != self.plain[key]
        finally:
            setattr(node, field, before)

    def source(self, module: str, node: ast.AST, field: str, value: object) -> str:
        before = getattr(node, field)
        setattr(node, field, value)
        try:
            return ast.unparse(ast.fix_missing_locations(copy.deepcopy(self.fp.parsed(module))))
        finally:
            setattr(node, field, before)

    def fingerprint(self, stage: str, out: Path) -> str:
        """The stage's fingerprint, of the package as it is now."""

        def find() -> None:
            for name in dir(self.fp):
                if hasattr(found := getattr(self.fp, name), "cache_clear"):
                    found.cache_clear()
            out.write_text(self.fp.reached(f"mrt.{stage}").hashed)

        forked(find)
        return out.read_text()


def search(
    stages: list[str], modules: list[str], most: int | None, seed: int, original: Path
) -> tuple[dict[str, int], list[str]]:
    """Look for changes that no fingerprint shows and an artifact does.

    Args:
        stages: the stages that run.
        modules: changed modules; all if there are none.
        most: so many changes a stage are run, drawn among those that its fingerprint does not show; None: all.
        original: the package.

    Returns:
        How many changes there were, how many of them no fingerprint showed, how many of these ran; and those that
        changed an artifact, as text.
    """
    for name in IMPORTS:
        found = import_module(name)
        for attribute in LAZY.get(name, ()):
            getattr(found, attribute)
    counted, faults = {"changes": 0, "not shown": 0, "run": 0, "failed": 0}, []
    with tempfile.TemporaryDirectory(prefix="mrt-mutation-") as name:
        folder = Path(name).resolve()
        package, given, work, trace = (folder / part for part in ("code/mrt", "given", "work", "lines.json"))
        shutil.copytree(original, package, ignore=shutil.ignore_patterns("__pycache__"))
        given.mkdir()
        sys.path.insert(0, str(package.parent))
        mutation = Mutation(package)
        forked(lambda: __import__("compileall").compile_dir(package, quiet=2))
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "TRACE": str(trace)}
        inputs(given, package)
        for stage in stages:
            before, lines = {}, dict[str, dict[str, set[int]]]()
            for run in STAGES[stage]:
                trace.unlink(missing_ok=True)
                before[run] = artifact(package, given, stage, run, work, trace)
                said = (work / "log").read_text()
                if not before[run] or artifact(package, given, stage, run, work) != before[run]:
                    raise ValueError(f"{stage}, {run}: it fails, or makes something else each time\n{said}")
                of_run = json.loads(trace.read_text())
                lines[run] = {mutation.module_of(file): set(numbers) for file, numbers in of_run.items()}
            everywhere = sorted({module for of_run in lines.values() for module in of_run})
            unseen = []
            for module in everywhere if not modules else [m for m in everywhere if m in modules]:
                union = set().union(*(of_run.get(module, set()) for of_run in lines.values()))
                for statement, node, what, field, value in mutation.of_module(module, union):
                    counted["changes"] += 1
                    if not mutation.counts(stage, module, statement, node, field, value):
                        line = getattr(node, "lineno", statement.lineno)
                        runs = [run for run in STAGES[stage] if line in lines[run].get(module, ())] or [*STAGES[stage]]
                        unseen.append((module, node, what, field, value, line, runs))
            counted["not shown"] += len(unseen)
            drawn = unseen if most is None else random.Random(f"{seed} {stage}").sample(unseen, min(most, len(unseen)))
            plain = mutation.fingerprint(stage, folder / "hash")
            for module, node, what, field, value, line, runs in drawn:
                counted["run"] += 1
                file = mutation.fp.file_of(module)
                text, compiled = file.read_text(), Path(__import__("importlib.util").util.cache_from_source(str(file)))
                kept = compiled.read_bytes()
                compiled.unlink()
                file.write_text(mutation.source(module, node, field, value))
                try:
                    for run in runs:
                        after = artifact(package, given, stage, run, work)
                        counted["failed"] += not after
                        if after and after != before[run] and mutation.fingerprint(stage, folder / "hash") == plain:
                            faults.append(f"{stage} ({run}): {module}, line {line}: {what}: {ast.unparse(node)[:80]}")
                finally:
                    stat = file.stat()
                    file.write_text(text)
                    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
                    restore(file, text, compiled, kept)
            print(f"{stage}: {counted}, {len(faults)} faults", file=sys.stderr, flush=True)
    return counted, faults


def restore(file: Path, text: str, compiled: Path, kept: bytes) -> None:
    """Put a module's source and its compiled form back, with the date that the compiled form has of it."""
    seconds = int.from_bytes(kept[8:12], "little")
    os.utime(file, (seconds, seconds))
    compiled.write_bytes(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stages", nargs="*", default=[*STAGES], help="stages to run, without `mrt.`")
    parser.add_argument("--modules", nargs="*", default=[], help="modules to change")
    parser.add_argument("--most", type=int, default=10, help="changes to run, a stage")
    parser.add_argument("--all", action="store_true", help="run all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--package", type=Path, default=ROOT / "mrt", help="folder of the package")
    asked = parser.parse_args()
    counted, faults = search(asked.stages, asked.modules, None if asked.all else asked.most, asked.seed, asked.package)
    print(json.dumps({**counted, "faults": faults}, indent=1))


if __name__ == "__main__":
    main()
