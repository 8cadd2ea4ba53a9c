# Grades: right or wrong, a stage of its own, so that a better grader never resamples.
rule grade_rollouts:
    input:
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
        answers=artifact("rollouts"),
    output:
        artifact("grades", "rollouts.parquet"),
    log:
        log_of("grade_rollouts", "model", "dataset"),
    conda:
        ANALYSIS
    resources:
        cpus_per_task=experiment.cluster.cpus_per_gpu,
        runtime=lambda w, attempt: 240 * attempt,
    params:
        code=code_of("grading.grade"),
    shell:
        "python -m mrt.grading.grade --problems {input.problems:q} --answers {input.answers:q} --out {output:q} > {log:q} 2>&1"


use rule grade_rollouts as grade_answers with:
    input:
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
        answers=artifact("prover"),
    output:
        artifact("grades", "prover.parquet"),
    log:
        log_of("grade_answers", "model", "dataset"),


use rule grade_rollouts as grade_forced with:
    input:
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
        answers=artifact("budget_forcing"),
    output:
        artifact("grades", "budget_forcing.parquet"),
    log:
        log_of("grade_forced", "model", "dataset"),


use rule grade_rollouts as grade_linearized with:
    input:
        problems=f"{RESULTS}/problems/{{dataset}}.parquet",
        answers=artifact("linearized"),
    output:
        artifact("grades", "linearized.parquet"),
    log:
        log_of("grade_linearized", "model", "dataset"),
