# Tables and figures, each a target under its name and under its numbers in the paper (`snakemake fig9`).
for name, entry in figures.entries.items():

    rule:
        name:
            name
        input:
            lambda w, name=name: figures.files(name),
        output:
            **figures.written(name),
        log:
            paths.log(name),
        group:
            group_of("figures")
        conda:
            ANALYSIS
        params:
            code=lambda w, name=name: options.code(figures.stage(name)),
            command=figures.command(name),
            settings=lambda w, name=name: figures.settings(name),
            out=subpath(output.csv, strip_suffix=".csv"),
            caption=lambda w, threads, name=name: figures.caption(name),
        shell:
            "printf %s {params.settings:q} | {params.command} --settings - --out {params.out:q} > {log:q} 2>&1"

    for target in entry.targets:

        rule:
            name:
                target
            input:
                figures.outputs(name),


# All figures and tables on one page, with their captions.
rule index:
    input:
        figures.shown().values(),
        figures.all(),
    output:
        page=f"{paths.results}/index.html",
        excerpt=report(
            f"{paths.results}/index_in_report.html",
            caption="../report/index.rst",
            category="0 Is it better, by how much, at what cost?",
            labels={"what": "overview", "paper": "", "form": "page"},
        ),
    log:
        paths.log("index"),
    localrule: True
    conda:
        ANALYSIS
    params:
        code=options.code("figures.report"),
        assets=digest_of_files([STYLE]),
        settings=lambda w: figures.report(),
    shell:
        "printf %s {params.settings:q} | python -m mrt.figures.report --settings - --out {output.page:q}"
        " --excerpt {output.excerpt:q} > {log:q} 2>&1"


# Code and versions that made the results, and the configuration.
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
        settings=lambda w: options_of(files=figures.provenance(), config=experiment),
        out=subpath(output.markdown, strip_suffix=".md"),
    shell:
        "printf %s {params.settings:q} | python -m mrt.figures.provenance --settings - --out {params.out:q}"
        " > {log:q} 2>&1"
