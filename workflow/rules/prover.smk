# Forced answers of the meta-prover at every prefix (Equation 4); mu is the model that thought.
rule force_answers:
    input:
        checkpoint=lambda w: weights_input(w.model),
        rollouts=artifact("rollouts"),
        episodes=artifact("episodes"),
    output:
        artifact("prover"),
    log:
        log_of("force_answers", "model", "dataset"),
    wildcard_constraints:
        model=any_of(SAMPLED),
    cache: True
    conda:
        INFERENCE
    threads: experiment.engine_threads
    params:
        code=code_of("prover"),
        model=lambda w: model_options(w.model),
        weights=lambda w: identity_of(w.model),
        settings=lambda w: slice_of(draws(w).prover),
        parameterization=FORCING,
        engine=engine_options,
        engine_decides=engine_decides(),
        seed=experiment.seed,
        keep=f"{RESULTS}/.kept/prover/{{model}}/{{dataset}}",
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.prover {params.model} --rollouts {input.rollouts}"
        " --episodes {input.episodes} --names {wildcards.model} --names {wildcards.dataset} --seed {params.seed}"
        " --settings {params.settings:q} --parameterization {params.parameterization:q} --engine {params.engine:q} --keep.folder {params.keep}"
        " --out {output} > {log} 2>&1"
