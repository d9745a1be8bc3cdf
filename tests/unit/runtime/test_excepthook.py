"""The lost task is identified from the text of an exception."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from tfdist.runtime.excepthook import lost_peer

pytestmark = pytest.mark.stacks("2.15", "newest")


@pytest.mark.parametrize(
    ("kind", "message", "peer"),
    [
        (
            tf.errors.UnavailableError,
            "{{function_node x_device_/job:worker/replica:0/task:0}} Collective ops is "
            "aborted by: Error reported from /job:worker/task:1: /job:worker/replica:0/task:1 "
            "heartbeat timeout.",
            "worker:1",
        ),
        (
            tf.errors.UnavailableError,
            "{{function_node x_device_/job:worker/replica:0/task:1}} failed to connect "
            "to all addresses\nAdditional GRPC error information from remote target "
            "/job:chief/replica:0/task:0 while calling /tensorflow.WorkerService/RecvBuf:",
            "chief:0",
        ),
        (
            tf.errors.InvalidArgumentError,
            "Incompatible shapes: [2] vs. [3]\nAdditional GRPC error information from remote "
            "target /job:worker/replica:0/task:1 while calling /tensorflow.eager.EagerService/Run:",
            None,
        ),
        (
            tf.errors.UnknownError,
            "Horovod has been shut down. This was caused by an exception on one",
            "another rank",
        ),
        (
            tf.errors.UnknownError,
            "Graph execution error:\n\n[/home/me/gloo/transport/tcp/unbound_buffer.cc:81] "
            "Timed out waiting 5000ms for recv operation to complete",
            "another rank",
        ),
        (
            tf.errors.UnavailableError,
            "Graph execution error at /job:worker/replica:0/task:0/device:CPU:0",
            None,
        ),
    ],
)
def test_the_lost_task_is_named(
    kind: Callable[..., Exception], message: str, peer: str | None
) -> None:
    assert lost_peer(kind(None, None, message)) == peer
