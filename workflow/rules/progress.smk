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
        code=code_of("progress"),
    shell:
        "python -m mrt.progress --prover {input.prover} --grades {input.grades} --out {output} > {log} 2>&1"
