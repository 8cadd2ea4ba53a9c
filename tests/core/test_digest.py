"""Settings as text, and digests of files: settings that are off by default are left out, and nothing is lost by it."""

from pathlib import Path
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from mrt.core.digest import canonical, digest_of_files, options_of, slice_of
from mrt.core.settings import Settings


class Inner(BaseModel):
    size: int = 2
    fast: bool = False


class Outer(BaseModel):
    inner: Inner = Field(default_factory=Inner)
    each: list[Inner] = []
    by_name: dict[str, Inner] = {}
    limit: int | None = None
    strict: bool | None = True


def test_a_slice_leaves_out_what_is_off_by_default_and_only_that():
    assert slice_of(Outer()) == '{"by_name": {}, "each": [], "inner": {"size": 2}, "strict": true}'
    off = Outer(strict=None, limit=0, each=[Inner(fast=True)], by_name={"a": Inner()})
    assert slice_of(off) == (
        '{"by_name": {"a": {"size": 2}}, "each": [{"fast": true, "size": 2}], "inner": {"size": 2}, "limit": 0,'
        ' "strict": null}'
    )
    assert Outer.model_validate_json(slice_of(off)) == off
    assert "inner" not in slice_of(off, without={"inner"})


def test_files_are_hashed_by_name_and_content(tmp_path):
    (tmp_path / "a").write_text("1")
    before = digest_of_files([tmp_path])
    (tmp_path / "a").touch()
    assert digest_of_files([tmp_path]) == before
    (tmp_path / "a").write_text("2")
    assert digest_of_files([tmp_path]) != before


class Holder(Settings):
    """A group whose default turns on a setting that is off in the group's class."""

    class Group(Settings):
        fast: bool = False
        limit: int | None = None

    kind: Literal["holder"] = "holder"
    group: Group = Field(Group(fast=True))
    file: Path | None = None


@given(st.booleans(), st.none() | st.integers(), st.none() | st.just(Path("a")))
def test_canonical_settings_come_back_whole(fast, limit, file):
    """Also where such a setting is on by default, as the setting that holds the group has another default."""
    holder = Holder(group=Holder.Group(fast=fast, limit=limit), file=file)
    assert Holder.model_validate_json(slice_of(holder)) == holder
    assert canonical(holder)["group"]["fast"] is fast


def test_a_number_is_the_same_text_whether_given_or_a_default():
    class Lengths(Settings):
        epochs: float = 3

    assert slice_of(Lengths()) == slice_of(Lengths.model_validate({"epochs": 3})) == '{"epochs": 3.0}'


def test_options_are_canonical_and_leave_out_what_is_off():
    assert options_of(b=1, a=[Inner()], off=None, none=False, zero=0) == '{"a": [{"size": 2}], "b": 1, "zero": 0}'


def test_a_vocabulary_is_part_of_a_models_identity(tmp_path):
    from mrt.core.digest import identity_of_model

    (tmp_path / "tokenizer.model").write_bytes(b"1")
    before = identity_of_model(str(tmp_path))
    (tmp_path / "tokenizer.model").write_bytes(b"2")
    assert identity_of_model(str(tmp_path)) != before
