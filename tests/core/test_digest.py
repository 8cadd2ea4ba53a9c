"""Settings as text, and digests of files: what is off or at its default is left out, and nothing is lost by it."""

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from mrt.core.digest import compact, digest_of_files, options_of, slice_of


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


class Told(BaseModel):
    kind: Literal["told"] = "told"
    inner: Inner = Field(default_factory=lambda: Inner(size=4))
    count: int = 3
    file: Path | None = None


def test_compact_settings_leave_out_defaults_but_the_kind_and_come_back_whole():
    assert compact(Told()) == {"kind": "told"}
    for told, text in (
        (Told(count=4), {"kind": "told", "count": 4}),
        (Told(inner=Inner()), {"kind": "told", "inner": {}}),  # the group's own defaults, not those of the field
        (Told(inner=Inner(size=5, fast=True)), {"kind": "told", "inner": {"size": 5, "fast": True}}),
        (Told(file=Path("a")), {"kind": "told", "file": "a"}),
    ):
        assert compact(told) == text and Told.model_validate_json(json.dumps(compact(told))) == told


def test_options_are_canonical_and_leave_out_what_is_off():
    assert options_of(b=1, a=[Inner()], off=None, none=False, zero=0) == '{"a": [{}], "b": 1, "zero": 0}'


def test_a_vocabulary_is_part_of_a_models_identity(tmp_path):
    from mrt.core.digest import identity_of_model

    (tmp_path / "tokenizer.model").write_bytes(b"1")
    before = identity_of_model(str(tmp_path))
    (tmp_path / "tokenizer.model").write_bytes(b"2")
    assert identity_of_model(str(tmp_path)) != before
