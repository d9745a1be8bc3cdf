"""The hosts of a job are reached without the proxy of the environment."""

from __future__ import annotations

import pytest

from tfdist.process.proxies import exempted

pytestmark = pytest.mark.stacks("2.15", "newest")

PROXY = "http://127.0.0.1:9"
HOSTS = ["127.0.0.1", "node2", "node2"]


def test_without_a_proxy_nothing_is_set() -> None:
    assert exempted(HOSTS, {"no_proxy": "node1", "http_proxy": ""}) == {}


@pytest.mark.parametrize("name", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_each_host_is_exempted_once(name: str) -> None:
    assert exempted(HOSTS, {name: PROXY}) == {"no_grpc_proxy": "127.0.0.1,node2"}


def test_the_hosts_that_the_user_has_exempted_stay() -> None:
    environ = {"http_proxy": PROXY, "no_proxy": "example.org,node2"}
    assert exempted(HOSTS, environ) == {"no_grpc_proxy": "example.org,node2,127.0.0.1"}
    environ["no_grpc_proxy"] = "node1"
    assert exempted(HOSTS, environ) == {"no_grpc_proxy": "node1,127.0.0.1,node2"}
