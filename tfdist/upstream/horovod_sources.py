"""Patches the sources of Horovod before `tfdist horovod build` compiles them.

    horovod_sources.apply(directory, tensorflow=(2, 21))

A source that does not contain the lines to patch is refused, so a build of another release of
Horovod shows which bug that release has fixed.
"""

from __future__ import annotations

from pathlib import Path

VERSION = "0.28.1"
#: Changes with each change of this module, so that `tfdist horovod build` compiles again.
REVISION = 2

_GLOO_CONTEXT = "horovod/common/gloo/gloo_context.cc"
_INITIALIZATION = "void GlooContext::InitializeForProcessSet("
_INTERFACE = "  device_attr.iface = gloo_iface_;"

_GLOO_PAIR = "third_party/gloo/gloo/transport/tcp/pair.cc"
_NO_LOCK = """std::try_to_lock);
  if (!lock) {
    return;
"""

_SOURCES = "horovod/tensorflow/CMakeLists.txt"
_XLA_OPERATIONS = (
    'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n'
)
_LAST_WITH_XLA_OPERATIONS = (2, 18)


def apply(directory: Path, tensorflow: tuple[int, ...]) -> None:
    """Changes the sources in a directory.

    Args:
      directory: the unpacked source archive.
      tensorflow: the version of the TensorFlow to compile against.

    Raises:
      ValueError: a source does not contain the lines to patch.
    """
    # Horovod ignores HOROVOD_GLOO_IFACE for the process set of all ranks. The connections then use
    # the address of the machine's host name, which is loopback on Debian, so every job that spans
    # machines aborts.
    mended = f"  gloo_iface_ = global_context.gloo_iface_;\n{_INTERFACE}"
    _replace(directory / _GLOO_CONTEXT, _INTERFACE, mended, after=_INITIALIZATION)
    # Gloo's event loop gives its core to the thread that holds the lock of a connection. Without
    # the lock, the loop does not handle an event, and `epoll_wait` returns the same event again at
    # once. With one core per process, the loop then runs until the end of its time slice (4 ms at
    # 250 Hz), while the thread with the lock waits for the core.
    yielding = _NO_LOCK.replace("return", "std::this_thread::yield();\n    return")
    _replace(directory / _GLOO_PAIR, _NO_LOCK, yielding)
    if tensorflow[:2] > _LAST_WITH_XLA_OPERATIONS:
        # The source of these operations does not compile against TensorFlow 2.19. Horovod registers
        # them only if HOROVOD_ENABLE_XLA_OPS is set.
        _replace(directory / _SOURCES, _XLA_OPERATIONS, "")


def _replace(path: Path, old: str, new: str, *, after: str = "") -> None:
    """Replaces the first occurrence of `old` behind the first occurrence of `after`."""
    source = path.read_text()
    start = source.find(after)
    place = source.find(old, start)
    if start < 0 or place < 0:
        raise ValueError(f"{path} does not contain {old!r}: this is not Horovod {VERSION}.")
    path.write_text(f"{source[:place]}{new}{source[place + len(old) :]}")
