"""Sizes of real models, for tests of memory and cost."""

from mrt.config.hardware import Architecture

QWEN_1_5B = Architecture(
    parameters=1_777_088_000,
    layers=28,
    hidden=1536,
    intermediate=8960,
    heads=12,
    kv_heads=2,
    head_dim=128,
    vocabulary=151_936,
    context=131_072,
)
QWEN_7B = Architecture(
    parameters=7_615_616_512,
    layers=28,
    hidden=3584,
    intermediate=18_944,
    heads=28,
    kv_heads=4,
    head_dim=128,
    vocabulary=152_064,
    context=131_072,
)
