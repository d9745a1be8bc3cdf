"""`tfdist horovod build`: compiles Horovod against the installed TensorFlow and installs it."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from tfdist.compat import versions
from tfdist.errors import EXIT_FAILED, EXIT_OK, UsageError, log, os_error_is_usage_error
from tfdist.process import packages
from tfdist.tools.commands.arguments import Commands
from tfdist.upstream import horovod_sources
from tfdist.upstream.horovod_sources import VERSION

_TOOLS = ("cmake", "g++", "make")
# Its setup.py imports distutils, which only an older setuptools brings to Python 3.12 and newer.
_BUILD_PACKAGES = ("setuptools<70", "wheel")
# What Horovod compiles, unless the user's environment says `HOROVOD_WITH_…` or `HOROVOD_WITHOUT_…`.
_PARTS = {"TENSORFLOW": True, "GLOO": True, "MPI": False, "PYTORCH": False, "MXNET": False}
_OPTION = re.compile("HOROVOD_(WITH|GPU|NCCL|CUDA|ROCM|CPU_OPERATIONS|BUILD|CMAKE|MPICXX)")


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    horovod = commands.add_parser("horovod", help="compile and install Horovod").add_subparsers(
        metavar="COMMAND", required=True
    )
    build = horovod.add_parser(
        "build",
        help=f"compile Horovod {VERSION} against the installed TensorFlow, and install it",
        description=f"Compiles Horovod {VERSION} with Gloo against the TensorFlow of this Python, "
        "keeps the wheel in $XDG_CACHE_HOME/tfdist (default: ~/.cache/tfdist), and installs it. A "
        "wheel that is already there is installed without compiling. Variables such as "
        "HOROVOD_WITH_MPI=1 or HOROVOD_GPU_OPERATIONS=NCCL are passed on. The build needs "
        f"{', '.join(_TOOLS)} and pip.",
    )
    build.set_defaults(run=_build)
    build.examples = (
        "tfdist horovod build",
        "HOROVOD_GPU_OPERATIONS=NCCL tfdist horovod build",
    )


def _build(arguments: argparse.Namespace) -> int:
    tensorflow = _tensorflow()
    options = {name: value for name, value in os.environ.items() if _OPTION.match(name)}
    against = f"TensorFlow {tensorflow} and Python {platform.python_version()}"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(cache, "tfdist", _name(tensorflow, options))
    wheel = next(directory.glob("horovod-*.whl"), None)
    try:
        if wheel is None:
            _check_tools()
            accepted = "a directory that this process can write, with 1 GB of space"
            with os_error_is_usage_error("XDG_CACHE_HOME", cache, accepted):
                directory.mkdir(parents=True, exist_ok=True)
                building = tempfile.TemporaryDirectory(dir=directory, prefix="building-")
            print(f"Building Horovod {VERSION} against {against}.", flush=True)
            print("This takes about 5 minutes on two cores, once.", flush=True)
            with building as temporary:
                built = _compile(Path(temporary), tensorflow, options)
                wheel = built.replace(directory / built.name)
        print(f"Installing {wheel}, built against {against}.", flush=True)
        # Force the installation, because the same version may be installed without the patch.
        _pip("install", "--force-reinstall", "--no-deps", str(wheel))
        _pip("install", str(wheel))
    except subprocess.CalledProcessError as error:
        log(f"error: {' '.join(map(str, error.cmd[3:5]))} failed; its output is above.")
        return EXIT_FAILED
    return EXIT_OK


def _tensorflow() -> str:
    """The version of the installed TensorFlow, which Horovod must support."""
    found = packages.installed().get("tensorflow")
    if found is None or not versions.is_tested(found):
        raise UsageError(
            "tensorflow",
            received=found,
            accepted=f"2.15.1 to 2.21, against which Horovod {VERSION} compiles",
            remedy="Install 'tensorflow==2.21.*'.",
        )
    return found


def _check_tools() -> None:
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            raise UsageError(
                tool,
                received=None,
                accepted="a program on PATH, to compile Horovod",
                remedy=f"Install it. Debian: apt-get install {' '.join(_TOOLS)}.",
            )


def _name(tensorflow: str, options: Mapping[str, str]) -> str:
    """The directory of the wheel for this TensorFlow, Python, machine and build options."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    built = f"horovod-{VERSION}-{horovod_sources.REVISION}"
    name = f"{built}-tf{tensorflow}-{python}-{platform.machine()}"
    return f"{name}-{zlib.crc32(repr(sorted(options.items())).encode()):08x}" if options else name


def _compile(directory: Path, tensorflow: str, options: Mapping[str, str]) -> Path:
    """Downloads, patches and compiles Horovod in `directory`; returns the wheel.

    Its setup.py imports TensorFlow, so pip must not isolate the build. The tools of the build are
    in a directory of their own: the user's environment keeps its setuptools.
    """
    tools = directory / "tools"
    _pip("install", "--target", str(tools), *_BUILD_PACKAGES)
    environ = {**os.environ, "PYTHONPATH": f"{tools}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    for part, is_built in _PARTS.items():
        if not {f"HOROVOD_WITH_{part}", f"HOROVOD_WITHOUT_{part}"} & set(options):
            environ[f"HOROVOD_WITH{'' if is_built else 'OUT'}_{part}"] = "1"
    own = ("--no-build-isolation", "--no-deps")
    requirement = f"horovod=={VERSION}"
    _pip("download", *own, "--no-binary=:all:", f"--dest={directory}", requirement, environ=environ)
    source = directory / f"horovod-{VERSION}"
    with tarfile.open(f"{source}.tar.gz") as archive:
        # Python 3.11.2, which Debian 12 has, does not know the argument `filter`.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory)
    horovod_sources.apply(source, versions.version_of(tensorflow))
    _pip("wheel", *own, f"--wheel-dir={directory}", str(source), environ=environ)
    return next(directory.glob("horovod-*.whl"))


def _pip(command: str, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run(
        # -P: do not import from the current directory.
        [sys.executable, "-P", "-m", "pip", command, *quiet, *arguments],
        check=True,
        env=environ,
    )
