# Grades, right or wrong. They are a separate stage, so that a new grader samples nothing again.
rule grade_rollouts:
    input:
        problems=paths.problems(),
        answers=paths.artifact("rollouts"),
    output:
        paths.artifact("grades", "rollouts.parquet"),
    log:
        paths.log("grade_rollouts", "model", "dataset"),
    conda:
        ANALYSIS
    resources:
        cpus_per_task=experiment.cluster.cpus_per_gpu,
        runtime=lambda w, attempt: 240 * attempt,
        mem_mb=job_resources.reading("sample_rollouts", least=6000),  # a worker may take 4 GiB before it is stopped
    params:
        settings=options.grading,
        code=options.judging("grading.grade"),
    shell:
        "python -m mrt.grading.grade --problems {input.problems:q} --answers {input.answers:q} --out {output:q}"
        " --settings {params.settings:q} > {log:q} 2>&1"


use rule grade_rollouts as grade_answers with:
    input:
        problems=paths.problems(),
        answers=paths.artifact("prover"),
    output:
        paths.artifact("grades", "prover.parquet"),
    log:
        paths.log("grade_answers", "model", "dataset"),
    resources:
        mem_mb=job_resources.reading("force_answers", least=6000),


use rule grade_rollouts as grade_forced with:
    input:
        problems=paths.problems(),
        answers=paths.artifact("budget_forcing"),
    output:
        paths.artifact("grades", "budget_forcing.parquet"),
    log:
        paths.log("grade_forced", "model", "dataset"),
    resources:
        mem_mb=job_resources.reading("force_budget", least=6000),


use rule grade_rollouts as grade_linearized with:
    input:
        problems=paths.problems(),
        answers=paths.artifact("linearized"),
    output:
        paths.artifact("grades", "linearized.parquet"),
    log:
        paths.log("grade_linearized", "model", "dataset"),
    resources:
        mem_mb=job_resources.reading("linearize", least=6000),
