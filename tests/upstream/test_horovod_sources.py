"""What `tfdist horovod build` changes. `scripts/test` builds Horovod from its real sources."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import run_by_hand
from tfdist.upstream import horovod_sources

pytestmark = pytest.mark.stacks("2.15", "newest", horovod=("newest",))

EVENT_LOOP = str(Path(__file__).parents[1] / "support" / "event_loop_program.py")

#: The lines of Horovod that matter, by file.
SOURCES = {
    "horovod/common/gloo/gloo_context.cc": """\
  device_attr.iface = gloo_iface_;
void GlooContext::InitializeForProcessSet(
  device_attr.iface = gloo_iface_;
""",
    "third_party/gloo/gloo/transport/tcp/pair.cc": """\
  std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
  if (!lock) {
    return;
  }
""",
    "horovod/tensorflow/CMakeLists.txt": """\
list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")
""",
}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def changed(sources: Path) -> dict[str, str]:
    texts = {name: (sources / name).read_text() for name in SOURCES}
    return {name: text for name, text in texts.items() if text != SOURCES[name]}


def test_only_a_new_tensorflow_needs_the_build_without_xla(sources: Path) -> None:
    horovod_sources.apply(sources, (2, 18))
    context, pair, _ = SOURCES
    found = changed(sources)
    assert sorted(found) == sorted([context, pair])
    assert found[context].splitlines()[2:] == [
        "  gloo_iface_ = global_context.gloo_iface_;",
        "  device_attr.iface = gloo_iface_;",
    ]
    assert "if (!lock) {\n    std::this_thread::yield();\n    return;" in found[pair]


def test_a_new_tensorflow_is_built_without_the_operations_of_xla(sources: Path) -> None:
    horovod_sources.apply(sources, (2, 21))
    assert changed(sources)["horovod/tensorflow/CMakeLists.txt"] == ""


@pytest.mark.parametrize("name", SOURCES)
def test_other_sources_are_refused(sources: Path, name: str) -> None:
    """A release of Horovod with other lines may have mended the bug, or needs another change."""
    (sources / name).write_text("// mended\n")
    with pytest.raises(ValueError, match=f"{name} does not contain .*not Horovod 0.28.1"):
        horovod_sources.apply(sources, (2, 21))


@pytest.mark.horovod
def test_an_event_loop_gives_its_core_to_the_holder_of_its_lock(tmp_path: Path) -> None:
    """Horovod as it is on PyPI takes about 2.7 ms of CPU time in one of the processes, not 0.3."""
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    command = [horovodrun, "--gloo", "-np", "2", "-H", "localhost:2", sys.executable, EVENT_LOOP]
    ended = run_by_hand(tmp_path, {"horovodrun": (command, {})}, deadline=100)["horovodrun"]
    assert ended.code == 0, ended.output
    found = [float(each) for each in re.findall(r"CPU time: (\S+) ms", ended.output)]
    assert len(found) == 2
    assert max(found) < 1.3, ended.output
