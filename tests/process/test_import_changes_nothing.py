"""Importing a module of tfdist changes no class and no function of another library."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

pytestmark = [pytest.mark.stacks("2.15", "tf_keras", "newest"), pytest.mark.timeout(200)]

SCRIPT = """
import importlib, json, pkgutil, sys
import tfdist
import tensorflow as tf

OWNERS = ("tensorflow", "keras", "tf_keras", "tensorflow_estimator", "horovod")
NONE = object()

for lazy in ("keras", "estimator", "compat.v1.train"):
    place = tf
    for name in lazy.split("."):
        place = getattr(place, name, None)
    dir(place)

def snapshot():
    held = {}
    for name, module in list(sys.modules.items()):
        if module is None or name.split(".")[0] not in OWNERS:
            continue
        for key, value in list(vars(module).items()):
            if key.startswith("__"):
                continue
            if callable(value):
                held[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__.split(".")[0] in OWNERS:
                for attribute, member in list(vars(value).items()):
                    if callable(member) or isinstance(member, (property, staticmethod)):
                        held[f"{name}.{key}.{attribute}"] = member
    return held

before = snapshot()
imported, skipped = [], []
for module in pkgutil.walk_packages(tfdist.__path__, "tfdist."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
        imported.append(module.name)
    except ImportError as error:
        skipped.append(module.name)
after = snapshot()
changed = [name for name, value in before.items() if after.get(name, NONE) is not value]
mine = [name for name, value in after.items()
        if (getattr(value, "__module__", None) or "").split(".")[0] == "tfdist"]
print(json.dumps({"imported": imported, "skipped": skipped, "changed": changed, "mine": mine,
                  "held": len(before)}))
"""


def test_importing_tfdist_changes_no_other_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["held"] > 10_000
    assert len(found["imported"]) > 70
    # Only modules for Estimators, Horovod or the other Keras may fail to import.
    needs = ("tfdist.estimator", "tfdist.strategies.", "tfdist.upstream")
    assert all(name.startswith(needs) for name in found["skipped"]), found["skipped"]
    assert found["changed"] == []
    # Until TensorFlow is used first; it tells which line that was.
    recorder = "tensorflow.python.eager.context.Context.ensure_initialized"
    assert {*found["mine"]} <= {recorder}
