# Training: sets, trainings, their logs and their cost.
# `uncontaminated`: no model learns from problems of an evaluation set. A newer check makes no set again.


# The training set of SFT: the examples of its method (mrt/methods), from the tables that the method reads.
rule make_set:
    input:
        uncontaminated=ancient(paths.uncontaminated),
        checkpoint=lambda w: paths.parents_weights(w) if paths.reads_tokenizer(w) else [],
        problems=lambda w: paths.training_problems(w) if paths.reads_tokenizer(w) else [],
        rollouts=paths.if_read("rollouts", "rollouts"),
        grades=paths.if_read("grades", "grades", "rollouts.parquet"),
        episodes=paths.if_read("episodes", "episodes"),
        progress=paths.if_read("progress", "progress"),
        prover=paths.if_read("prover", "prover"),
        prover_grades=paths.if_read("prover_grades", "grades", "prover.parquet"),
        tree=paths.if_read("tree", "trees"),
    output:
        examples=paths.of_model("sets"),
        rules=paths.of_model("sets", "rules.parquet"),
    log:
        paths.log("make_set", "model"),
    wildcard_constraints:
        model=any_of(paths.by_sft()),
    conda:
        SAMPLING
    resources:
        mem_mb=job_resources.reading_for_set,
    params:
        code=options.set_code,
        weights=lambda w: options.identity(paths.parent(w)) if paths.reads_tokenizer(w) else None,
        settings=options.training_set,
        tables=optional(
            "problems",
            "rollouts",
            "grades",
            "episodes",
            "progress",
            "prover",
            "prover_grades",
            "tree",
        ),
    shell:
        "python -m mrt.training.sets --settings {params.settings:q} {params.tables} --out {output.examples:q}"
        " --out_rules {output.rules:q} > {log:q} 2>&1"


# SFT: a trained model from its parent and its set.
rule train:
    input:
        checkpoint=paths.parents_weights,
        examples=paths.of_model("sets"),
        earlier=paths.earlier_sets,
        spent=paths.spent,
    output:
        checkpoint=directory(f"{paths.results}/models/{{model}}"),
        history=paths.of_model("models", "history.parquet"),
    log:
        paths.log("train", "model"),
    wildcard_constraints:
        model=any_of(paths.by_sft()),
    cache: True
    conda:
        TRAINING
    threads: experiment.training_threads
    resources:
        **job_resources.training("train"),
    params:
        code=options.code("training.sft"),
        weights=lambda w: options.identity(paths.parent(w)),
        settings=options.sft,
        execution=options.trained_by("earlier"),
        sharding=options.sharding,
        launch=options.launch,
    shell:
        with_threads(
            "mrt.training.launch {params.launch} mrt.training.sft --settings {params.settings:q} --execution"
            " {params.execution:q} --set {input.examples:q} --history {output.history:q}"
            " --out {output.checkpoint:q}"
        )


# RL: prompts, which may end inside a thought of the parent, and a model trained by GRPO with its method's advantage.
rule rl_prompts:
    input:
        uncontaminated=ancient(paths.uncontaminated),
        checkpoint=paths.parents_weights,
        problems=paths.training_problems,
        episodes=lambda w: paths.of_parent("episodes")(w) if lineage.has_prefixes(experiment, w.model) else [],
        grades=lambda w: (
            paths.of_parent("grades", "rollouts.parquet")(w)
            if lineage.rl_recipe(experiment, w.model).pass_rate
            else []
        ),
    output:
        paths.of_model("prompts"),
    log:
        paths.log("rl_prompts", "model"),
    wildcard_constraints:
        model=any_of(paths.by_rl()),
    conda:
        SAMPLING
    resources:
        mem_mb=job_resources.reading("sample_rollouts"),
    params:
        code=options.code("training.prompts"),
        weights=lambda w: options.identity(paths.parent(w)),
        settings=options.rl_prompts,
        data=optional("episodes", "grades"),
    shell:
        "python -m mrt.training.prompts --settings {params.settings:q} --problems {input.problems:q} {params.data}"
        " --out {output:q} > {log:q} 2>&1"


rule train_rl:
    input:
        checkpoint=paths.parents_weights,
        prompts=paths.of_model("prompts"),
        spent=paths.spent,
    output:
        checkpoint=directory(f"{paths.results}/models/{{model}}"),
        history=paths.of_model("models", "history.parquet"),
    log:
        paths.log("train_rl", "model"),
    wildcard_constraints:
        model=any_of(paths.by_rl()),
    cache: True
    priority: 1  # the longest job: its dependents should not also wait for others
    conda:
        TRAINING
    threads: experiment.training_threads
    resources:
        **job_resources.training("train_rl"),
    params:
        code=options.trainer_code,
        weights=lambda w: options.identity(paths.parent(w)),
        settings=options.rl,
        engine_decides=options.engine_decides(),
        execution=options.trained_by(with_engine=True),
        sharding=options.sharding,
        launch=options.launch,
    shell:
        with_threads(
            "mrt.training.launch {params.launch} mrt.training.rl --settings {params.settings:q} --execution"
            " {params.execution:q} --prompts {input.prompts:q} --history {output.history:q} --out"
            " {output.checkpoint:q}"
        )


# The log of a training, a row a step, from its trainer's history.
rule tabulate_log:
    input:
        paths.of_model("models", "history.parquet"),
    output:
        paths.of_model("models", "log.parquet"),
    log:
        paths.log("tabulate_log", "model"),
    wildcard_constraints:
        model=any_of(paths.trained),
    localrule: True
    conda:
        ANALYSIS
    params:
        code=options.code("training.log"),
    shell:
        "python -m mrt.training.log --history {input:q} --out {output:q} > {log:q} 2>&1"


# The cost of training a model, or a checkpoint on the way, and its ancestors; transformers reads a teacher's sizes.
rule add_up_cost:
    input:
        log=lambda w: paths.of_model("models", "log.parquet", paths.training_of(w)),
        rollouts=paths.if_learnt("rollouts"),
        tree=paths.if_learnt("trees"),
        prover=paths.if_learnt("prover"),
        parent=paths.parents_cost,
    output:
        paths.of_model("costs"),
    log:
        paths.log("add_up_cost", "model"),
    wildcard_constraints:
        model=any_of(filter(paths.is_trained, experiment.models)),
    localrule: True
    conda:
        TRAINING
    params:
        code=options.code("training.cost"),
        settings=options.cost,
        learnt=optional("rollouts", "tree", "prover", "parent"),
    shell:
        "python -m mrt.training.cost --settings {params.settings:q} --model {wildcards.model} --log {input.log:q}"
        " {params.learnt} --out {output:q} > {log:q} 2>&1"


# The cost of a model's data and ancestors, if a budget of FLOPs ends its training.
rule add_up_spent:
    input:
        checkpoint=paths.parents_weights,
        rollouts=paths.if_learnt("rollouts"),
        tree=paths.if_learnt("trees"),
        prover=paths.if_learnt("prover"),
        parent=paths.parents_cost,
    output:
        paths.of_model("costs", "before.parquet"),
    log:
        paths.log("add_up_spent", "model"),
    wildcard_constraints:
        model=any_of(paths.budgeted()),
    localrule: True
    conda:
        TRAINING
    params:
        code=options.code("training.cost"),
        weights=lambda w: options.identity(paths.parent(w)),
        settings=options.spent,
        learnt=optional("rollouts", "tree", "prover", "parent"),
    shell:
        "python -m mrt.training.cost --settings {params.settings:q} --model {wildcards.model} {params.learnt}"
        " --out {output:q} > {log:q} 2>&1"


# The RL log of a model that was trained elsewhere.
rule import_log:
    input:
        lambda w: ancient(experiment.models[w.model].training_log),
    output:
        paths.of_model("models", "log.parquet"),
    log:
        paths.log("import_log", "model"),
    wildcard_constraints:
        model=any_of(paths.logged),
    localrule: True
    conda:
        ANALYSIS
    params:
        code=options.code("training.log"),
        content=lambda w: content_of(experiment.models[w.model].training_log),
    shell:
        "python -m mrt.training.log --file {input:q} --out {output:q} > {log:q} 2>&1"


# The toy base, trained from scratch.
rule toy_base:
    output:
        checkpoint=directory(f"{paths.results}/models/toy_base"),
        history=f"{paths.results}/models/toy_base.history.parquet",
    log:
        paths.log("toy_base"),
    conda:
        TRAINING
    threads: 2
    params:
        code=options.code("training.toy_base"),
        state=f"{paths.results}/.state/toy_base",
        seed=experiment.seed,
        speaks="attempts" if experiment.backtracking else "thoughts",
    shell:
        with_threads(
            "mrt.training.toy_base --speaks {params.speaks} --seed {params.seed} --state {params.state:q}"
            " --history {output.history:q} --out {output.checkpoint:q}"
        )
