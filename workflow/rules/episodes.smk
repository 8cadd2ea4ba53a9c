# Episodes: thoughts cut at "Wait", "Alternatively", ... (Section 5).
rule cut_episodes:
    input:
        paths.artifact("rollouts"),
    output:
        paths.artifact("episodes"),
    log:
        paths.log("cut_episodes", "model", "dataset"),
    conda:
        ANALYSIS
    resources:
        mem_mb=job_resources.reading("sample_rollouts"),
    params:
        code=options.code("episodes.cut", *options.way_to_cut),
        settings=options.cut(),
    shell:
        "python -m mrt.episodes.cut --settings {params.settings:q} --rollouts {input:q} --out {output:q} > {log:q} 2>&1"
