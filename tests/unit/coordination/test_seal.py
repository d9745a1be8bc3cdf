"""A seal accepts each line of the other side once, in order, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.coordination.seal import Seal, key_of, new_nonce, proof

pytestmark = pytest.mark.stacks("newest")

KEY = key_of("token", asking="a", answering="b")


@settings(deadline=None)
@given(st.lists(st.binary()))
def test_lines_of_the_other_side_are_accepted(contents: list[bytes]) -> None:
    ours, theirs = Seal(KEY, "up"), Seal(KEY, "up")
    assert [theirs.open(ours.seal(content)) for content in contents] == contents


@settings(deadline=None)
@given(st.binary(), st.binary())
def test_other_lines_are_not(content: bytes, other: bytes) -> None:
    line = Seal(KEY, "up").seal(content)
    assert Seal(KEY, "up").open(other) is None
    assert Seal(KEY, "down").open(line) is None
    assert Seal(KEY, "up").open(line + b"x") is None
    again = Seal(KEY, "up")
    assert again.open(line) == content
    assert again.open(line) is None


@pytest.mark.parametrize(
    "key",
    [
        key_of("another token", asking="a", answering="b"),
        key_of("token", asking="c", answering="b"),
        key_of("token", asking="a", answering="c"),
        key_of("token", asking="b", answering="a"),
    ],
)
def test_the_key_depends_on_the_token_and_on_both_nonces(key: bytes) -> None:
    assert Seal(key, "up").open(Seal(KEY, "up").seal(b"line")) is None


def test_a_nonce_is_new_and_a_token_may_be_any_text() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
    assert proof("\udcff", "complete", "a") != proof("", "complete", "a")
