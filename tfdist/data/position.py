"""`Position`: the position of a training in its data, which checkpoints store for resuming."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Position:
    """The position of a training in its data.

    Attributes:
      epoch: the number of completed epochs.
      steps: for each shard of the data, the number of steps that its reader has made in the next
        epoch; empty between two epochs.
      replicas: the number of replicas when the position was saved; 0 if unknown. `steps` is only
        valid for the same number of replicas.
    """

    epoch: int = 0
    steps: tuple[int, ...] = ()
    replicas: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """Parses the result of `to_json`; ignores the keys of other tfdist versions."""
        read = json.loads(text)
        return cls(
            epoch=read.get("epoch", 0),
            steps=tuple(read.get("steps", ())),
            replicas=read.get("replicas", 0),
        )
