"""Runs programs that use tensorflow-datasets, in their own directory and without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT

_CLOSED_PORT = "http://127.0.0.1:9"


def environment(directory: Path) -> dict[str, str]:
    """The environment in which prepared datasets are in `directory`, and no download works."""
    proxies = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy")
    return {
        "TFDS_DATA_DIR": str(directory),
        **dict.fromkeys(proxies, _CLOSED_PORT),
        "NO_PROXY": "",
        "no_proxy": "",
    }


def run(code: str, directory: Path, argument: Path) -> subprocess.CompletedProcess[str]:
    """Runs the program `code`, with one argument, where prepared datasets are in `directory`."""
    return subprocess.run(
        [sys.executable, "-c", code, str(argument)],
        env={
            **os.environ,
            **environment(directory),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
