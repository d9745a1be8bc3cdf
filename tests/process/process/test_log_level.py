"""What TensorFlow's C++ code prints: a package with its messages stands for TensorFlow."""

from __future__ import annotations

import logging as standard_logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from absl import flags, logging

from tests.conftest import TinyTraining
from tests.support.processes import ROOT
from tfdist.process import gpus, log_level
from tfdist.process.message_filter import is_hidden

pytestmark = pytest.mark.stacks("2.15", "newest")

TSL = "2026-01-31 23:59:59.012345: "
ABSEIL = "0000 00:00:1795568800.728317   18213 "
UNINITIALIZED = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
)

USES_DEVICES = """
import tensorflow
from absl import app

app.call_after_init(tensorflow.config.list_physical_devices)
app.run(lambda _: None)
"""
FAKE = """
import os, subprocess, sys, types

unlisted = [each for each in [{devices!r}] if each]
config = types.SimpleNamespace(
    list_physical_devices=lambda: unlisted and os.write(2, unlisted.pop())
)
for message in {messages!r}:
    os.write(2, message)
{rest}
"""


def run(
    directory: Path,
    *messages: str,
    rest: str = "",
    script: str = USES_DEVICES,
    devices: str = "",
    level: str | None = None,
    arguments: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs a script that imports tfdist, and a `tensorflow` that writes these messages."""
    package = directory / "tensorflow"
    package.mkdir()
    written = [message.encode() for message in messages]
    text = FAKE.format(messages=written, rest=rest, devices=devices.encode())
    (package / "__init__.py").write_text(text)
    environ = {"PYTHONPATH": f"{directory}:{ROOT}", "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(
        [sys.executable, "-c", f"import os, sys, tfdist\n{script}", *arguments],
        env=environ if level is None else {**environ, log_level.VARIABLE: level},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ("", "2"),
        ("--steps=5 --output_dir out", "2"),
        ("--verbosity=-1", "1"),
        ("--verbosity -1", "1"),
        ("-verbosity=0", "0"),
        ("-v=1", "0"),
        ("--v 2", "0"),
        ("--verbosity=-2", "2"),
        ("--verbosity=-3", "3"),
        ("--verbosity=1 --verbosity=-1", "1"),
        ("--verbosity=high", "2"),
        ("--verbosity", "2"),
        ("-v tests", "2"),
        ("-- --verbosity=1", "2"),
    ],
)
def test_verbosity_selects_the_severities(arguments: str, level: str) -> None:
    assert log_level.of(arguments.split()) == level


@pytest.mark.parametrize(
    ("message", "hidden_from"),
    [
        (f"{TSL}I tensorflow/core/util/port.cc:113] oneDNN is on.\n", 1),
        (f"I{ABSEIL}port.cc:153] oneDNN is on.\n", 1),
        (f"I{ABSEIL}eager_service_impl.cc:356] SessionOptions: device_count {{\n  1\n}}\n", 1),
        (f"{TSL}W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning\n", 2),
        (f"W{ABSEIL}local_rendezvous.cc:412] Local rendezvous is aborting\n", 2),
        (f"{TSL}E tensorflow/core/framework/op.cc:1] no such file\n", 3),
        (f"E{ABSEIL}op.cc:1] no such file\n", 3),
        ("E0131 23:59:59.012345   18213 op.cc:1] no such file\n", 3),
        (f"E{ABSEIL}cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting\n", 1),
        (f"{TSL}E a/cuda_fft.cc:607] Unable to register cuFFT factory: Attempting\n", 1),
        (f"E{ABSEIL}cuda_platform.cc:52] failed call to cuInit: INTERNAL: UNKNOWN (303)\n", 1),
        (f"{TSL}E a/b.cc:9] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no device\n", 1),
        (f"{TSL}E a/b.cc:9] failed call to cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\n", 3),
        (f"F{ABSEIL}parse_flags_from_env.cc:234] Unknown flag in TF_XLA_FLAGS\n", 4),
        (UNINITIALIZED, 1),
        ("WARNING: all tasks restart\n", 9),
        ("I0 is the modified Bessel function\n", 9),
        ("loss 0.5\r", 9),
    ],
)
def test_a_message_below_the_level_is_hidden(message: str, hidden_from: int) -> None:
    hidden = [level for level in range(1, 9) if is_hidden(message.encode(), level)]
    assert hidden == list(range(hidden_from, 9))


INFORMATION = f"I{ABSEIL}a.cc:1] These options: {{\n  two\n}}\n"
WARNING = f"{TSL}W a/b.cc:2] a warning\n"
ERROR = f"{TSL}E a/b.cc:3] an error\n"
FACTORY = f"{TSL}E a/cuda_blas.cc:1515] Unable to register cuBLAS factory: Attempting\n"
DRIVER = f"E{ABSEIL}c.cc:4] failed call to cuInit: INTERNAL: UNKNOWN ERROR (303)\n"
ALL = (UNINITIALIZED, INFORMATION, ERROR, WARNING, FACTORY)


def test_the_import_of_tensorflow_shows_only_errors(tmp_path: Path) -> None:
    script = "import importlib.util; importlib.util.find_spec('tensorflow'); import tensorflow"
    ended = run(tmp_path, *ALL, script=f"{script}; os.write(2, b'I see\\n')")
    assert (ended.returncode, ended.stderr) == (0, f"{ERROR}I see\n")


@pytest.mark.parametrize(
    "script",
    [
        USES_DEVICES,
        # TensorFlow then lists its devices while it is imported.
        "from absl import app; app.run(lambda _: __import__('tensorflow') and None)",
        "import tensorflow; tensorflow.config.list_physical_devices()",
    ],
    ids=["absl", "in main", "without absl"],
)
def test_a_missing_driver_is_no_error(tmp_path: Path, script: str) -> None:
    rest = "from absl import app; app.call_after_init(config.list_physical_devices)"
    ended = run(tmp_path, rest=rest, devices=DRIVER, script=script)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("level", "arguments", "shown"),
    [
        (None, ("--verbosity=1",), "".join([*ALL, DRIVER])),
        (None, ("--verbosity=-1",), ERROR + WARNING),
        ("0", (), "".join([*ALL, DRIVER])),
        ("1", (), ERROR + WARNING),
        ("3", ("--verbosity=1",), ""),
        ("", (), "".join([*ALL, DRIVER])),
        ("what", (), "".join([*ALL, DRIVER])),
    ],
    ids=["debug", "warning", "0", "1", "3", "empty", "wrong"],
)
def test_the_user_selects_what_the_import_shows(
    tmp_path: Path, level: str | None, arguments: tuple[str, ...], shown: str
) -> None:
    ended = run(tmp_path, *ALL, devices=DRIVER, level=level, arguments=arguments)
    assert (ended.returncode, ended.stderr) == (0, shown)


def test_a_crash_during_the_import_loses_no_message(tmp_path: Path) -> None:
    ended = run(tmp_path, *ALL, rest="os.abort()")
    assert (ended.returncode, ended.stderr) == (-6, ERROR)


def test_a_failed_import_shows_its_messages_before_the_traceback(tmp_path: Path) -> None:
    script = """
for name in ("tensorflow", "tensorflow.keras"):
    try:
        __import__(name)
    except OSError as error:
        os.write(2, f"{error}\\n".encode())
"""
    ended = run(tmp_path, INFORMATION, ERROR, rest="raise OSError('no library')", script=script)
    assert (ended.returncode, ended.stderr) == (0, f"{ERROR}no library\n" * 2)


def test_a_process_that_outlives_the_import_keeps_its_stderr(tmp_path: Path) -> None:
    rest = "subprocess.Popen('read _; echo late >&2', shell=True, stdin=subprocess.PIPE)"
    ended = run(tmp_path, INFORMATION, rest=f"child = {rest}")
    assert (ended.returncode, ended.stderr) == (0, "late\n")


def test_without_stderr_tensorflow_is_imported(tmp_path: Path) -> None:
    script = "os.close(2); import tensorflow; print(tensorflow.__name__)"
    ended = run(tmp_path, script=script)
    assert (ended.returncode, ended.stdout) == (0, "tensorflow\n")


@pytest.mark.parametrize(
    ("given", "verbosity", "level"),
    [
        (True, logging.INFO, "INFO"),
        (True, logging.DEBUG, "DEBUG"),
        (False, logging.ERROR, "ERROR"),
        # `absl.app` sets 0 if the flag is not given.
        (False, logging.INFO, "WARNING"),
    ],
)
def test_verbosity_selects_what_tensorflow_logs_in_python(
    monkeypatch: pytest.MonkeyPatch, tiny: TinyTraining, given: bool, verbosity: int, level: str
) -> None:
    import tensorflow as tf

    flag = flags.FLAGS["verbosity"]
    monkeypatch.setattr(flag, "value", verbosity)
    monkeypatch.setattr(flag, "present", int(given))
    with warnings.catch_warnings(record=True) as shown:
        tiny.job()
        warnings.warn("`shuffle=True` was passed, but will be ignored since …", stacklevel=1)
        warnings.warn("To make it possible to preserve tf.data options across …", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    assert tf.get_logger().getEffectiveLevel() == getattr(standard_logging, level)
    assert logging.get_verbosity() == logging.converter.standard_to_absl(tf.get_logger().level)
    assert [str(warning.message) for warning in shown] == ["something else"]


@pytest.mark.parametrize(
    ("files", "visible", "exist", "may_be_used"),
    [
        (["nvidia0", "nvidiactl"], None, True, True),
        (["nvidia0", "nvidiactl"], "1", True, True),
        (["nvidia0"], "-1", True, False),
        (["nvidia0"], "", True, False),
        (["nvidiactl"], None, False, False),
        (["dxg"], None, False, True),
        ([], None, False, False),
    ],
)
def test_gpus_are_found_by_their_device_files(
    tmp_path: Path, files: list[str], visible: str | None, exist: bool, may_be_used: bool
) -> None:
    for file in files:
        (tmp_path / file).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpus.exist(tmp_path) is exist
    assert gpus.may_be_used(environ, tmp_path) is may_be_used
