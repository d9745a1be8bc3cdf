"""Connects to an address and identifies what listens there.

found = await connect("10.0.0.2", 2222, encode(hello), resolver=ThreadPoolExecutor())
"""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import Executor
from dataclasses import dataclass

from tfdist.coordination.probe import is_grpc_server
from tfdist.coordination.startup.protocol import (
    LIMIT,
    REFUSED,
    RUNNING,
    SILENT,
    STRANGER,
    TIMED_OUT,
    UNREACHABLE,
    UNRESOLVED,
    Hello,
    Reach,
    decode,
)

#: Seconds that the connection may take, and then the answer on it.
HANDSHAKE_SECONDS = 5.0


@dataclass(frozen=True)
class Connection:
    """An open connection to a task that has sent its hello."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    hello: Hello


async def connect(host: str, port: int, hello: bytes, *, resolver: Executor) -> Connection | Reach:
    """Connects, sends `hello` and reads the answer.

    Args:
      host: a name, or an address without brackets.
      port: the port there.
      hello: the encoded message.
      resolver: the threads that look up names.

    Returns:
      The connection if a tfdist task answers, else what happened.
    """
    found = await _open(host, port, resolver)
    if isinstance(found, Reach):
        return found
    reader, writer = found
    answer: Hello | Reach
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            writer.write(hello)
            answer = await _identify(reader)
    except TimeoutError:
        answer = Reach(SILENT)
    except (OSError, asyncio.IncompleteReadError):
        answer = Reach(STRANGER, "it closes the connection")
    except ValueError:
        answer = Reach(STRANGER, "an endless line")
    except BaseException:
        writer.transport.abort()
        raise
    if isinstance(answer, Hello):
        return Connection(reader, writer, answer)
    writer.transport.abort()
    return answer


async def _open(
    host: str, port: int, resolver: Executor
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | Reach:
    loop = asyncio.get_running_loop()

    def look_up(flags: int = 0) -> list[tuple]:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))

    try:
        try:
            # A numeric address needs no name server, and no thread that waits for one.
            places = look_up(socket.AI_NUMERICHOST)
        except socket.gaierror:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                places = await loop.run_in_executor(resolver, look_up)
    except (OSError, UnicodeError):  # TimeoutError is an OSError.
        return Reach(UNRESOLVED)
    last = Reach(UNRESOLVED)
    for family, *_, place in places:
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await loop.sock_connect(connection, place)
            # If nothing listens, the kernel may connect a local port to itself.
            if connection.getsockname() != connection.getpeername():
                return await asyncio.open_connection(sock=connection, limit=LIMIT)
            last = Reach(REFUSED)
        except (ConnectionRefusedError, ConnectionResetError):
            last = Reach(REFUSED)
        except TimeoutError:
            last = Reach(TIMED_OUT)
        except OSError as error:
            last = Reach(UNREACHABLE, os.strerror(error.errno or 0).lower())
        except BaseException:
            connection.close()
            raise
        connection.close()
    return last


async def _identify(reader: asyncio.StreamReader) -> Hello | Reach:
    # At the end of the stream `readexactly` raises; `read` would return nothing.
    first = await reader.readexactly(1)
    if first == b"{":
        answer = decode(first + await reader.readline())
        return answer if isinstance(answer, Hello) else Reach(STRANGER)
    first += await reader.read(63)
    if is_grpc_server(first):
        return Reach(RUNNING)
    banner = first.decode("ascii", "replace").partition("\n")[0].strip()
    return Reach(STRANGER, banner if banner.isascii() and banner.isprintable() else "")
