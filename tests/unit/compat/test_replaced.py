"""What is replaced is given back: at the end of a block, and of a training with all within it."""

from __future__ import annotations

import pytest

from tfdist.compat.replaced import at_end, fitting, replace, replaced

pytestmark = pytest.mark.stacks("2.15", "newest")


class Model:
    def step(self) -> str:
        return "own"


def test_the_end_of_a_training_gives_back_in_reverse_order() -> None:
    model, ended = Model(), list[str]()
    with fitting():
        at_end(lambda: ended.append(model.step()))
        replace(model, "step", lambda: "first")
        replace(model, "step", lambda: "second")
        with replaced(model, "step", lambda: "within"):
            assert model.step() == "within"
        assert model.step() == "second"
    assert model.step() == "own"
    assert vars(model) == {}
    assert ended == ["own"]


def test_a_training_within_another_one_gives_back_its_own() -> None:
    outer, inner = Model(), Model()
    with fitting():
        replace(outer, "step", lambda: "replaced")
        with fitting():
            replace(inner, "step", lambda: "replaced")
        assert (outer.step(), inner.step()) == ("replaced", "own")
    assert outer.step() == "own"


def test_a_method_of_a_class_is_replaced_within_a_block() -> None:
    class Derived(Model):
        pass

    with (
        replaced(Model, "step", lambda self: "within"),
        replaced(Derived, "step", lambda self: "x"),
    ):
        assert (Model().step(), Derived().step()) == ("within", "x")
    assert Model().step() == "own"
    assert "step" not in vars(Derived)


def test_the_outer_training_ends_what_an_exception_has_left() -> None:
    model = Model()
    with pytest.raises(KeyError), fitting():
        left = fitting()
        replace(model, "step", lambda: "replaced")
        raise KeyError
    assert model.step() == "own"
    left.close()
    with fitting():
        left.close()
        replace(model, "step", lambda: "replaced")
    assert model.step() == "own"


def test_outside_of_a_training_a_method_stays_replaced() -> None:
    model = Model()
    replace(model, "step", lambda: "replaced")
    with fitting():
        pass
    assert model.step() == "replaced"
