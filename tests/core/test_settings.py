from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from mrt.core.settings import Settings, overlaid


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


@given(SOME, SOME)
def test_an_overlay_changes_what_it_sets(below, above):
    both = overlaid(Middle.model_validate({"inner": below, "d": 3}), Middle.model_validate({"inner": above}))
    assert both == Middle.model_validate({"inner": below | above, "d": 3})
