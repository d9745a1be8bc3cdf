"""`Position`: the position of a training in its data, which checkpoints store for resuming."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# As in the checkpoints of earlier releases, in which each replica had one batch per update.
_BATCHES_KEY = "replicas"


@dataclass(frozen=True)
class Position:
    """The position of a training in its data.

    Attributes:
      epoch: the number of completed epochs.
      steps: for each shard of the data, the number of steps that its reader has made in the next
        epoch; empty between two epochs.
      batches_per_update: the number of per-replica batches in an update of the weights when the
        position was saved; 0 if unknown. `steps` is only valid for the same number.
      hyperparameters: what the script sets, by name, where the checkpoint has the value of the
        training; callbacks may have changed it since.
      callbacks: what the training has changed in the user's callbacks; see
        `training.callback_states`.
    """

    epoch: int = 0
    steps: tuple[int, ...] = ()
    batches_per_update: int = 0
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    callbacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def fits(self, batches_per_update: int, shards: int) -> bool:
        """Whether a training can go on from it.

        Args:
          batches_per_update: of the training.
          shards: the number of its readers.
        """
        own = self.batches_per_update, len(self.steps)
        return not self.steps or own == (batches_per_update, shards)

    def described(self) -> str:
        """What `fits` compares, in words."""
        batches, shards = self.batches_per_update, len(self.steps)
        return f"{batches} batches per update and {shards} shards of the data"

    def to_json(self) -> str:
        content = asdict(self)
        content[_BATCHES_KEY] = content.pop("batches_per_update")
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str | bytes) -> Position:
        """Parses the result of `to_json`; ignores the keys of other tfdist versions."""
        read = json.loads(text)
        return cls(
            epoch=read.get("epoch", 0),
            steps=tuple(read.get("steps", ())),
            batches_per_update=read.get(_BATCHES_KEY, 0),
            hyperparameters=read.get("hyperparameters", {}),
            callbacks=read.get("callbacks", {}),
        )
