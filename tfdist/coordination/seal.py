"""Proofs that a message is from a process that knows the job's token (HMAC-SHA256, RFC 2104).

    asks, answers = seals(token, asking=nonce, answering=other_nonce)     # of one connection
    line = answers.seal(b'{"kind":"Proof"}\n')    # in one process
    answers.open(line)                            # in the other; None for a forgery

Each side of a connection chooses a new nonce, so a line proves nothing on another connection. Each
direction has its own seal, which counts the lines: none can be repeated, left out or sent back. The
lines are not encrypted. Without a token, everyone knows the keys.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

#: The environment variable with the job's token: tasks with different tokens do not train
#: together.
TOKEN_VARIABLE = "TFDIST_JOB_TOKEN"

#: Hexadecimal characters of a nonce and of a code.
NONCE_LENGTH = CODE_LENGTH = 32


def new_token() -> str:
    """A text that nobody can guess."""
    return secrets.token_hex(16)


def token_of(environ: Mapping[str, str]) -> str:
    """The job's token; empty for a job without one."""
    return environ.get(TOKEN_VARIABLE, "")


def new_nonce() -> str:
    """A text of `NONCE_LENGTH` characters that was never used before."""
    return secrets.token_hex(NONCE_LENGTH // 2)


def proof(token: str, statement: str, nonce: str) -> bytes:
    """The code for the other side's nonce, which only a process with the token can compute.

    Args:
      token: the job's token.
      statement: what the code proves.
      nonce: a text from the other side.
    """
    message = f"{statement} {nonce}".encode()
    return hmac.digest(_bytes(token), message, hashlib.sha256).hex()[:CODE_LENGTH].encode()


class Seal:
    """Adds and checks the codes of the lines in one direction of a connection.

    Args:
      key: the key of the connection.
      direction: a text that the other direction does not have.
    """

    def __init__(self, key: bytes, direction: str) -> None:
        self._key = key
        self._direction = direction
        self._count = 0

    def seal(self, content: bytes) -> bytes:
        """The next line: its code, a space, and its content."""
        return self._next_code(content) + b" " + content

    def open(self, line: bytes) -> bytes | None:
        """The content of the next line; None if its code is wrong."""
        code, _, content = line.partition(b" ")
        return content if hmac.compare_digest(code, self._next_code(content)) else None

    def _next_code(self, content: bytes) -> bytes:
        message = f"{self._direction} {self._count} ".encode() + content
        self._count += 1
        return hmac.digest(self._key, message, hashlib.sha256).hex()[:CODE_LENGTH].encode()


def seals(token: str, *, asking: str, answering: str, purpose: str = "") -> tuple[Seal, Seal]:
    """The seals of one connection: of the side that has connected, and of the other side.

    Args:
      token: the job's token.
      asking: the nonce of the side that has connected.
      answering: the nonce of the other side.
      purpose: a text that connections of another kind do not have.
    """
    key = hmac.digest(_bytes(token), f"{asking} {answering}".encode(), hashlib.sha256)
    return Seal(key, f"asking{purpose}"), Seal(key, f"answering{purpose}")


def _bytes(token: str) -> bytes:
    # The environment may contain bytes that are not UTF-8.
    return token.encode("utf-8", "surrogateescape")
