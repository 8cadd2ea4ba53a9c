# Training: a child model from its parent and its set; and the toy base from nothing.
rule train:
    input:
        checkpoint=lambda w: weights_input(parent_of(w)),
        examples=f"{RESULTS}/sets/{{model}}.parquet",
    output:
        checkpoint=directory(f"{RESULTS}/models/{{model}}"),
        history=f"{RESULTS}/models/{{model}}.history.parquet",
    log:
        log_of("train", "model"),
    wildcard_constraints:
        model=trained_with("star", "mrt", "cold_start", *TREE_METHODS),
    cache: True
    conda:
        TRAINING
    threads: experiment.training_threads
    resources:
        **training_resources("train"),
    params:
        code=code_of("training.sft"),
        parent=lambda w: model_options(parent_of(w)),
        weights=lambda w: identity_of(parent_of(w)),
        recipe=lambda w: slice_of(experiment.recipe(w.model)),
        state=f"{RESULTS}/.state/{{model}}",
        keep=f"{RESULTS}/.cache/models/{{model}}",
        report_to=reported_to,
        launch=launched,
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.training.launch {params.launch} mrt.training.sft {params.parent} --set {input.examples:q}"
        " --recipe {params.recipe:q} {params.report_to} --state {params.state:q} --keep {params.keep:q} --history {output.history:q}"
        " --out {output.checkpoint:q} > {log:q} 2>&1"


# RL: prompts that end inside a thought, and a child model by GRPO with a reward and an advantage of its method.
rule rl_prompts:
    input:
        problems=lambda w: f"{RESULTS}/problems/{experiment.models[w.model].problems}.parquet",
        rollouts=of_parent("rollouts"),
        episodes=of_parent("episodes"),
    output:
        f"{RESULTS}/prompts/{{model}}.parquet",
    log:
        log_of("rl_prompts", "model"),
    wildcard_constraints:
        model=trained_with(*RL_METHODS),
    conda:
        ANALYSIS
    params:
        code=code_of("training.prompts"),
        method=lambda w: experiment.models[w.model].method,
        seed=lambda w: experiment.seed + experiment.recipe(w.model).seed,
        prefixes=lambda w: experiment.recipe(w.model).prefixes,
        parameterization=FORCING,
    shell:
        "python -m mrt.training.prompts --method {params.method} --problems {input.problems:q} --rollouts {input.rollouts:q}"
        " --episodes {input.episodes:q} --seed {params.seed} --prefixes {params.prefixes}"
        " --parameterization {params.parameterization:q}"
        " --out {output:q} > {log:q} 2>&1"


rule train_rl:
    input:
        checkpoint=lambda w: weights_input(parent_of(w)),
        prompts=f"{RESULTS}/prompts/{{model}}.parquet",
    output:
        checkpoint=directory(f"{RESULTS}/models/{{model}}"),
        history=f"{RESULTS}/models/{{model}}.history.parquet",
    log:
        log_of("train_rl", "model"),
    wildcard_constraints:
        model=trained_with(*RL_METHODS),
    cache: True
    priority: 1  # the longest of all jobs: what waits for it should not have to wait for others too
    conda:
        TRAINING
    threads: experiment.training_threads
    resources:
        **training_resources("train_rl"),
    params:
        code=code_of("training.rl"),
        parent=lambda w: model_options(parent_of(w)),
        weights=lambda w: identity_of(parent_of(w)),
        method=lambda w: experiment.models[w.model].method,
        recipe=lambda w: slice_of(experiment.recipe(w.model)),
        parameterization=slice_of(experiment.parameterization),
        engine=engine_options,
        engine_decides=engine_decides,
        state=f"{RESULTS}/.state/{{model}}",
        keep=f"{RESULTS}/.cache/models/{{model}}",
        report_to=reported_to,
        launch=launched,
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.training.launch {params.launch} mrt.training.rl {params.parent} --prompts {input.prompts:q}"
        " --method {params.method} --recipe {params.recipe:q} --parameterization {params.parameterization:q}"
        " --engine {params.engine:q} {params.report_to} --state {params.state:q} --keep {params.keep:q} --history {output.history:q}"
        " --out {output.checkpoint:q} > {log:q} 2>&1"


# The log of a training, a row a step, of what its trainer logged.
rule tabulate_log:
    input:
        f"{RESULTS}/models/{{model}}.history.parquet",
    output:
        f"{RESULTS}/models/{{model}}.log.parquet",
    log:
        log_of("tabulate_log", "model"),
    wildcard_constraints:
        model=any_of(TRAINED),
    localrule: True
    conda:
        ANALYSIS
    params:
        code=code_of("training.log"),
    shell:
        "python -m mrt.training.log --history {input:q} --out {output:q} > {log:q} 2>&1"


# What the training of a model and of its ancestors took.
rule add_up_cost:
    input:
        log=f"{RESULTS}/models/{{model}}.log.parquet",
        rollouts=of_parent_for("rollouts", "star", "mrt", "mrt_rl", "cold_start"),
        tree=of_parent_for("trees", *TREE_METHODS),
        prover=of_parent_for("prover", "mrt"),
        parent=parents_cost,
    output:
        f"{RESULTS}/costs/{{model}}.parquet",
    log:
        log_of("add_up_cost", "model"),
    wildcard_constraints:
        model=any_of(TRAINED),
    localrule: True
    conda:
        ANALYSIS
    params:
        code=code_of("training.cost"),
        rollouts=option("rollouts"),
        tree=option("tree"),
        prover=option("prover"),
        parent=option("parent"),
    shell:
        "python -m mrt.training.cost --model {wildcards.model} --log {input.log:q} {params.rollouts} {params.tree} {params.prover}"
        " {params.parent} --out {output:q} > {log:q} 2>&1"


# The RL log of a model that was trained elsewhere.
rule import_log:
    input:
        lambda w: ancient(experiment.models[w.model].training_log),
    output:
        f"{RESULTS}/models/{{model}}.log.parquet",
    log:
        log_of("import_log", "model"),
    wildcard_constraints:
        model=any_of(LOGGED),
    localrule: True
    conda:
        ANALYSIS
    params:
        code=code_of("training.log"),
        content=lambda w: content_of(experiment.models[w.model].training_log),
    shell:
        "python -m mrt.training.log --file {input:q} --out {output:q} > {log:q} 2>&1"


rule toy_base:
    output:
        checkpoint=directory(f"{RESULTS}/models/toy_base"),
        history=f"{RESULTS}/models/toy_base.history.parquet",
    log:
        log_of("toy_base"),
    conda:
        TRAINING
    threads: 2
    params:
        code=code_of("toy.base"),
        state=f"{RESULTS}/.state/toy_base",
        seed=experiment.seed,
        speaks="attempts" if experiment.backtracking else "thoughts",
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.toy.base --speaks {params.speaks} --seed {params.seed} --state {params.state:q}"
        " --history {output.history:q} --out {output.checkpoint:q} > {log:q} 2>&1"
