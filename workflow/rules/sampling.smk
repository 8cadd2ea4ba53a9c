# Sampling with vLLM: rollouts, the meta-prover's answers, budget forcing, solution trees, attempts in a row.
# workflow/sampling.py lists them, and explains why a table takes three jobs.


# The settings that decide a table of a model on a dataset. It runs again when the table has to be made again.
rule request:
    input:
        unpack(lambda w: sampling.inputs(w.kind, w)),
    output:
        paths.request(),
    log:
        paths.log("request", "kind", "model", "dataset"),
    wildcard_constraints:
        kind=any_of(SAMPLED),
        model=any_of(paths.sampled),
    localrule: True
    conda:
        ANALYSIS
    params:
        stage=lambda w: sampling.stage(w.kind, w),
        code=lambda w: sampling.code(w.kind, w),
        weights=lambda w: sampling.weights(w.kind, w),
        settings=lambda w: sampling.settings(w.kind, w),
        engine_decides=lambda w: options.engine_decides(w.kind)(w),
        files=lambda w, input: json.dumps(sampling.files(w.kind, w)),
    shell:
        'printf \'{{"stage": "mrt.%s", "settings": %s, "inputs": %s}}\' {params.stage:q} {params.settings:q}'
        " {params.files:q} > {output:q} 2> {log:q}"


for kind, sampled in SAMPLED.items():

    # One engine for a shard of a model's samples in a pool. Cached completions are not sampled again.
    rule:
        name:
            sampled.samples
        input:
            checkpoint=lambda w, kind=kind: paths.weights_of(options.sampler(kind, w)),
            requests=partial(sampling.requests, kind),
        output:
            paths.mark(kind),
        log:
            paths.log(sampled.samples, "model", "pool", "shard"),
        wildcard_constraints:
            model=any_of(paths.sampled),
            pool=sampling.pools,
        cache: True
        conda:
            SAMPLING
        threads: experiment.engine_threads
        resources:
            **job_resources.sampling(sampled.samples),
        params:
            execution=options.sampled(kind),
        shell:
            with_threads("mrt.core.fork_server mrt.sampling.pool --execution {params.execution:q} --out {output:q}")

    # The table of a dataset, from its completion cache.
    rule:
        name:
            sampled.gathers
        input:
            unpack(partial(sampling.inputs, kind)),
            request=paths.request().replace("{kind}", kind),
            marks=lambda w, kind=kind: ancient(sampling.marks(kind, w)),
        output:
            **sampling.outputs(kind),
        log:
            paths.log(sampled.gathers, "model", "dataset"),
        wildcard_constraints:
            model=any_of(paths.sampled),
        cache: True
        conda:
            SAMPLING
        resources:
            **job_resources.gathering(sampled.samples),
        params:
            stage=partial(sampling.stage, kind),
            code=partial(sampling.code, kind),
            weights=partial(sampling.weights, kind),
            settings=partial(sampling.settings, kind),
            engine_decides=options.engine_decides(kind),
            execution=lambda w, threads, kind=kind: options.gathered(kind, w, sampling.files(kind, w)),
        shell:
            with_threads(
                "mrt.core.fork_server mrt.{params.stage} --settings {params.settings:q} --execution {params.execution:q}"
            )


# Rollouts that were sampled elsewhere.
rule import_rollouts:
    input:
        file=ancient(lambda w: experiment.models[w.model].rollouts.file),
        problems=paths.problems(),
        others=lambda w: [  # those before this one: a set that is added at the end makes no evaluation set again
            paths.problems(other) for other in takewhile(w.dataset.__ne__, measuring.measured_on(experiment, w.model))
        ],
    output:
        rollouts=paths.artifact("rollouts"),
        reading=paths.artifact("rollouts", "reading.parquet"),
    log:
        paths.log("import_rollouts", "model", "dataset"),
    wildcard_constraints:
        model=any_of(lineage.imported(experiment)),
    conda:
        ANALYSIS
    params:
        code=options.code("sampling.imports"),
        content=lambda w: content_of(experiment.models[w.model].rollouts.file),
        settings=options.completions,
        execution=files_of("others"),
    shell:
        "python -m mrt.sampling.imports --settings {params.settings:q} --file {input.file:q}"
        " --problems {input.problems:q} --execution {params.execution:q} --out {output.rollouts:q}"
        " --reading {output.reading:q} > {log:q} 2>&1"
