# Rollouts: sampled with vLLM, or imported from a file of completions.
rule sample_rollouts:
    input:
        checkpoint=checkpoint_input,
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
    output:
        artifact("rollouts"),
    log:
        log_of("sample_rollouts", "model", "dataset"),
    wildcard_constraints:
        model=any_of(SAMPLED),
    conda:
        INFERENCE
    threads: experiment.engine_threads
    params:
        model=model_options,
        samples=lambda w: draws(w).samples,
        decoding=lambda w: slice_of(draws(w).decoding),
        prompt=lambda w: slice_of(experiment.prompt),
        engine=lambda w: slice_of(experiment.engine),
        seed=experiment.seed,
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.sampling {params.model} --problems {input.problems}"
        " --names {wildcards.model} --names {wildcards.dataset} --samples {params.samples} --seed {params.seed}"
        " --decoding {params.decoding:q} --prompt {params.prompt:q} --engine {params.engine:q} --out {output}"
        " > {log} 2>&1"


rule import_rollouts:
    input:
        file=lambda w: experiment.models[w.model].rollouts.file,
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
    output:
        artifact("rollouts"),
    log:
        log_of("import_rollouts", "model", "dataset"),
    wildcard_constraints:
        model=any_of(experiment.imported),
    conda:
        ANALYSIS
    params:
        model=lambda w: experiment.models[w.model].rollouts.model or "",
    shell:
        "python -m mrt.imports --file {input.file} --model {params.model:q} --problems {input.problems}"
        " --out {output} > {log} 2>&1"
