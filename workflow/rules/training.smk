# Training: sets of what a model learns from, the trainings, their logs and their cost.
# `uncontaminated`: nothing learns from problems that evaluation has too; a newer check makes no set anew.


# STaR: right traces, whole.
rule star_set:
    input:
        uncontaminated=ancient(paths.uncontaminated),
        rollouts=paths.of_parent("rollouts"),
        grades=paths.of_parent("grades", "rollouts.parquet"),
        episodes=lambda w: paths.of_parent("episodes")(w) if experiment.backtracking else [],
    output:
        examples=paths.of_model("sets"),
        rules=paths.of_model("sets", "rules.parquet"),
    log:
        paths.log("star_set", "model"),
    wildcard_constraints:
        model=paths.trained_with("star"),
    conda:
        ANALYSIS
    resources:
        mem_mb=job_resources.reading("sample_rollouts"),
    params:
        code=options.code("training.sets"),
        settings=options.star_set(),
        episodes=optional("episodes"),
    shell:
        "python -m mrt.training.sets --settings {params.settings:q} --rollouts {input.rollouts:q}"
        " --grades {input.grades:q} {params.episodes} --out {output.examples:q} --out_rules {output.rules:q}"
        " > {log:q} 2>&1"


# MRT (STaR): prefixes of maximal progress, closed there and answered (Algorithm 1).
rule mrt_set:
    input:
        uncontaminated=ancient(paths.uncontaminated),
        rollouts=paths.of_parent("rollouts"),
        grades=paths.of_parent("grades", "rollouts.parquet"),
        episodes=paths.of_parent("episodes"),
        progress=paths.of_parent("progress"),
        prover=paths.of_parent("prover"),
        prover_grades=paths.of_parent("grades", "prover.parquet"),
    output:
        examples=paths.of_model("sets"),
        rules=paths.of_model("sets", "rules.parquet"),
    log:
        paths.log("mrt_set", "model"),
    wildcard_constraints:
        model=paths.trained_with("mrt"),
    conda:
        ANALYSIS
    resources:
        mem_mb=job_resources.reading("force_answers"),
    params:
        code=options.code("training.sets"),
        settings=options.mrt_set,
    shell:
        "python -m mrt.training.sets --settings {params.settings:q} --rollouts {input.rollouts:q}"
        " --grades {input.grades:q} --episodes {input.episodes:q} --progress {input.progress:q} --prover {input.prover:q}"
        " --prover_grades {input.prover_grades:q} --out {output.examples:q} --out_rules {output.rules:q} > {log:q} 2>&1"


# A cold start: right completions of a model without thoughts, or of a teacher, as thoughts with an answer.
rule cold_start_set:
    input:
        uncontaminated=ancient(paths.uncontaminated),
        checkpoint=paths.parents_weights,
        problems=paths.training_problems,
        rollouts=paths.of_parent("rollouts"),
        grades=paths.of_parent("grades", "rollouts.parquet"),
    output:
        examples=paths.of_model("sets"),
        rules=paths.of_model("sets", "rules.parquet"),
    log:
        paths.log("cold_start_set", "model"),
    wildcard_constraints:
        model=paths.trained_with("cold_start"),
    conda:
        SAMPLING
    resources:
        mem_mb=job_resources.reading("sample_rollouts"),
    params:
        code=options.code("training.cold_start"),
        weights=lambda w: options.identity(paths.parent(w)),
        settings=options.cold_start_set,
    shell:
        "python -m mrt.training.cold_start --settings {params.settings:q} --problems {input.problems:q}"
        " --rollouts {input.rollouts:q} --grades {input.grades:q} --out {output.examples:q}"
        " --out_rules {output.rules:q} > {log:q} 2>&1"


# Warmstart sets of backtracking, made from solution trees (Appendix A, Figure 14).
rule warmstart_set:
    input:
        uncontaminated=ancient(paths.uncontaminated),
        checkpoint=paths.parents_weights,
        problems=paths.training_problems,
        tree=paths.of_parent("trees"),
    output:
        examples=paths.of_model("sets"),
        rules=paths.of_model("sets", "rules.parquet"),
    log:
        paths.log("warmstart_set", "model"),
    wildcard_constraints:
        model=paths.trained_with(*TREE_METHODS),
    conda:
        SAMPLING
    resources:
        mem_mb=job_resources.reading("search_tree"),
    params:
        code=options.code("training.warmstart"),
        weights=lambda w: options.identity(paths.parent(w)),
        settings=options.warmstart_set,
    shell:
        "python -m mrt.training.warmstart --settings {params.settings:q} --problems {input.problems:q}"
        " --tree {input.tree:q} --out {output.examples:q} --out_rules {output.rules:q} > {log:q} 2>&1"


# SFT: a child model from its parent and its set.
rule train:
    input:
        checkpoint=paths.parents_weights,
        examples=paths.of_model("sets"),
        earlier=paths.earlier_sets,
    output:
        checkpoint=directory(f"{paths.results}/models/{{model}}"),
        history=paths.of_model("models", "history.parquet"),
    log:
        paths.log("train", "model"),
    wildcard_constraints:
        model=paths.trained_with(*SFT_METHODS),
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
        inputs=files_of("earlier"),
        execution=options.trained_by(),
        sharding=options.sharding,
        launch=options.launch,
    shell:
        with_threads(
            "mrt.training.launch {params.launch} mrt.training.sft --settings {params.settings:q} --execution"
            " {params.execution:q} --inputs {params.inputs:q} --set {input.examples:q} --history {output.history:q}"
            " --out {output.checkpoint:q}"
        )


# RL: prompts, which may end inside a thought of the parent, and a child model by GRPO with a reward and an advantage of its method.
rule rl_prompts:
    input:
        uncontaminated=ancient(paths.uncontaminated),
        checkpoint=paths.parents_weights,
        problems=paths.training_problems,
        episodes=lambda w: paths.of_parent("episodes")(w) if experiment.begun(w.model) else [],
    output:
        paths.of_model("prompts"),
    log:
        paths.log("rl_prompts", "model"),
    wildcard_constraints:
        model=paths.trained_with(*RL_METHODS),
    conda:
        SAMPLING
    resources:
        mem_mb=job_resources.reading("sample_rollouts"),
    params:
        code=options.code("training.prompts"),
        weights=lambda w: options.identity(paths.parent(w)),
        settings=options.rl_prompts,
        episodes=optional("episodes"),
    shell:
        "python -m mrt.training.prompts --settings {params.settings:q} --problems {input.problems:q} {params.episodes}"
        " --out {output:q} > {log:q} 2>&1"


rule train_rl:
    input:
        checkpoint=paths.parents_weights,
        prompts=paths.of_model("prompts"),
    output:
        checkpoint=directory(f"{paths.results}/models/{{model}}"),
        history=paths.of_model("models", "history.parquet"),
    log:
        paths.log("train_rl", "model"),
    wildcard_constraints:
        model=paths.trained_with(*RL_METHODS),
    cache: True
    priority: 1  # the longest of all jobs: what waits for it should not have to wait for others too
    conda:
        TRAINING
    threads: experiment.training_threads
    resources:
        **job_resources.training("train_rl"),
    params:
        code=options.judging("training.rl"),
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


# The log of a training, a row a step, of what its trainer logged.
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


# What the training of a model and of its ancestors took; a teacher's sizes are read with transformers.
rule add_up_cost:
    input:
        log=paths.of_model("models", "log.parquet"),
        rollouts=paths.if_learnt("rollouts"),
        tree=paths.if_learnt("trees"),
        prover=paths.if_learnt("prover"),
        parent=paths.parents_cost,
    output:
        paths.of_model("costs"),
    log:
        paths.log("add_up_cost", "model"),
    wildcard_constraints:
        model=any_of(paths.trained),
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


# The toy base, from nothing.
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
