"""The contract of a strategy for this package's callbacks; `base` has that for training scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import tensorflow as tf

from tfdist import versions
from tfdist.checkpoints import Position
from tfdist.errors import UsageError
from tfdist.strategies.redealt import Rest


class CallbackContract:
    """The part of a `Job` that `tfdist.callbacks` and `tfdist.resume` ask."""

    name: ClassVar[str]

    def check(self, model: tf.keras.Model) -> None:
        """Checks that this strategy trains such a model, with its optimizer; before it does.

        Raises:
          UsageError: it cannot.
        """
        versions.check_fit(self.name, model, tf.__version__)
        versions.check_same_keras(model, model.optimizer)
        _, trainers = self.trainers
        if len(trainers) > 1 and getattr(model, "autotune_steps_per_execution", False):
            raise UsageError(
                "steps_per_execution",
                received="auto",
                accepted=f"a number, where {len(trainers)} tasks train together",
                remedy="Give model.compile one: each task would choose its own, and they save and "
                "leave after equally many steps.",
            )

    @property
    def trainers(self) -> tuple[str, tuple[str, ...]]:
        """This task's name, and those of all that train step by step with it."""
        raise NotImplementedError

    def engine_callbacks(self) -> list[tf.keras.callbacks.Callback]:
        """The callbacks that the engine itself needs; they come before all others."""
        return []

    @property
    def sees_steps(self) -> bool:
        """Whether Keras's callbacks see each step, which is then the same for all tasks."""
        return True

    def step_of_epoch(self, steps: Sequence[int]) -> int:
        """The step that Keras counts, from the steps that each shard's reader has made."""
        return steps[0] if steps else 0

    def before_steps(self, call: Callable[[Callable[[], Sequence[int]]], None]) -> None:
        """Lets `call` be called before each step of training, where Keras's callbacks are not.

        It is given what says how many steps each shard's reader has made in this epoch.
        """

    def start_equal(self, model: tf.keras.Model, position: Position) -> Position:
        """Makes every task that trains start from the same state; collective over them.

        Called in every task before the first epoch.

        Args:
          model: the model, as this task has restored it.
          position: where to start, as this task has read it.

        Returns:
          Where to start, the same in every task.

        Raises:
          RuntimeError: the tasks found different checkpoints, so they do not share a directory.
        """
        return position

    def state(self, model: tf.keras.Model) -> dict[str, Any]:
        """What is to be in a checkpoint beside the built `model` and its optimizer, by name."""
        return {}

    def make_equal(self) -> None:
        """Makes the weights equal over the tasks, where they are not after each step; collective.

        Called in every task that trains before a checkpoint is saved.
        """

    def saving(self, model: tf.keras.Model) -> AbstractContextManager[None]:
        """What a checkpoint of the model and its export are made within, by each task that saves.

        Collective over these tasks. The variables must not change within it.
        """
        return nullcontext()

    def await_chief(self) -> None:
        """Returns when the chief has saved what it had to; collective where it saves for others.

        Else those that have less to do would end, and their end would count against the chief.
        """

    def rest_of_epoch(
        self, model: tf.keras.Model, position: Position, usual_steps: int | None
    ) -> Rest | None:
        """This task's part in what is left of an epoch that was dealt out otherwise before.

        Called in every task that trains; collective over them.

        Args:
          model: the model that is trained.
          position: where the training stands, with the earlier parts of the epoch.
          usual_steps: the steps that Keras takes an epoch to have; None if unknown.

        Returns:
          None where it cannot be told: the epoch must begin anew.
        """
        return None
