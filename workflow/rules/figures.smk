# Tables and figures: each is drawn from one measure of all evaluated models.
rule draw_figure:
    input:
        lambda w: measured_files(FIGURES[w.figure]),
    output:
        pdf=f"{RESULTS}/figures/{{figure}}.pdf",
        png=report(
            f"{RESULTS}/figures/{{figure}}.png",
            caption="../report/{figure}.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        data=f"{RESULTS}/figures/{{figure}}.parquet",
    log:
        log_of("draw_figure", "figure"),
    wildcard_constraints:
        figure=any_of(FIGURES),
    conda:
        ANALYSIS
    params:
        tables=lambda w: json.dumps(measured(FIGURES[w.figure])),
        models=lambda w: model_styles(),
        out=subpath(output.png, strip_suffix=".png"),
    shell:
        "python -m mrt.figures.{wildcards.figure} --tables {params.tables:q} --models {params.models:q}"
        " --out {params.out} > {log} 2>&1"


rule pass1_table:
    input:
        measured_files("accuracy"),
    output:
        markdown=report(
            f"{RESULTS}/tables/pass1.md", caption="../report/pass1.rst", category="Tables", labels={"table": "pass@1"}
        ),
        latex=f"{RESULTS}/tables/pass1.tex",
        data=f"{RESULTS}/tables/pass1.parquet",
    log:
        log_of("pass1_table"),
    conda:
        ANALYSIS
    params:
        tables=lambda w: json.dumps(measured("accuracy")),
        models=lambda w: model_styles(),
        out=subpath(output.markdown, strip_suffix=".md"),
    shell:
        "python -m mrt.figures.pass1 --tables {params.tables:q} --models {params.models:q} --out {params.out} > {log} 2>&1"
