"""Runs programs that download data, with a home directory of their own and without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT

_CLOSED_PORT = "http://127.0.0.1:9"


def environment(home: Path) -> dict[str, str]:
    """The environment in which Keras has its files in `home/.keras`, and no download works."""
    proxies = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy")
    return {
        "HOME": str(home),
        "KERAS_HOME": str(home / ".keras"),
        **dict.fromkeys(proxies, _CLOSED_PORT),
        "NO_PROXY": "",
        "no_proxy": "",
    }


def run(code: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the program `code` where the home directory is `home`."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={
            **os.environ,
            **environment(home),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
