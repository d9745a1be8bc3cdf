"""TensorFlow 2.21 has the fix of `tfdist.upstream.server_messages`, which ends with 2.20."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(120)]


def test_a_server_of_this_tensorflow_keeps_to_the_log_level() -> None:
    script = "import tensorflow as tf; tf.distribute.Server.create_local_server()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "Started server with target" not in done.stderr
