"""A seal accepts each line of the other side once, in order, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.coordination.seal import Seal, new_nonce, proof, seals

pytestmark = pytest.mark.stacks("newest")


def seal(token: str = "token", asking: str = "a", answering: str = "b", purpose: str = "") -> Seal:
    return seals(token, asking=asking, answering=answering, purpose=purpose)[0]


@settings(deadline=None)
@given(st.lists(st.binary()))
def test_lines_of_the_other_side_are_accepted(contents: list[bytes]) -> None:
    ours, theirs = seal(), seal()
    assert [theirs.open(ours.seal(content)) for content in contents] == contents


@settings(deadline=None)
@given(st.binary(), st.binary())
def test_other_lines_are_not(content: bytes, other: bytes) -> None:
    line = seal().seal(content)
    assert seal().open(other) is None
    assert seals("token", asking="a", answering="b")[1].open(line) is None
    assert seal().open(line + b"x") is None
    again = seal()
    assert again.open(line) == content
    assert again.open(line) is None


@pytest.mark.parametrize(
    "other",
    [
        {"token": "another token"},
        {"asking": "c"},
        {"answering": "c"},
        {"asking": "b", "answering": "a"},
        {"purpose": "c"},
    ],
    ids=str,
)
def test_a_seal_depends_on_the_token_both_nonces_and_the_purpose(other: dict[str, str]) -> None:
    assert seal(**other).open(seal().seal(b"line")) is None


def test_a_nonce_is_new_and_a_token_may_be_any_text() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
    assert proof("\udcff", "complete", "a") != proof("", "complete", "a")
