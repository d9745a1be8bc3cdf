"""The canary of `tfdist.upstream.server_messages`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.stacks(horovod=("2.18",)), pytest.mark.timeout(120)]


@pytest.mark.horovod
def test_a_server_of_horovods_tensorflow_logs_information_at_every_level() -> None:
    script = "import tensorflow as tf; tf.distribute.Server.create_local_server()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "Started server with target" in done.stderr
