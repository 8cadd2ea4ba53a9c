# Tables and figures, each a target of its own name: drawn from one measure of all evaluated models.
for figure, measure in FIGURES.items():

    rule:
        name:
            figure
        input:
            measured_files(measure),
        output:
            pdf=f"{RESULTS}/figures/{figure}.pdf",
            png=report(
                f"{RESULTS}/figures/{figure}.png",
                caption=f"../report/{figure}.rst",
                category="Figures",
                labels={"figure": figure.replace("_", " ")},
            ),
            data=f"{RESULTS}/figures/{figure}.parquet",
        log:
            log_of(figure),
        conda:
            ANALYSIS
        params:
            code=code_of(f"figures.{figure}"),
            figure=figure,
            tables=lambda w, measure=measure: json.dumps(measured(measure)),
            models=lambda w: model_styles(),
            out=subpath(output.png, strip_suffix=".png"),
        shell:
            "python -m mrt.figures.{params.figure} --tables {params.tables:q} --models {params.models:q}"
            " --out {params.out} > {log} 2>&1"


rule pass1:
    input:
        measured_files("accuracy"),
    output:
        markdown=f"{RESULTS}/tables/pass1.md",
        page=report(
            f"{RESULTS}/tables/pass1.html",
            caption="../report/pass1.rst",
            category="Tables",
            labels={"table": "pass@1"},
        ),
        latex=f"{RESULTS}/tables/pass1.tex",
        data=f"{RESULTS}/tables/pass1.parquet",
    log:
        log_of("pass1"),
    conda:
        ANALYSIS
    params:
        code=code_of("figures.pass1"),
        tables=lambda w: json.dumps(measured("accuracy")),
        models=lambda w: model_styles(),
        out=subpath(output.markdown, strip_suffix=".md"),
    shell:
        "python -m mrt.figures.pass1 --tables {params.tables:q} --models {params.models:q} --out {params.out} > {log} 2>&1"
