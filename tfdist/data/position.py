"""Where a training stands in its data: what a checkpoint must say so that a job can resume."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Position:
    """Where a training stands.

    Attributes:
      epoch: the number of completed epochs.
      steps: for each shard of the data, the steps that its reader has made in the next epoch;
        empty between two epochs.
      replicas: the number of replicas when the position was saved; 0 if unknown. Steps are
        meaningless for another number of replicas.
    """

    epoch: int = 0
    steps: tuple[int, ...] = ()
    replicas: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """Reads what `to_json` wrote; keys of other versions of tfdist are ignored."""
        read = json.loads(text)
        return cls(
            epoch=read.get("epoch", 0),
            steps=tuple(read.get("steps", ())),
            replicas=read.get("replicas", 0),
        )
