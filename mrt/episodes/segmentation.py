"""Ways to cut a thought into episodes: ours (mrt.episodes.parameterization), or a function of a user's file.

`segmentation: {by: my_cut.py:cut}` names a function of a thought that gives its episodes.
"""

from collections.abc import Callable, Sequence
from types import FunctionType

from mrt.core.plugins import Kind, is_in_user_file, located
from mrt.episodes.parameterization import OpenEnded, Parameterization

WAYS = Kind("way to cut", "episodes", (FunctionType,))


def ways_of(parameterization: Parameterization) -> tuple[str, ...]:
    """The function of a user's file that cuts thoughts, for fingerprints; none: ours do."""
    by = parameterization.segmentation.by if isinstance(parameterization, OpenEnded) else ""
    return (by,) if is_in_user_file(by) else ()


def splitter(parameterization: Parameterization) -> Callable[[str], list[str]] | None:
    """The function that cuts a thought into episodes, for `Parameterization.cut`; None: cut by its settings.

    Raises ValueError, with file and line, if the user's file cannot be imported. So does the returned function, if the
    user's fails, if its episodes do not give the thought when joined, or if one of them is empty.
    """
    ways = ways_of(parameterization)
    return losslessly(WAYS.find(ways[0]), ways[0]) if ways else None


def losslessly(function: Callable[[str], Sequence[str]], way: str) -> Callable[[str], list[str]]:
    """A function of a thought that gives its episodes, with a check of these; errors name it as `way`.

    The result raises ValueError if the episodes do not give the thought when joined, or if one of them is empty.
    """

    def split(thought: str) -> list[str]:
        with located(function):
            episodes = list(function(thought))
            whole = "".join(episodes)
        if whole != thought or not all(episodes):
            what = "has an empty one" if whole == thought else "does not give the thought when joined"
            raise ValueError(f"{way}: of a thought that begins {thought[:60]!r}, the list of episodes {what}")
        return episodes

    return split
