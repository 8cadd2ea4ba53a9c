# Rollouts: sampled with vLLM, or imported from a file of completions.
rule sample_rollouts:
    input:
        checkpoint=lambda w: weights_input(w.model),
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
        parts=parts_of("rollouts"),
    output:
        artifact("rollouts"),
    log:
        log_of("sample_rollouts", "model", "dataset"),
    wildcard_constraints:
        model=any_of(SAMPLED),
    cache: True
    conda:
        INFERENCE
    threads: experiment.engine_threads
    resources:
        **sampling_resources("sample_rollouts", spread_gpus),
    params:
        part=gathered,
        code=code_of("sampling.rollouts"),
        model=lambda w: model_options(w.model),
        weights=lambda w: identity_of(w.model),
        samples=lambda w: experiment.samples(w.model, w.dataset),
        decoding=lambda w: slice_of(draws(w).decoding),
        prompt=prompt_of,
        engine=engine_options,
        engine_decides=engine_decides,
        seed=experiment.seed,
        keep=f"{RESULTS}/.cache/rollouts/{{model}}/{{dataset}}",
    shell:
        "OMP_NUM_THREADS={threads} python -m mrt.core.fork_server mrt.sampling.rollouts {params.model} --problems {input.problems:q}"
        " --names {wildcards.model} --names {wildcards.dataset} --samples {params.samples} --seed {params.seed}"
        " --decoding {params.decoding:q} --prompt {params.prompt:q} --engine {params.engine:q}"
        " --keep.folder {params.keep:q}{params.part} --out {output:q}"
        " > {log:q} 2>&1"


# A part of it, for a job of its own: draws its share of what is not kept yet, and keeps it.
use rule sample_rollouts as sample_rollouts_part with:
    input:
        checkpoint=lambda w: weights_input(w.model),
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
    output:
        touch(f"{RESULTS}/.cache/rollouts/{{model}}/{{dataset}}/part-{{part}}-of-{SHARDS}"),
    log:
        log_of("sample_rollouts", "model", "dataset", "part"),
    cache: False
    resources:
        **sampling_resources("sample_rollouts", sampling_gpus, SHARDS),
    params:
        part=lambda w: f" --keep.part {w.part}/{SHARDS}",


rule import_rollouts:
    input:
        file=ancient(lambda w: experiment.models[w.model].rollouts.file),
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
        code=code_of("sampling.imports"),
        content=lambda w: content_of(experiment.models[w.model].rollouts.file),
        model=lambda w: f"--model {quote(m)}" if (m := experiment.models[w.model].rollouts.model) else "",
    shell:
        "python -m mrt.sampling.imports --file {input.file:q} {params.model} --problems {input.problems:q}"
        " --out {output:q} > {log:q} 2>&1"
