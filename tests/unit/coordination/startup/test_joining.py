"""Workers at the startup barrier of a job that trains already, or that does not need them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.startup import (
    PS,
    SETTINGS,
    W0,
    W1,
    W2,
    Participants,
    config,
    outcomes_of,
    sends,
    server,
)
from tfdist.cluster import Cluster, Task
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]

CHIEF = Task("chief", 0)


def test_a_worker_is_replaced_while_the_others_train(job: Cluster) -> None:
    with server(job.address(W0), sends(SETTINGS)), server(job.address(PS), sends(SETTINGS)):
        joined, waited = (
            outcomes_of(config(job, W1, joins=joins, timeout=2.0))[0] for joins in (True, False)
        )
    assert joined.verdict == ""
    assert "worker:0 is running already" in waited.verdict


def test_a_worker_is_replaced_while_another_one_stays_away() -> None:
    with hold_ports(4) as ports:
        first, second, third, ps = (f"127.0.0.1:{port}" for port in ports)
        cluster = Cluster(worker=(first, second, third), ps=(ps,))
        with server(first, sends(SETTINGS)), server(ps, sends(SETTINGS)):
            (joined,) = outcomes_of(config(cluster, W1, joins=True, timeout=2.0))
    assert joined.verdict == ""


@pytest.fixture
def elastic() -> Iterator[Cluster]:
    with hold_ports(5) as ports:
        chief, ps, *workers = (f"127.0.0.1:{port}" for port in ports)
        yield Cluster(chief=(chief,), ps=(ps,), worker=tuple(workers))


def test_an_elastic_job_begins_with_enough_workers(elastic: Cluster) -> None:
    outcomes = outcomes_of(
        *(config(elastic, task, min_workers=2) for task in (CHIEF, PS, W0, W2)),
    )
    assert [outcome.verdict for outcome in outcomes] == [""] * 4


def test_an_elastic_job_waits_for_enough_workers(elastic: Cluster) -> None:
    outcomes = outcomes_of(
        *(config(elastic, task, min_workers=2, timeout=2.0) for task in (CHIEF, PS, W1)),
    )
    for outcome in outcomes:
        assert "worker:0 and worker:2 have not started" in outcome.verdict


def test_an_elastic_job_waits_for_its_ps(elastic: Cluster) -> None:
    participants = Participants()
    for task in (CHIEF, W0, W1):
        participants.start(config(elastic, task, min_workers=1, timeout=2.0))
    for outcome in participants.outcomes():
        assert "ps:0" in outcome.verdict
