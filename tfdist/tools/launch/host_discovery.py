"""Runs the user's host discovery script, which lists the machines of an elastic job.

    script = HostDiscoveryScript("./hosts.sh")
    script.read()              # (Host("10.0.0.1", slots=2), Host("10.0.0.2", slots=1))
    script.ask()               # the same without waiting: starts the script
    script.answer()            # None until the script has ended

The script prints one line per machine, `host:slots`, or `host` for one slot, as for
`horovodrun --host-discovery-script`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from tfdist.errors import UsageError

FLAG = "--host_discovery_script"

# More tasks than a machine carries: a mistake.
_MOST_SLOTS = 1024

#: Seconds within which the script must end.
ANSWER_SECONDS = 30.0


@dataclass(frozen=True, order=True)
class Host:
    """A machine and the number of its tasks."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


class HostDiscoveryScript:
    """The script that lists the machines.

    Args:
      command: the script and its arguments, as typed in a shell.

    Raises:
      UsageError: `command` is empty or has an unclosed quote.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._printed: IO[str] | None = None
        self._due = 0.0
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise self._error(str(error)) from None
        if not self._arguments:
            raise self._error("it is empty")

    def read(self) -> tuple[Host, ...]:
        """Runs the script and returns the hosts.

        Raises:
          UsageError: the program does not run, fails, does not answer in time, or prints something
            else than hosts.
        """
        self.end()
        self.ask()
        while (hosts := self.answer()) is None:
            time.sleep(0.01)
        return hosts

    def ask(self) -> None:
        """Starts the script unless it is running.

        Raises:
          UsageError: the script cannot be started.
        """
        if self._process is not None:
            return
        self._due = time.monotonic() + ANSWER_SECONDS
        # A pipe would have to be read while the script runs. A new file each time, because a
        # child of an earlier run may still print.
        self._printed = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `end` closes it
        try:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                # Its own process group, so that its children are ended with it.
                start_new_session=True,
            )
        except OSError as error:
            self.end()
            raise self._error(f"it cannot be started: {error.strerror}") from None

    def answer(self) -> tuple[Host, ...] | None:
        """The hosts that the script has printed; None while it is running.

        Raises:
          UsageError: as `read`.
        """
        process, printed = self._process, self._printed
        if process is None or printed is None:
            return None
        if process.poll() is None:
            if time.monotonic() < self._due:
                return None
            self.end()
            raise self._error(f"it has not ended within {ANSWER_SECONDS:g} s")
        try:
            if process.returncode:
                raise ValueError(f"it ended with code {process.returncode}")
            printed.seek(0)
            # The order of the lines may vary.
            return tuple(sorted(parse(printed)))
        except ValueError as error:
            raise self._error(str(error)) from None
        finally:
            self.end()

    def end(self) -> None:
        """Ends the script and its children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    def _error(self, problem: str) -> UsageError:
        return UsageError(
            FLAG,
            received=self._command,
            accepted="a program that prints one host:slots line per machine",
            remedy=f"Correct the program: {problem}.",
        )


def parse(lines: Iterable[str]) -> tuple[Host, ...]:
    """The hosts with at least one slot, in order.

    `#` starts a comment.

    Raises:
      ValueError: a line is not a host, or has too many slots, or a host is listed twice; the
        message names it.
    """
    hosts: dict[str, Host] = {}
    for line in lines:
        text = line.partition("#")[0].strip()
        if not text:
            continue
        name, colon, slots = text.rpartition(":")
        # An IPv6 address contains colons: without slots it is in brackets.
        if not colon or slots.endswith("]"):
            name, slots = text, "1"
        if not name or not slots.isdecimal() or any(character.isspace() for character in name):
            raise ValueError(f"the line {line!r} is not host:slots")
        if len(slots) > len(str(_MOST_SLOTS)) or int(slots) > _MOST_SLOTS:
            raise ValueError(f"{name} has more than {_MOST_SLOTS} slots")
        if name in hosts:
            raise ValueError(f"{name} is listed twice")
        hosts[name] = Host(name, int(slots))
    return tuple(host for host in hosts.values() if host.slots)
