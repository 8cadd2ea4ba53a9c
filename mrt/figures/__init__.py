"""Figures and tables, one module each; every module has `draw(data, models) -> (figure or text, table)` and a command line."""
