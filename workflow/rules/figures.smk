# Tables and figures, each a target of its own name and of its numbers in the paper (`snakemake fig9`).
for name, figure in FIGURES.items():
    if figure.table:

        rule:
            name:
                name
            input:
                lambda w, name=name: figures.files(name),
            output:
                markdown=f"{paths.results}/tables/{name}.md",
                page=report(
                    f"{paths.results}/tables/{name}.html",
                    caption=f"../report/{name}.rst",
                    category=figure.section,
                    labels=figures.labels(name, "table"),
                ),
                latex=f"{paths.results}/tables/{name}.tex",
                data=f"{paths.results}/tables/{name}.parquet",
                csv=report(
                    f"{paths.results}/tables/{name}.csv",
                    caption=f"../report/{name}.rst",
                    category=figure.section,
                    labels=figures.labels(name, "values (CSV)"),
                ),
            log:
                paths.log(name),
            conda:
                ANALYSIS
            params:
                code=options.code(f"figures.{name}"),
                name=name,
                settings=lambda w, name=name: figures.settings(name),
                out=subpath(output.markdown, strip_suffix=".md"),
            shell:
                "python -m mrt.figures.{params.name} --settings {params.settings:q} --out {params.out:q} > {log:q} 2>&1"

    else:

        rule:
            name:
                name
            input:
                lambda w, name=name: figures.files(name),
            output:
                pdf=f"{paths.results}/figures/{name}.pdf",
                png=report(
                    f"{paths.results}/figures/{name}.png",
                    caption=f"../report/{name}.rst",
                    category=figure.section,
                    labels=figures.labels(name, "figure"),
                ),
                data=f"{paths.results}/figures/{name}.parquet",
                csv=report(
                    f"{paths.results}/figures/{name}.csv",
                    caption=f"../report/{name}.rst",
                    category=figure.section,
                    labels=figures.labels(name, "values (CSV)"),
                ),
            log:
                paths.log(name),
            conda:
                ANALYSIS
            params:
                code=options.code(f"figures.{name}"),
                name=name,
                settings=lambda w, name=name: figures.settings(name),
                out=subpath(output.png, strip_suffix=".png"),
            shell:
                "python -m mrt.figures.{params.name} --settings {params.settings:q} --out {params.out:q} > {log:q} 2>&1"

    for number in figure.numbers:

        rule:
            name:
                number
            input:
                figures.outputs(name),


# What made the results, and the configuration.
rule provenance:
    input:
        figures.provenance().values(),
    output:
        markdown=f"{paths.results}/tables/provenance.md",
        page=report(
            f"{paths.results}/tables/provenance.html",
            caption="../report/provenance.rst",
            category="5 Provenance",
            labels={"what": "provenance", "paper": "", "form": "table"},
        ),
        data=f"{paths.results}/tables/provenance.parquet",
    log:
        paths.log("provenance"),
    localrule: True
    conda:
        ANALYSIS
    params:
        code=options.code("figures.provenance"),
        files=lambda w: json.dumps(figures.provenance()),
        config=lambda w: slice_of(experiment),
        out=subpath(output.markdown, strip_suffix=".md"),
    shell:
        "python -m mrt.figures.provenance --files {params.files:q} --config {params.config:q} --out {params.out:q} > {log:q} 2>&1"
