import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from mrt.config.sections import Evaluation, Training
from mrt.core.digest import canonical
from mrt.core.settings import Settings, defaults, overlaid
from mrt.sampling.budget_forcing import BudgetForcing
from mrt.sampling.engine import Decoding
from mrt.sampling.linearized import Linearized
from mrt.sampling.prover import ProverSettings
from mrt.sampling.tree import BeamSearch
from mrt.training.rl import RL


class Inner(Settings):
    a: int = 0
    b: int = 0
    c: int = 0


class Middle(Settings):
    inner: Inner = Field(Inner(a=1, b=1))
    d: int = 0


class Outer(Settings):
    middle: Middle = Field(Middle(inner=Inner(a=2), d=2))


SOME = st.dictionaries(st.sampled_from("abc"), st.integers(3, 9))


def test_the_rest_of_a_group_is_what_the_field_says():
    assert Middle.model_validate({"inner": {"b": 7}}).inner == Inner(a=1, b=7)
    assert Outer.model_validate({"middle": {"inner": {"b": 7}}}).middle == Middle(inner=Inner(a=2, b=7), d=2)
    assert Middle(inner=Inner(b=7)).inner == Inner(b=7)  # a whole group, in Python
    assert Middle.model_fields["inner"].default == Inner(a=1, b=1)


@given(SOME)
def test_only_what_is_given_counts_as_set(some):
    inner = Middle.model_validate({"inner": some}).inner
    assert inner.model_fields_set == set(some)
    assert inner == Inner.model_validate({"a": 1, "b": 1} | some)


GROUPS = [Evaluation, Training, RL, ProverSettings, BudgetForcing, BeamSearch, Linearized]
DRAWN = {
    "temperature": st.sampled_from([0.5, 0.7, 0.9, 1.0]),
    "max_tokens": st.sampled_from([100, 1024, 2048, 4096, 8192]),
}


@given(st.data())
@pytest.mark.parametrize("group", GROUPS)
def test_what_a_rule_is_told_is_what_the_config_says(group, data):
    """The stage fills in the settings that are left out on the way."""
    fields = [name for name, value in defaults(group).items() if isinstance(value, Decoding)]
    given = {name: data.draw(st.fixed_dictionaries({}, optional=DRAWN)) for name in fields}
    needed = {"problems": ["p"], "models": ["m"]} if group is Evaluation else {}
    said = group.model_validate({**needed, **given})
    assert all(getattr(said, name).model_fields_set == set(of) for name, of in given.items())
    assert group.model_validate({**needed, **json.loads(json.dumps(canonical(said)))}) == said


@given(SOME, SOME)
def test_a_group_within_a_group_comes_back_whole(inner, own):
    for said in (Middle.model_validate({"inner": inner}), Outer.model_validate({"middle": {"inner": own}})):
        assert type(said).model_validate(canonical(said)) == said


@given(SOME, SOME)
def test_an_overlay_changes_what_it_sets(below, above):
    both = overlaid(Middle.model_validate({"inner": below, "d": 3}), Middle.model_validate({"inner": above}))
    assert both == Middle.model_validate({"inner": below | above, "d": 3})
