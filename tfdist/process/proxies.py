"""Lets the tasks of a job connect to each other directly where a proxy is configured.

    os.environ |= proxies.exempted(["127.0.0.1", "node2"], os.environ)

The gRPC of TensorFlow sends every connection to the proxy of `http_proxy`, even one to 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# https://grpc.github.io/grpc/core/md_doc_environment_variables.html
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXEMPTED = ("no_grpc_proxy", "no_proxy")


def exempted(hosts: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for connections without a proxy; empty if there is none.

    Args:
      hosts: the names or addresses of the job's hosts.
      environ: the environment of the process.
    """
    if not any(map(environ.get, _PROXIES)):
        return {}
    known = next(filter(None, map(environ.get, _EXEMPTED)), "")
    return {_EXEMPTED[0]: ",".join(dict.fromkeys([*filter(None, known.split(",")), *hosts]))}
