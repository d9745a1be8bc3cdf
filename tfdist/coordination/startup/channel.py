"""A connection between two tasks that have proved to each other that they know the job's token.

    challenge = Challenge()                  # in the task that connects
    writer.write(encode(challenge))
    channel = await open_channel(challenge, answer, reader, writer, token)

    channel = await accept_channel(reader, writer, token)    # in the other task

    channel.send(Report(complete=True))      # in both, from now on
    message = await channel.receive()

Before its proof, a task tells the other one nothing but a random number. The task that was
connected to proves first, because it is at an address that the other one was told. A proof tells
nothing about the token. From then on, each line has a code; see `tfdist.coordination.seal`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tfdist.cluster import Cluster
from tfdist.coordination.seal import Seal, seals
from tfdist.coordination.startup.protocol import (
    Challenge,
    Message,
    OtherCluster,
    Proof,
    decode,
    encode,
)


@dataclass(eq=False)
class Channel:
    """Sends and receives messages on a connection.

    Args:
      reader: receives from the other task.
      writer: sends to it.
      ours: the seal of what this task sends.
      theirs: the seal of what the other task sends.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ours: Seal
    theirs: Seal

    def send(self, message: Message) -> None:
        """Sends a message; does not wait."""
        self.writer.write(self.ours.seal(encode(message)))

    async def receive(self, cluster: Cluster | None = None) -> Message | OtherCluster | None:
        """The next message; None at the end, and for a line that is no message of the other task.

        Args:
          cluster: as in `decode`.

        Raises:
          OSError: the connection is lost.
          ValueError: the line is too long.
        """
        return decode(await self.receive_line(), cluster)

    async def receive_line(self) -> bytes:
        """The next line; empty at the end, and if it is not from the other task.

        Raises:
          As `receive`.
        """
        return self.theirs.open(await self.reader.readline()) or b""


async def open_channel(
    challenge: Challenge,
    answer: Challenge,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    token: str,
) -> Channel | None:
    """The channel to a task that this one has connected to; None if it does not know the token.

    Args:
      challenge: what this task has sent.
      answer: the challenge that the other task has sent.
      reader: receives from the other task.
      writer: sends to it.
      token: the job's token.
    """
    ours, theirs = seals(token, asking=challenge.nonce, answering=answer.nonce)
    channel = Channel(reader, writer, ours, theirs)
    return channel if isinstance(await channel.receive(), Proof) else None


async def accept_channel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
) -> Channel | None:
    """The channel to a task that has connected to this one; None if it does not begin with a
    challenge.

    Its first message shows whether it knows the token.
    """
    challenge = decode(await reader.readline())
    if not isinstance(challenge, Challenge):
        return None
    own = Challenge()
    theirs, ours = seals(token, asking=challenge.nonce, answering=own.nonce)
    channel = Channel(reader, writer, ours, theirs)
    writer.write(encode(own))
    channel.send(Proof())
    return channel
