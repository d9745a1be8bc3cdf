"""A chief at the startup barrier, and all its workers as clients of the protocol in one process.

    python -m tests.support.many_tasks 4000      # 4000 tasks: 5.1 s, 3.9 s of CPU time in the chief

The chief is the real one, in a process of its own. A client does for the chief what a worker does:
it answers at its address, reports, and waits for the verdict.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time

from tests.support.startup import config, hello
from tfdist.cluster import Cluster, Task, host_and_port
from tfdist.coordination.startup import wait_at_barrier
from tfdist.coordination.startup.channel import accept_channel, open_channel
from tfdist.coordination.startup.protocol import (
    LIMIT,
    Challenge,
    Report,
    Status,
    Verdict,
    decode,
    encode,
)
from tfdist.tools.launch.local import hold_ports

TOKEN = "the token of the job"


def cluster_of(tasks: int, port: int, chief_port: int) -> Cluster:
    """The chief at 127.0.0.1, the workers at 127.1.0.0 and so on with one port."""
    workers = [f"127.1.{n // 256}.{n % 256}:{port}" for n in range(tasks)]
    return Cluster(chief=(f"127.0.0.1:{chief_port}",), worker=tuple(workers))


async def client(cluster: Cluster, task: Task) -> str:
    """Takes part as `task`; returns the text of the verdict."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = await accept_channel(reader, writer, TOKEN)
        assert channel
        await channel.receive_line()
        channel.send(hello(cluster, task))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, *host_and_port(cluster.address(task)))
    while True:
        try:
            chief = host_and_port(cluster.address(cluster.chief_task))
            reader, writer = await asyncio.open_connection(*chief, limit=LIMIT)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.2)
    challenge = Challenge()
    writer.write(encode(challenge))
    other = decode(await reader.readline())
    assert isinstance(other, Challenge)
    channel = await open_channel(challenge, other, reader, writer, TOKEN)
    assert channel
    channel.send(hello(cluster, task))
    await channel.receive_line()
    channel.send(Report(complete=True))
    while isinstance(message := await channel.receive(), Status):
        pass
    writer.close()
    server.close()
    assert isinstance(message, Verdict)
    return message.text


async def all_clients(cluster: Cluster) -> set[str]:
    return set(await asyncio.gather(*(client(cluster, task) for task in cluster.tasks()[1:])))


def run_chief(tasks: int, *ports: int) -> None:
    cluster = cluster_of(tasks, *ports)
    me = config(cluster, cluster.chief_task, timeout=300.0, token=TOKEN, joins=True)
    outcome = wait_at_barrier(me)
    print(outcome.verdict or f"The chief has waited {outcome.seconds:.1f} s.", flush=True)


def run(tasks: int) -> tuple[float, float]:
    """The seconds until all clients have the verdict, and the CPU seconds of the chief."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with hold_ports(2) as ports:
        pass
    arguments = map(str, (tasks, *ports))
    chief = [sys.executable, "-m", "tests.support.many_tasks", "--chief", *arguments]
    begin, used = time.monotonic(), cpu_of_children()
    with subprocess.Popen(chief) as process:
        verdicts = asyncio.run(all_clients(cluster_of(tasks, *ports)))
        seconds = time.monotonic() - begin
    assert verdicts == {""}, verdicts
    assert process.returncode == 0
    return seconds, cpu_of_children() - used


def cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    if sys.argv[1] == "--chief":
        run_chief(*map(int, sys.argv[2:]))
    else:
        seconds, used = run(int(sys.argv[1]))
        print(f"{sys.argv[1]} tasks: {seconds:.1f} s, {used:.1f} s of CPU time in the chief")
