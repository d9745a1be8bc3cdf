"""Fields of a manifest, and sentences about those that are wrong."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tfdist.errors import UsageError
from tfdist.render.pods import CONTAINER

KUBERNETES = "1.33"
#: RFC 1035.
NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


def kubernetes(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks a kind of Kubernetes's own against its schema.

    Raises:
      UsageError: kubernetes-validate is not installed.
    """
    try:
        import kubernetes_validate
    except ImportError:
        raise UsageError(
            "tfdist render check",
            received="no package kubernetes-validate",
            accepted="it, with the schemas of Kubernetes",
            remedy='Install it: pip install "tfdist[kubernetes]".',
        ) from None
    try:
        kubernetes_validate.validate(dict(manifest), KUBERNETES, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        yield problem("apiVersion", manifest.get("apiVersion"), "that of its kind")
    except kubernetes_validate.ValidationError as error:
        yield f"{'.'.join(map(str, error.path))}: {error.message}"


def header(manifest: Mapping[str, Any], version: str) -> Iterator[str]:
    """Checks what every kind has; `version` is its apiVersion."""
    yield from fields(manifest, "", {"apiVersion", "kind", "metadata", "spec"})
    if manifest.get("apiVersion") != version:
        yield problem("apiVersion", manifest.get("apiVersion"), version)
    name = at(manifest, "metadata", "name")
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        accepted = "lower-case letters, digits and dashes, beginning with a letter"
        yield problem("metadata.name", name, accepted)
    labels = at(manifest, "metadata", "labels") or {}
    for label, value in labels.items():
        if not isinstance(value, str):
            yield problem(f"metadata.labels.{label}", value, "a string")


def fields(value: Any, place: str, accepted: Collection[str]) -> Iterator[str]:
    """Checks that an object has only the fields of these names."""
    if not isinstance(value, dict):
        yield problem(place, value, "a JSON object")
        return
    for name in value:
        if name not in accepted:
            yield problem(f"{place}.{name}".lstrip("."), "a field of this name", listed(accepted))


def one_of(spec: Any, place: str, field: str, accepted: Collection[str]) -> Iterator[str]:
    """Checks that a field of the object `place` in `spec` is one of the accepted ones."""
    value = at(spec, place.rpartition(".")[2], field)
    if value not in accepted:
        yield problem(f"{place}.{field}", value, listed(accepted))


def at(value: Any, *names: str) -> Any:
    """A value inside of objects; None if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def is_count(value: Any) -> bool:
    """Whether a value is an integer from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def listed(names: Collection[Any]) -> str:
    """Names in alphabetical order."""
    return ", ".join(sorted(map(str, names)))


def problem(place: str, received: Any, accepted: str) -> str:
    """The sentence about a field."""
    return f"{place}: received {received!r}; accepted: {accepted}"


def containers_of(pod: Any) -> list[Any]:
    """The containers of a pod's specification."""
    containers = at(pod, "containers")
    return containers if isinstance(containers, list) else []


def training_container(containers: list[Any], place: str) -> Iterator[str]:
    """Checks that the pod at `place` has the container that trains."""
    names = [at(container, "name") for container in containers]
    if CONTAINER not in names:
        yield problem(f"{place}.containers", names, f"one that is called {CONTAINER}")
