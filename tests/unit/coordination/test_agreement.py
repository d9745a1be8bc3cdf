"""What the training tasks of a job must agree on: differences, and tasks that end early."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tfdist.coordination.agreement import Agreement
from tfdist.coordination.stores.kv_store import KeyValueStore, RendezvousStore
from tfdist.coordination.stores.rendezvous_server import serve_store
from tfdist.errors import DisagreementError
from tfdist.process import excepthook, thread_stacks

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]

TASKS = ("worker:0", "worker:1")
REMEDY = "Start the same script with the same flags in every task."


@pytest.fixture
def store() -> Iterator[KeyValueStore]:
    with serve_store("127.0.0.1", 0, {}, "token") as port:
        yield RendezvousStore("127.0.0.1", port, "token")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The errors with which the watching threads would have ended this process."""
    errors: list[str] = []
    monkeypatch.setattr(excepthook, "end", lambda error: errors.append(str(error)))
    monkeypatch.setattr("tfdist.coordination.agreement._POLL_SECONDS", 0.05)
    # The `fit` of these tests stands for that of Keras.
    monkeypatch.setattr(thread_stacks, "_LIBRARIES", ("tests", "tfdist"))
    yield errors


@pytest.fixture
def both(store: KeyValueStore, ended: list[str]) -> Iterator[tuple[Agreement, Agreement]]:
    """The chief and another task."""
    chief, other = agreements = tuple(Agreement(task, TASKS, store) for task in TASKS)
    yield chief, other
    for each in agreements:
        each.leave()


def declare(agreement: Agreement, call: str, values: Mapping[str, str]) -> None:
    agreement.check(call, lambda: values)


def wait_until(condition: Any) -> None:
    done = threading.Event()
    while not condition():
        assert not done.wait(0.02)


EQUAL = {"epochs": "2", "variable 1 (dense)": "float32 of shape (8, 4)"}


def test_tasks_that_declare_the_same_go_on(both: tuple[Agreement, Agreement]) -> None:
    for call in ("job.dataset", "fit", "fit"):
        for agreement in both:
            declare(agreement, call, EQUAL)


def test_names_may_differ(both: tuple[Agreement, Agreement]) -> None:
    """Keras numbers the layers of a process, which may have made other models before."""
    declare(both[0], "fit", {"variable 1 (dense)": "(8, 4)"})
    declare(both[1], "fit", {"variable 1 (dense_1)": "(8, 4)"})


@pytest.mark.parametrize(
    ("call", "change", "sentence"),
    [
        (
            "fit",
            {"epochs": "3"},
            f"epochs is not the same in all tasks: 2 in worker:0, 3 in worker:1. {REMEDY}",
        ),
        (
            "fit",
            {"variable 1 (dense)": "float32 of shape (8, 5)"},
            "variable 1 (dense) is not the same in all tasks: float32 of shape (8, 4) in worker:0, "
            f"float32 of shape (8, 5) in worker:1. {REMEDY}",
        ),
        (
            "fit",
            {"variable 2 (bias)": "float32 of shape (4)"},
            "variable 2 (bias) is not the same in all tasks: none in worker:0, float32 of shape "
            f"(4) in worker:1. {REMEDY}",
        ),
        (
            "job.dataset",
            {},
            "worker:1 has reached job.dataset and worker:0 fit: every task must make the same "
            "calls in the same order.",
        ),
    ],
)
def test_a_difference_names_both_tasks_and_both_values(
    both: tuple[Agreement, Agreement],
    ended: list[str],
    call: str,
    change: dict[str, str],
    sentence: str,
) -> None:
    chief, other = both

    def check() -> None:
        declare(chief, "fit", EQUAL)
        wait_until(lambda: ended)

    # The chief does not wait in `check`, but its call of `fit` is not over.
    def fit() -> None:
        check()

    training = threading.Thread(target=fit)
    training.start()
    with pytest.raises(DisagreementError) as raised:
        declare(other, call, {**EQUAL, **change})
    assert str(raised.value) == sentence
    training.join()
    assert ended[0] == sentence


@pytest.mark.parametrize(
    ("calls", "inside", "sentence"),
    [
        (0, "", "worker:1 ended early: its script ended after its startup, and"),
        (1, "fit", "worker:1 ended early: its script ended within fit, and"),
        (1, "", None),
    ],
)
def test_a_task_that_leaves_the_others_ended_early(
    both: tuple[Agreement, Agreement],
    ended: list[str],
    calls: int,
    inside: str,
    sentence: str | None,
) -> None:
    chief, other = both

    def fit() -> None:
        declare(chief, "fit", EQUAL)
        left.wait()
        if sentence:
            wait_until(lambda: ended)
        else:
            threading.Event().wait(0.3)

    left = threading.Event()
    training = threading.Thread(target=fit)
    training.start()
    for _ in range(calls):
        declare(other, "fit", EQUAL)
    other.inside = inside
    other.leave()
    left.set()
    training.join()
    assert (ended[0].startswith(sentence)) if sentence else not ended


def test_a_chief_that_ends_is_no_loss(both: tuple[Agreement, Agreement]) -> None:
    chief, other = both
    chief.leave()
    with pytest.raises(
        DisagreementError,
        match="worker:0 ended early: its script ended after its startup, and",
    ):
        declare(other, "fit", EQUAL)


def test_a_task_alone_compares_nothing() -> None:
    declare(Agreement("worker:0", ("worker:0",), None), "fit", EQUAL)
