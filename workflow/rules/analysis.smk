# Analysis: J, progress, and the measures of one model on one dataset, which figures and tables aggregate.


# J and progress of every prefix (Definition 6.1).
rule measure_progress:
    input:
        prover=paths.artifact("prover"),
        grades=paths.artifact("grades", "prover.parquet"),
    output:
        paths.artifact("progress"),
    log:
        paths.log("measure_progress", "model", "dataset"),
    conda:
        ANALYSIS
    resources:
        mem_mb=job_resources.reading("force_answers", NUMBERS),
    params:
        code=options.code("analysis.progress"),
    shell:
        "python -m mrt.analysis.progress --prover {input.prover:q} --grades {input.grades:q} --out {output:q} > {log:q} 2>&1"


for name in measures.known:

    # A measure of a model on a dataset: a function of tables and settings.
    rule:
        name:
            f"measure_{name}"
        input:
            unpack(partial(measures.inputs, name)),
        output:
            paths.table(name),
        log:
            paths.log(f"measure_{name}", "model", "dataset"),
        group:
            group_of("measures")
        conda:
            ANALYSIS
        resources:
            mem_mb=measures.memory(name),
        params:
            code=lambda w, name=name: measures.code(name),
            settings=partial(measures.settings, name),
            execution=lambda w, threads, input: options_of(tables=dict(input.items())),
        shell:
            "python -m mrt.analysis.evaluate --settings {params.settings:q} --execution {params.execution:q}"
            " --out {output:q} > {log:q} 2>&1"
