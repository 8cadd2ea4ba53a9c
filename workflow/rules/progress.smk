# J and progress of every prefix (Definition 6.1).
rule measure_progress:
    input:
        prover=artifact("prover"),
        grades=artifact("grades", "prover.parquet"),
    output:
        artifact("progress"),
    log:
        log_of("measure_progress", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("analysis.progress"),
    shell:
        "python -m mrt.analysis.progress --prover {input.prover:q} --grades {input.grades:q} --out {output:q} > {log:q} 2>&1"
