"""Parts of the rules, beside Snakemake's language: paths, options, resources, figures, running."""
