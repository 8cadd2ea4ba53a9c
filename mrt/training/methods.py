"""The methods that train a model: what each learns from, and its colour in figures. A new method begins here."""

from typing import Literal, NamedTuple, get_args

TraceMethod = Literal["star", "mrt"]
RLMethod = Literal["grpo", "length_penalty", "mrt_rl"]
TreeMethod = Literal["warmstart", "rise", "rejection"]
MethodName = Literal[TraceMethod, RLMethod, "cold_start", TreeMethod]
TRACE_METHODS: tuple[str, ...] = get_args(TraceMethod)
RL_METHODS: tuple[str, ...] = get_args(RLMethod)
TREE_METHODS: tuple[str, ...] = get_args(TreeMethod)


class Method(NamedTuple):
    """A method: the artifacts of the parent that its training data are made from, and its colour."""

    reads: tuple[str, ...]
    colour: str  # mostly from Okabe and Ito's palette, which colour-blind readers can tell apart


METHODS = {
    "star": Method(("rollouts",), "#009E73"),
    "mrt": Method(("rollouts", "prover"), "#D55E00"),
    "grpo": Method((), "#0072B2"),
    "mrt_rl": Method((), "#E69F00"),  # and the rollouts, if prompts have prefixes
    "length_penalty": Method((), "#CC79A7"),
    "cold_start": Method(("rollouts",), "#999999"),
    "warmstart": Method(("trees",), "#666666"),
    "rise": Method(("trees",), "#56B4E9"),
    "rejection": Method(("trees",), "#882255"),
}
SFT_METHODS = tuple(name for name in METHODS if name not in RL_METHODS)
