"""What of a task's output is not shown beside the one line of tfdist."""

from __future__ import annotations

import pytest

from tfdist.tools.launch.noise import Noise

pytestmark = pytest.mark.stacks("2.15", "newest")

REMOTE = "from remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService"
# The end of worker:1 of three, as worker:0 tells of it.
LOST_2_15 = f"""\
2026-11-29 23:21:01.929130: E tensorflow/core/common_runtime/ring_alg.cc:291] Aborting RingGather \
with UNAVAILABLE: Collective ops is aborted by: Connection reset by peer
Additional GRPC error information {REMOTE}/RecvBuf:
:{{"created":"@1795994461.928625870","description":"Error received from peer ipv4:127.0.0.1:49821",\
"file":"external/com_github_grpc_grpc/src/core/lib/surface/call.cc","grpc_status":14}}
The error could be from a previous operation. Restart your program to reset.
Additional GRPC error information {REMOTE}/RecvBuf:
2026-11-29 23:21:01.929218: E tensorflow/core/common_runtime/base_collective_executor.cc:249] \
BaseCollectiveExecutor::StartAbort UNAVAILABLE: Collective ops is aborted by: Connection reset"""
LOST_2_21 = f"""\
E0000 00:00:1795994467.156537   16589 ring_alg.cc:291] Aborting RingGather with UNAVAILABLE: \
Collective ops is aborted by: Socket closed
Additional GRPC error information {REMOTE}/RecvBuf:
:UNKNOWN:Error received from peer  {{grpc_status:14, grpc_message:"Socket closed"}}
The error could be from a previous operation. Restart your program to reset.
Additional GRPC error information {REMOTE}/RecvBuf:
E0000 00:00:1795994467.156586   16589 base_collective_executor.cc:252] \
BaseCollectiveExecutor::StartAbort UNAVAILABLE: Collective ops is aborted by: Socket closed"""
# Of a chief whose worker was killed.
LOST_ON_SERVERS = """\
2026-11-29 23:08:00.088730: E tensorflow/core/common_runtime/eager/context.cc:847] Failed to \
register function remotely due to failed to connect to all addresses
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling
:{"created":"@1795993680.088576755","description":"Failed to pick subchannel"}
This could happen if the remote target has been disconnected from the client.
ERROR:tensorflow:Worker /job:worker/replica:0/task:1 failed with AbortedError():Unable to find
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling
:{"created":"@1795993682.269737882","description":"Error received from peer ipv4:127.0.0.1:45893"}
"""
OTHERS = (
    "E0000 00:00:1795994467.156537   16589 op_kernel.cc:10] OP_REQUIRES failed: NOT_FOUND: no file",
    "2026-11-29 23:21:01.92: E tensorflow/core/framework/op_kernel.cc:1] OOM when allocating",
    "2026-11-29 23:21:01.92: W tensorflow/core/data/root_dataset.cc:1] Optimization loop failed",
    "ValueError: the cluster is UNAVAILABLE",
    "The error could be from a previous operation. Restart your program to reset.",
    "  0x7f001 is an address that the script prints",
)


@pytest.mark.parametrize(
    "lost", [LOST_2_15, LOST_2_21, LOST_ON_SERVERS], ids=["2.15", "2.21", "servers"]
)
def test_what_the_runtime_says_of_a_lost_task_is_hidden(lost: str) -> None:
    noise = Noise(set())
    lines = ["epoch 1", *lost.splitlines(), "epoch 2"]
    assert [line for line in lines if noise.keeps(line)] == ["epoch 1", "epoch 2"]


def test_other_errors_are_shown() -> None:
    noise = Noise(set())
    assert [line for line in OTHERS if noise.keeps(line)] == [*OTHERS]


def test_the_same_mistake_of_all_tasks_is_told_once() -> None:
    told: set[str] = set()
    first, second = Noise(told), Noise(told)
    line = "tfdist: error: output_dir: received None"
    assert first.keeps(line)
    assert not second.keeps(line)
    assert second.keeps(f"{line}, and more")
