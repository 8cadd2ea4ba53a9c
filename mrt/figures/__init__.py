"""Figures and tables, one module each, all with the same interface: see `mrt.figures.stage`."""
