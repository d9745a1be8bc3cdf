"""What the runtime says of a lost task is not shown; everything else is."""

from __future__ import annotations

import pytest

from tfdist.tools.launch.noise import Noise

pytestmark = pytest.mark.stacks("2.15")

# Of a chief whose worker was killed.
LOST = """\
2026-11-29 23:08:00.088730: E tensorflow/core/common_runtime/eager/context.cc:847] Failed to \
register function remotely due to failed to connect to all addresses
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling
:{"created":"@1795993680.088576755","description":"Failed to pick subchannel"}
This could happen if the remote target has been disconnected from the client.
ERROR:tensorflow:Worker /job:worker/replica:0/task:1 failed with AbortedError():Unable to find
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling
:{"created":"@1795993682.269737882","description":"Error received from peer ipv4:127.0.0.1:45893"}
"""


def test_only_the_lines_about_a_lost_task_are_hidden() -> None:
    other = "2026-11-29 23:08:00.0: E tensorflow/core/kernels/a.cc:8] INVALID_ARGUMENT: no"
    lines = ["Epoch 7/12", *LOST.splitlines(), "Epoch 8/12", ':{"mine": 1}', other]
    noise = Noise()
    shown = [line for line in lines if noise.keeps(line)]
    assert shown == ["Epoch 7/12", "Epoch 8/12", ':{"mine": 1}', other]
