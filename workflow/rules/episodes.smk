# Episodes: thoughts cut at "Wait", "Alternatively", ... (Section 5).
rule cut_episodes:
    input:
        artifact("rollouts"),
    output:
        artifact("episodes"),
    log:
        log_of("cut_episodes", "model", "dataset"),
    conda:
        ANALYSIS
    params:
        code=code_of("episodes.cut"),
        parameterization=slice_of(experiment.parameterization, without="template"),
    shell:
        "python -m mrt.episodes.cut --rollouts {input:q} --parameterization {params.parameterization:q}"
        " --out {output:q} > {log:q} 2>&1"
