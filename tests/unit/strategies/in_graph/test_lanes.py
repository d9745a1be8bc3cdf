"""The order in which a stage computes parts again."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.strategies.in_graph.lanes import Lane, OneForwardOneBackward

pytestmark = pytest.mark.stacks("2.15", "newest")


def work(lane: Lane, name: str) -> tf.Operation:
    """Adds a piece of work to the graph; returns what it waits for."""
    with tf.name_scope(name):
        lane.begin([])
        (begin,) = lane.before
        lane.end([])
    return begin


def waits_for(begin: tf.Operation) -> set[str]:
    return {each.name.split("/")[0] for each in begin.control_inputs}


def test_a_stage_has_the_activations_of_as_many_parts_as_stages_follow_it() -> None:
    found: dict[str, set[str]] = {}
    with tf.Graph().as_default():
        stages = [Lane("/device:CPU:0") for _ in range(2)]
        for stage, lane in enumerate(stages):
            work(lane, f"first{stage}")
        order = OneForwardOneBackward(stages)
        for part in range(4):
            order.begin_call()
            for stage, lane in enumerate(stages):
                found[f"call{part}{stage}"] = waits_for(work(lane, f"call{part}{stage}"))
            order.begin_gradient()
            for stage, lane in reversed(list(enumerate(stages))):
                found[f"gradient{part}{stage}"] = waits_for(work(lane, f"gradient{part}{stage}"))
            order.end_gradient()
    assert found["call00"] == {"first0"}
    assert found["call10"] == {"call00", "first0"}
    assert found["call20"] == {"call10", "gradient00"}
    assert found["call30"] == {"call20", "gradient10"}
    assert found["call01"] == {"first1"}
    assert found["call11"] == {"call01", "gradient01"}
    assert found["call21"] == {"call11", "gradient11"}
    for stage in range(2):
        assert found[f"gradient0{stage}"] == {f"first{stage}"}
        assert found[f"gradient3{stage}"] == {f"gradient2{stage}"}
