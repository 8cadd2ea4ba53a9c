"""Training: supervised fine-tuning on filtered traces (STaR and MRT (STaR))."""
