"""The end of a task that serves: it comes when those have ended that it serves.

serve_until_end(strategy)                            # for the chief
serve_until_end(strategy, others=strategy.cluster.training_tasks[1:])    # and for every worker
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tfdist.cluster import Task
from tfdist.coordination import heartbeat, shutdown
from tfdist.coordination.preemption import EXIT_PREEMPTED
from tfdist.coordination.shutdown import Listener
from tfdist.errors import EXIT_FAILED, log

if TYPE_CHECKING:
    from tfdist.strategies.base import Strategy

# Seconds between two looks at whether the leader has ended; the shorter one where it was seen to
# train, and its machine says that nobody is there any more.
_INTERVAL, _SHORT_INTERVAL = 1.0, 0.02
# One that hangs up may be about to end; so many looks after the short interval tell.
_LOOKS_AFTER_HANGING_UP = 25


def serve_until_end(
    strategy: Strategy, others: Sequence[Task] = (), *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Returns when the leader has ended, and the others, if they came at all.

    Raises:
      SystemExit: this task was told to end (EXIT_PREEMPTED), or it is to be started again with a
        leader that was lost (EXIT_FAILED).
    """
    leader = strategy.cluster.chief_task
    address = strategy.cluster.address(leader)
    and_others = " and every worker have" if others else " has"
    log(f"{strategy.task} serves until {leader} at {address}{and_others} ended")
    watched = {} if strategy.for_estimators else {str(leader): address}
    has_trained = has_ended_well = False
    looks = 0  # Since it was seen to train.
    seen: dict[str, Listener] = {}  # In the last look, by address.

    def is_up(where: str) -> bool:
        nonlocal has_trained, has_ended_well, looks
        found = shutdown.listener(where)
        if where == address:
            seen.clear()
            looks = 0 if found is Listener.SERVER else looks + 1
        seen[where] = found
        if where == address:
            # Remembered, because the others may outlast the one who says it.
            has_ended_well = has_ended_well or found is Listener.FAREWELL
            has_trained = has_trained or found is Listener.SERVER
            if has_trained and found is Listener.MEETING:
                return False  # It has been started again, and is not the one that was served.
        return found in shutdown.UP

    def interval() -> float:
        # Who watches over a leader needs a moment to answer in its place.
        expected = {Listener.NOBODY}
        if looks <= _LOOKS_AFTER_HANGING_UP:
            expected.add(Listener.SILENT)
        is_going = has_trained and {*seen.values()} <= expected
        return _SHORT_INTERVAL if is_going and not strategy.is_restartable else _INTERVAL

    def wait(seconds: float) -> None:
        serving = [where for where, found in seen.items() if found is Listener.SERVER]
        if serving and not strategy.is_restartable:
            shutdown.wait_for_hang_up(serving[0], seconds)
        else:
            sleep(seconds)

    with strategy.preemption.serving(), heartbeat.watched(watched, strategy.heartbeat_timeout):
        has_come = wait_for_end(
            address,
            [strategy.cluster.address(task) for task in others],
            is_up=is_up,
            sleep=wait,
            startup_timeout=strategy.startup_timeout,
            interval=interval,
        )
    if strategy.preemption.is_requested and not has_ended_well:
        sys.exit(EXIT_PREEMPTED)
    if not has_come or (strategy.is_restartable and not has_ended_well):
        log(f"error: {leader} was lost")
        sys.exit(EXIT_FAILED)
    log(f"{leader}{and_others} ended, and so does {strategy.task}")


def wait_for_end(
    address: str,
    others: Sequence[str] = (),
    *,
    is_up: Callable[[str], bool],
    sleep: Callable[[float], None] = time.sleep,
    patience: int = 3,
    startup_timeout: float = math.inf,
    interval: Callable[[], float] = lambda: _INTERVAL,
) -> bool:
    """Returns when the process that listened at `address` no longer does, nor any of the others.

    Args:
      address: `host:port`.
      others: addresses that are waited for as well, if anything listens there.
      is_up: tells whether anything listens at an address; asked again after each interval.
      sleep: waits for so many seconds.
      patience: how many times in a row nothing may listen before the process counts as ended.
      startup_timeout: seconds before something must have listened at `address`.
      interval: seconds to the next look.

    Returns:
      Whether anything has listened at `address`.
    """
    missed: int | None = None
    while True:
        if is_up(address) or (missed is not None and any(map(is_up, others))):
            missed = 0
        elif missed is not None:
            missed += 1
            if missed == patience:
                return True
        elif startup_timeout <= 0:
            return False
        seconds = interval()
        startup_timeout -= seconds
        sleep(seconds)
