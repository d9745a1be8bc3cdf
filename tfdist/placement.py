"""The name of `tfdist.stage` in earlier releases; will be removed in the next one."""

from __future__ import annotations

from tfdist.errors import log
from tfdist.stage_scope import stage

__all__ = ["stage"]

log("warning: tfdist.placement.stage will be removed in the next release; use tfdist.stage")
