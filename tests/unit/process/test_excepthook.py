"""The lost task is identified from the text of an exception, which is one line for the user."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
from absl import logging

from tfdist.process.excepthook import (
    end_on_uncaught,
    lost_peer,
    read_uncaught,
    write_uncaught,
)

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


LOST = (
    "Graph execution error:\n\nDetected at node Add\nfailed to connect to all addresses\n"
    "Additional GRPC error information from remote target /job:worker/replica:0/task:1 while "
    "calling /tensorflow.WorkerService/RecvBuf:\n{created}"
)


@pytest.mark.parametrize("verbosity", [logging.WARNING, logging.DEBUG])
def test_the_loss_of_another_task_is_one_line(
    verbosity: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    monkeypatch.setattr(logging, "get_verbosity", lambda: verbosity)
    end_on_uncaught(None)
    error = tf.errors.UnavailableError(None, None, LOST)
    sys.excepthook(type(error), error, None)
    printed = capsys.readouterr().err
    if verbosity == logging.DEBUG:
        assert "Detected at node Add" in printed
    else:
        assert printed == (
            "tfdist: error: worker:1 was lost (failed to connect to all addresses); --verbosity=1 "
            "prints the traceback\n"
        )


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ("Exception in Dense.call().\n\nIt has 4 columns.", "Exception in Dense.call(). It has 4"),
        (
            'in user code:\n\n    File "training.py", line 1\n\n    ValueError: It has 4',
            "ValueError",
        ),
    ],
    ids=["Keras 3", "AutoGraph"],
)
def test_the_report_has_the_line_that_says_what_is_wrong(
    text: str, report: str, tmp_path: Path
) -> None:
    write_uncaught(str(tmp_path / "error"), ValueError(text), 0.0)
    found = read_uncaught(tmp_path / "error")
    assert found is not None
    assert found.error.startswith(f"ValueError: {report}")
