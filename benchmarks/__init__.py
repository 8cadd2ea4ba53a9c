"""How fast each part is, beside the obvious way and beside what the machine allows: `python -m benchmarks`."""
