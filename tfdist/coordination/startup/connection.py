"""Connects to an address and identifies what listens there.

found = await connect("10.0.0.2", 2222, hello, token, resolver=resolver, timeout=5.0)
if not isinstance(found, Reach):
    channel, hello = found
"""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import Executor

from tfdist.cluster import Cluster
from tfdist.coordination.probe import is_grpc_server
from tfdist.coordination.seal import TOKEN_VARIABLE
from tfdist.coordination.startup.channel import Channel, open_channel
from tfdist.coordination.startup.protocol import (
    LIMIT,
    OTHER_JOB,
    REFUSED,
    RUNNING,
    SILENT,
    STRANGER,
    TIMED_OUT,
    UNREACHABLE,
    UNRESOLVED,
    Challenge,
    Description,
    Hello,
    OtherCluster,
    Reach,
    decode,
    encode,
)


async def connect(
    host: str, port: int, hello: Hello, token: str, *, resolver: Executor, timeout: float
) -> tuple[Channel, Hello] | Reach:
    """Connects, and exchanges the proofs and the hellos.

    Args:
      host: a name, or an address without brackets.
      port: the port there.
      hello: the hello of this task.
      token: the job's token.
      resolver: the threads that look up names.
      timeout: seconds that the connection may take, and then the answer on it.

    Returns:
      The channel to the task that answers, and its hello; else what happened.
    """
    found = await _open(host, port, resolver, timeout)
    if isinstance(found, Reach):
        return found
    reader, writer = found
    answer: tuple[Channel, Hello] | Reach
    try:
        async with asyncio.timeout(timeout):
            answer = await _identify(reader, writer, hello, token)
    except TimeoutError:
        answer = Reach(SILENT)
    except (OSError, asyncio.IncompleteReadError):
        answer = Reach(STRANGER, "it closes the connection")
    except ValueError:
        answer = Reach(STRANGER, "an endless line")
    except BaseException:
        writer.transport.abort()
        raise
    if isinstance(answer, Reach):
        writer.transport.abort()
    return answer


async def read_hello(line: bytes, channel: Channel, cluster: Cluster) -> Hello | None:
    """The hello in a line; None for anything else.

    If the other task has another cluster, both describe theirs first.

    Args:
      line: the first line that was received after the proof.
      channel: the channel to the other task; it must have sent this task's hello.
      cluster: the cluster of this task.
    """
    message = decode(line, cluster)
    if isinstance(message, OtherCluster):
        channel.send(Description(cluster))
        other = await channel.receive()
        message = decode(line, other.cluster) if isinstance(other, Description) else None
    return message if isinstance(message, Hello) else None


async def _open(
    host: str, port: int, resolver: Executor, timeout: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | Reach:
    loop = asyncio.get_running_loop()

    def look_up(flags: int = 0) -> list[tuple]:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))

    try:
        try:
            # A numeric address needs no name server, and no thread that waits for one.
            places = look_up(socket.AI_NUMERICHOST)
        except socket.gaierror:
            async with asyncio.timeout(timeout):
                places = await loop.run_in_executor(resolver, look_up)
    except (OSError, UnicodeError):  # TimeoutError is an OSError.
        return Reach(UNRESOLVED)
    last = Reach(UNRESOLVED)
    for *_, place in places:
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(*place[:2], limit=LIMIT)
            # If nothing listens, the kernel may connect a local port to itself.
            if writer.get_extra_info("sockname") != writer.get_extra_info("peername"):
                return reader, writer
            writer.transport.abort()
            last = Reach(REFUSED)
        except (ConnectionRefusedError, ConnectionResetError):
            last = Reach(REFUSED)
        except TimeoutError:
            last = Reach(TIMED_OUT)
        except OSError as error:
            last = Reach(UNREACHABLE, os.strerror(error.errno or 0).lower())
    return last


async def _identify(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello, token: str
) -> tuple[Channel, Hello] | Reach:
    challenge = Challenge()
    writer.write(encode(challenge))
    # At the end of the stream `readexactly` raises; `read` would return nothing.
    first = await reader.readexactly(1)
    if first == b"{":
        answer = decode(first + await reader.readline())
        if not isinstance(answer, Challenge):
            return Reach(STRANGER)
        channel = await open_channel(challenge, answer, reader, writer, token)
        if channel is None:
            return Reach(OTHER_JOB, f"its {TOKEN_VARIABLE} differs")
        channel.send(hello)
        other = await read_hello(await channel.receive_line(), channel, hello.cluster)
        return (channel, other) if other else Reach(STRANGER)
    first += await reader.read(63)
    if is_grpc_server(first):
        return Reach(RUNNING)
    banner = first.decode("ascii", "replace").partition("\n")[0].strip()
    return Reach(STRANGER, banner if banner.isascii() and banner.isprintable() else "")
