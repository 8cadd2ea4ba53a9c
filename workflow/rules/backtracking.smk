# Backtracking search (Appendix A): solution trees, warmstart sets made from them, linearized evaluation.
rule search_tree:
    input:
        checkpoint=lambda w: weights_input(w.model),
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
    output:
        artifact("trees"),
    log:
        log_of("search_tree", "model", "dataset"),
    wildcard_constraints:
        model=any_of(SAMPLED),
    cache: True
    conda:
        INFERENCE
    threads: experiment.engine_threads
    resources:
        **sampling_resources("search_tree", sampling_gpus),
    params:
        code=code_of("sampling.tree"),
        model=lambda w: model_options(w.model),
        weights=lambda w: identity_of(w.model),
        prompt=prompt_of,
        settings=slice_of(experiment.training.tree),
        parameterization=FORCING,
        engine=engine_options,
        engine_decides=engine_decides,
        seed=experiment.seed,
        keep=f"{RESULTS}/.cache/trees/{{model}}/{{dataset}}",
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.core.fork_server mrt.sampling.tree {params.model} --problems {input.problems:q}"
        " --names {wildcards.model} --names {wildcards.dataset} --seed {params.seed} --prompt {params.prompt:q}"
        " --settings {params.settings:q} --parameterization {params.parameterization:q} --engine {params.engine:q}"
        " --keep.folder {params.keep:q} --out {output:q} > {log:q} 2>&1"


rule warmstart_set:
    input:
        checkpoint=lambda w: weights_input(parent_of(w)),
        problems=lambda w: f"{RESULTS}/problems/{experiment.models[w.model].problems}.parquet",
        tree=of_parent("trees"),
    output:
        examples=f"{RESULTS}/sets/{{model}}.parquet",
        rules=f"{RESULTS}/sets/{{model}}.rules.parquet",
    log:
        log_of("warmstart_set", "model"),
    wildcard_constraints:
        model=trained_with(*TREE_METHODS),
    conda:
        INFERENCE
    params:
        code=code_of("training.warmstart"),
        method=lambda w: experiment.models[w.model].method,
        parent=lambda w: model_options(parent_of(w)),
        prompt=lambda w: slice_of(experiment.models[parent_of(w)].prompt or experiment.prompt),
        parameterization=FORCING,
        seed=experiment.seed,
    shell:
        "python -m mrt.training.warmstart --method {params.method} {params.parent} --problems {input.problems:q}"
        " --tree {input.tree:q} --prompt {params.prompt:q} --parameterization {params.parameterization:q}"
        " --seed {params.seed} --out {output.examples:q} --out_rules {output.rules:q} > {log:q} 2>&1"


rule linearize:
    input:
        checkpoint=lambda w: weights_input(w.model),
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
    output:
        artifact("linearized"),
    log:
        log_of("linearize", "model", "dataset"),
    wildcard_constraints:
        model=any_of(SAMPLED),
    cache: True
    conda:
        INFERENCE
    threads: experiment.engine_threads
    resources:
        **sampling_resources("linearize", sampling_gpus),
    params:
        code=code_of("sampling.linearized"),
        model=lambda w: model_options(w.model),
        weights=lambda w: identity_of(w.model),
        prompt=prompt_of,
        settings=lambda w: slice_of(experiment.evaluation.linearized),
        parameterization=FORCING,
        engine=engine_options,
        engine_decides=engine_decides,
        seed=experiment.seed,
        keep=f"{RESULTS}/.cache/linearized/{{model}}/{{dataset}}",
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.core.fork_server mrt.sampling.linearized {params.model} --problems {input.problems:q}"
        " --names {wildcards.model} --names {wildcards.dataset} --seed {params.seed} --prompt {params.prompt:q}"
        " --settings {params.settings:q} --parameterization {params.parameterization:q} --engine {params.engine:q}"
        " --keep.folder {params.keep:q} --out {output:q} > {log:q} 2>&1"
