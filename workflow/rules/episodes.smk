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
        code=code_of("episodes"),
        segmentation=lambda w: slice_of(experiment.segmentation),
    shell:
        "python -m mrt.episodes --rollouts {input} --segmentation {params.segmentation:q} --out {output} > {log} 2>&1"
