"""Look for edits that change an artifact and no fingerprint.

    python tests/core/mutation.py                                                    every stage, a sample of the edits
    python tests/core/mutation.py --stages training.prompts --definitions tokenizer_of --all

Stages run on toy inputs, and the lines that they execute are noted, whatever the fingerprint says of them. Operators,
comparisons, constants, conditions, calls and arguments on these lines are changed. Where the stage's fingerprint stays
the same, the stage runs with the change: its artifact has to stay the same too, or not to be made. Several such changes
are made at once, as none should do anything; where the artifact is another one or is not made, each half is tried, and
so on. Nothing of it depends on time or chance: a sample is seeded.

Stages are forked from a process that has imported their modules, but not polars, whose threads do not survive a fork.
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
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from compileall import compile_dir
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORTS = ("torch", "transformers", "datasets", "trl", "matplotlib.pyplot", "pydantic_settings", "huggingface_hub")
LAZY = {"transformers": ("AutoModelForCausalLM", "AutoTokenizer", "AutoConfig"), "trl": ("SFTTrainer", "SFTConfig")}
AT_ONCE = 8  # changes
SECONDS = 60  # of CPU time: a change may make a loop endless
ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
ENVIRONMENT |= {"HF_HUB_OFFLINE": "1", "MRT_DEVICE": "cpu", "TRANSFORMERS_VERBOSITY": "error", "MPLBACKEND": "agg"}
SPEED = ("train_runtime", "train_samples_per_second", "train_steps_per_second")  # columns of a training's history

OTHER = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod, ast.Mod: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip

# ---- what runs ----

RECIPE = {
    **{"learning_rate": 1e-3, "epochs": 0.75, "batch_size": 2, "micro_batch_size": 2, "max_length": 256},
    **{"bf16": False, "gradient_checkpointing": False, "save_steps": 1, "schedule": "cosine"},
}
# {stage: {run: its options}}; a value that begins with @ is a file of the inputs; outputs are in `made`
STAGES: dict[str, dict[str, str]] = {
    "problems.build": {
        "problems": """--name toy --set '{"toy": {"count": 6, "seed": 1, "difficulties": [3, 4]}}'
            --out made/problems.parquet""",
    },
    "sampling.imports": {
        "rollouts": "--file @answers.jsonl --problems @problems.parquet --out made/rollouts.parquet"
        " --reading made/reading.parquet",
    },
    "episodes.cut": {"episodes": "--rollouts @rollouts.parquet --out made/episodes.parquet"},
    "grading.grade": {
        "grades": "--problems @problems.parquet --answers @rollouts.parquet --out made/grades.parquet",
        "prover_grades": "--problems @problems.parquet --answers @prover.parquet --out made/prover_grades.parquet",
    },
    "analysis.progress": {
        "progress": "--prover @prover.parquet --grades @prover_grades.parquet --out made/progress.parquet",
    },
    "analysis.evaluate": {
        "accuracy": """--measure accuracy --tables problems=@problems.parquet --tables rollouts=@rollouts.parquet
            --tables grades=@grades.parquet --out made/accuracy.parquet""",
        "maj": """--measure maj --tables rollouts=@rollouts.parquet --tables grades=@grades.parquet
            --options '{"ks": [1, 2]}' --out made/maj.parquet""",
        "regret": """--measure regret --tables progress=@progress.parquet --options '{"budgets": [16, 64]}'
            --out made/regret.parquet""",
    },
    "training.sets": {
        "star": """--method star --rollouts @rollouts.parquet --grades @grades.parquet --out made/set.parquet
            --out_rules made/set.rules.parquet""",
        "mrt": """--method mrt --rollouts @rollouts.parquet --grades @grades.parquet --episodes @episodes.parquet
            --progress @progress.parquet --prover @prover.parquet --prover_grades @prover_grades.parquet
            --out made/mrt.parquet --out_rules made/mrt.rules.parquet""",
    },
    "training.prompts": {
        "prompts": """--prefixes 1 --forced true --model @base --problems @problems.parquet --episodes @episodes.parquet
            --out made/prompts.parquet""",
        "wrong tokenizer": "--model @wrong --problems @problems.parquet --out made/prompts.parquet",
    },
    "figures.pass1": {
        "table": """--tables '{"accuracy": {"base": {"toy": "@accuracy.parquet"}}}' --out made/pass1
            --models '{"base": {"label": "Base"}}'""",
    },
    "figures.regret": {
        "figure": """--tables '{"regret": {"base": {"toy": "@regret.parquet"}}}' --out made/regret
            --models '{"base": {"label": "Base"}}'""",
    },
    "training.rl": {"tokenizer": "a snippet, as RL itself takes an engine"},
    "training.sft": {
        "model": f"""--model @base --set @set.parquet --out made/model --history made/history.parquet --state state
            --recipe {shlex.quote(json.dumps(RECIPE))}""",
    },
}
PLUGINS = {  # what stages load by a name
    "grading.grade": ["mrt.tasks.math:Math"],
    "analysis.evaluate": [f"mrt.analysis.measures.{name}:{name}" for name in ("accuracy", "maj", "regret")],
    "training.sets": ["mrt.methods.star:examples", "mrt.methods.mrt:examples", "mrt.methods.mrt:Rules"],
}
# What runs in place of a stage that is not cheap: prompts as RL pads them, also by a tokenizer that is to be mended.
SNIPPETS = {
    "training.rl": """
import json
from pathlib import Path

from mrt.core.hub import tokenizer_of

for name in ("base", "wrong"):
    tokenizer = tokenizer_of(Path("@") / name, padding_side="left")
    ids = tokenizer(["Try 3 + 4 = 7.\\n\\nWait, 5", "7"], padding=True)["input_ids"]
    Path("made", f"{name}.json").write_text(json.dumps(ids))
"""
}
KILLS = 2  # a training is killed when it has saved its second step, and its last one


def inputs(folder: Path, package: Path) -> None:
    """Toy inputs of all stages: completions and answers are written here, the rest is made by the stages."""
    shutil.copytree(package / "toy" / "weights", folder / "base")
    shutil.copytree(folder / "base", folder / "wrong")  # names a class that loses spaces, as R1-Distill-Llama does
    wrong = {
        "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast"},
        "config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    }
    for name, settings in wrong.items():
        file = folder / "wrong" / name
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))
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
    """Run a stage and have its outputs among the inputs. Raises ValueError if it makes nothing."""
    work = folder / "work"
    if not artifact(package, folder, stage, run, work):
        raise ValueError(f"{stage} failed:\n{(work / 'log').read_text()}")
    for file in (work / "made").iterdir():
        file.rename(folder / file.name)


def artifact(package: Path, given: Path, stage: str, run: str, work: Path, trace: Path | None = None) -> str:
    """Run a stage in a folder; the digest of its outputs, empty if it fails. `trace`: where executed lines go."""
    shutil.rmtree(work, ignore_errors=True)
    (work / "made").mkdir(parents=True)
    options = shlex.split(STAGES[stage][run].replace("@", f"{given}/"))

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
            if stage in SNIPPETS:
                exec(compile(SNIPPETS[stage].replace("@", str(given)), stage, "exec"), {})
            else:
                runpy.run_module(f"mrt.{stage}", run_name="__main__", alter_sys=True)
        finally:
            if trace:
                sys.settrace(None)
                known = json.loads(trace.read_text()) if trace.exists() else {}
                merged = {name: sorted({*known.get(name, ()), *lines.get(name, ())}) for name in {*known, *lines}}
                trace.write_text(json.dumps(merged))

    for _ in range(KILLS + 1 if stage == "training.sft" else 1):
        status = forked(work_of_stage, package, work)
        if status != KILLED:
            break
    if status:
        return ""
    forked(lambda: (work / "digest").write_text(digest_of(work / "made")))
    return (work / "digest").read_text()


KILLED = 9


def kill_training() -> None:
    """Have this process end, as if killed, when its trainer has saved its second step, and again after its last one."""
    from transformers import Trainer

    save = Trainer._save_checkpoint

    def saved(self, *arguments, **options):
        save(self, *arguments, **options)
        mark = Path(f"killed-{self.state.global_step}")
        if self.state.global_step in (2, self.state.max_steps) and not mark.exists():
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

    sys.settrace(
        lambda frame, event, _: of_line(frame, event, _) if frame.f_code.co_filename.startswith(inside) else None
    )
    return TRACED


def forked(work: Callable[[], object], package: Path | None = None, folder: Path | None = None) -> int:
    """Run a function in a fork; its exit status. With a package: as a process that has imported nothing of it yet."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        if package:
            kept = (
                set() if (package / "changed").exists() else {"mrt.core.fingerprint", "mrt.core.scope"}
            )  # it has searched all already
            for name in [name for name in sys.modules if name == "mrt" or name.startswith("mrt.")]:
                sys.modules.pop(name) if name not in kept else None
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
    """Digest of a stage's outputs: the rows of tables, without metadata of code, and other files."""
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


# ---- changes ----


def executed(statements: list[ast.stmt], lines: set[int]) -> Iterator[ast.AST]:
    """The nodes of executed statements; of a block, those of its head, and executed ones within it."""
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
    """Changes of a node: a description, the field that is set, and its new value."""
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


@dataclass
class Change:
    """A change of a node of a module; `before`: the old value of its field."""

    module: str
    line: int
    what: str
    node: ast.AST
    field: str
    value: object
    statement: ast.stmt
    before: object = None

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: {self.what}: {ast.unparse(self.node)[:80]}"


class Mutation:
    """Changes of a package, and the changes of its fingerprints."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.fp, self.scope = (import_module(f"mrt.core.{name}") for name in ("fingerprint", "scope"))
        self.scope.PACKAGE = package
        self.plain = dict[tuple[str, int], object]()

    def module_of(self, file: str) -> str:
        parts = Path(file).relative_to(self.package).with_suffix("").parts
        return ".".join(["mrt", *parts]).removesuffix(".__init__")

    def of_module(self, module: str, lines: set[int]) -> Iterator[Change]:
        """Each change of the executed lines of a module."""
        for statement in self.scope.body_of(module):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                for node in executed([statement], lines):
                    line = getattr(node, "lineno", statement.lineno)
                    for what, field, value in changes(node):
                        yield Change(module, line, what, node, field, value, statement)

    def shows(self, stage: str, change: Change) -> bool:
        """Whether the stage's fingerprint has the changed statement, and its part of it is another one."""
        fp, module, statement = self.fp, change.module, change.statement
        names = [name for name, those in self.scope.statements_of(module).items() if statement in those]
        if not any(
            f"{module}.{name}" in fp.reached(f"mrt.{stage}", *PLUGINS.get(stage, ())).definitions for name in names
        ):
            return False
        if (key := (module, id(statement))) not in self.plain:
            self.plain[key] = fp.defined(statement, module)
        before = getattr(change.node, change.field)
        setattr(change.node, change.field, change.value)
        try:
            return fp.defined(statement, module) != self.plain[key]
        finally:
            setattr(change.node, change.field, before)

    @contextmanager
    def changed(self, group: Sequence[Change]) -> Iterator[None]:
        """Have the package as it is with these changes."""
        files = {}
        for change in group:
            change.before = getattr(change.node, change.field)
            setattr(change.node, change.field, change.value)
        for module in {change.module for change in group}:
            file = self.scope.file_of(module)
            compiled = Path(cache_from_source(str(file)))
            files[file] = file.read_bytes(), file.stat().st_mtime_ns, compiled, compiled.read_bytes()
            compiled.unlink()
            file.write_text(
                ast.unparse(ast.fix_missing_locations(copy.deepcopy(ast.Module(self.scope.body_of(module), []))))
            )
        for change in reversed(group):
            setattr(change.node, change.field, change.before)
        if any(change.module in ("mrt.core.fingerprint", "mrt.core.scope") for change in group):
            (self.package / "changed").touch()
        try:
            yield
        finally:
            (self.package / "changed").unlink(missing_ok=True)
            for file, (text, date, compiled, code) in files.items():
                file.write_bytes(text)
                os.utime(file, ns=(date, date))
                compiled.write_bytes(code)

    def fingerprint(self, stage: str, out: Path) -> str:
        """The stage's fingerprint, of the package as it is now."""

        def find() -> None:
            for cached in (*vars(self.fp).values(), *vars(self.scope).values()):
                cached.cache_clear() if hasattr(cached, "cache_clear") else None
            out.write_text(self.fp.reached(f"mrt.{stage}", *PLUGINS.get(stage, ())).hashed)

        forked(find)
        return out.read_text()


def search(
    stages: Sequence[str],
    modules: Sequence[str],
    definitions: Sequence[str],
    most: int | None,
    seed: int,
    original: Path,
) -> tuple[dict[str, int], list[str]]:
    """Look for changes that no fingerprint shows and an artifact does.

    Args:
        stages: the stages that run.
        modules: changed modules; all if there are none.
        definitions: changed functions and classes; all that is executed if there are none.
        most: number of changes chosen for each stage; None: all.
        seed: of this choice.
        original: the package.

    Returns:
        How many changes there were, how many of them no fingerprint showed, how many times stages ran with some; and
        those that changed an artifact, as text.
    """
    for name in IMPORTS:
        found = import_module(name)
        for attribute in LAZY.get(name, ()):
            getattr(found, attribute)
    counted, faults = {"changes": 0, "not shown": 0, "runs": 0}, list[str]()
    with tempfile.TemporaryDirectory(prefix="mrt-mutation-") as name:
        folder = Path(name).resolve()
        package, given, work, trace = (folder / part for part in ("code/mrt", "given", "work", "lines.json"))
        shutil.copytree(original, package, ignore=shutil.ignore_patterns("__pycache__"))
        given.mkdir()
        sys.path.insert(0, str(package.parent))
        mutation = Mutation(package)
        compile_dir(package, quiet=2)
        sys.dont_write_bytecode = True  # compiled forms of changed modules may be taken for those of others
        os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "TRACE": str(trace)}
        inputs(given, package)
        for stage in stages:
            mutation.fp.reached(f"mrt.{stage}", *PLUGINS.get(stage, ()))
            before, lines = {}, dict[str, set[int]]()
            for run in STAGES[stage]:
                trace.unlink(missing_ok=True)
                before[run] = artifact(package, given, stage, run, work, trace)
                if not before[run] or artifact(package, given, stage, run, work) != before[run]:
                    raise ValueError(f"{stage}, {run}: it fails, or makes another thing\n{(work / 'log').read_text()}")
                for file, numbers in json.loads(trace.read_text()).items():
                    lines.setdefault(mutation.module_of(file), set()).update(numbers)
            chosen = [module for module in sorted(lines) if not modules or module in modules]
            every = [
                change
                for module in chosen
                for change in mutation.of_module(module, lines[module])
                if not definitions or getattr(change.statement, "name", "") in definitions
            ]
            rng = random.Random(f"{seed} {stage}")
            drawn = rng.sample(every, len(every) if most is None else min(most, len(every)))
            hidden = [change for change in drawn if not mutation.shows(stage, change)]
            counted["changes"] += len(drawn)
            counted["not shown"] += len(hidden)
            plain = mutation.fingerprint(stage, folder / "hash")
            waiting = [hidden[i : i + AT_ONCE] for i in range(0, len(hidden), AT_ONCE)]
            while waiting:
                group = waiting.pop()
                with mutation.changed(group):
                    after = {run: artifact(package, given, stage, run, work) for run in before}
                    counted["runs"] += len(after)
                    if after == before or (len(group) == 1 and mutation.fingerprint(stage, folder / "hash") != plain):
                        continue
                if len(group) > 1:
                    waiting += [group[: len(group) // 2], group[len(group) // 2 :]]
                elif wrong := [run for run in before if after[run] not in ("", before[run])]:
                    faults.append(f"{stage} ({', '.join(wrong)}): {group[0]}")
            print(f"{stage}: {counted}, {len(faults)} faults", file=sys.stderr, flush=True)
    return counted, faults


def main() -> None:
    os.environ |= ENVIRONMENT
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stages", nargs="*", default=[*STAGES], help="stages to run, without `mrt.`")
    parser.add_argument("--modules", nargs="*", default=[], help="modules to change")
    parser.add_argument("--definitions", nargs="*", default=[], help="functions and classes to change")
    parser.add_argument("--most", type=int, default=100, help="changes to draw, a stage")
    parser.add_argument("--all", action="store_true", help="make all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--package", type=Path, default=ROOT / "mrt", help="folder of the package")
    asked = parser.parse_args()
    counted, faults = search(
        asked.stages, asked.modules, asked.definitions, None if asked.all else asked.most, asked.seed, asked.package
    )
    print(json.dumps({**counted, "faults": faults}, indent=1))


if __name__ == "__main__":
    main()
