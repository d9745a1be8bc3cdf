"""Modules that AutoGraph has left behind are removed once no process can own them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfdist.tools.launch import leftovers
from tfdist.tools.launch.leftovers import remove_generated_modules

pytestmark = pytest.mark.stacks("newest")

TASK = """
import time
import tensorflow as tf

@tf.function
def function(x):
    if x > 0:
        return x
    return -x

function(tf.constant(1))
print("ready", flush=True)
time.sleep(100)
"""


def test_what_a_killed_task_has_left_is_removed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TASK)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, env=environ, text=True
    ) as task:
        assert task.stdout is not None and task.stdout.readline() == "ready\n"
        left = list(temporary.rglob("__autograph_generated_file*"))
        assert left
        assert any(0 <= time.time() - begun < 600 for begun in leftovers._starts_of_tensorflow())
        os.kill(task.pid, signal.SIGKILL)
    others = temporary / "other.py"
    others.touch()
    # While this process runs TensorFlow, which is older, the files could be its own.
    import tensorflow as tf

    assert tf.__version__
    remove_generated_modules(temporary)
    assert all(path.exists() for path in left)
    for path in left:
        os.utime(path, (1e9, 1e9))
    remove_generated_modules(temporary)
    assert not any(path.exists() for path in left)
    assert others.exists()


def test_the_files_of_others_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "__autograph_generated_file1.py"
    file.touch()
    os.utime(file, (1e9, 1e9))
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    remove_generated_modules(tmp_path)
    assert file.exists()
