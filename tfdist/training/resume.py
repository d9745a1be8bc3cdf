"""Goes on where a training stood, saves on the way, and leaves when it is told to.

    model.fit(…, callbacks=[…, resume(job, OutputDirectory("/shared/run1"), keep=5)])

Where a training stands is a `checkpointer.Position`: also in mid-epoch, so that a job that goes on
neither repeats nor skips an example. Under Horovod this holds for a job of another number of ranks,
too, where the dataset function goes by its context alone and its shuffles have seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from absl import logging

from tfdist.checkpoints import checkpointer, export, output_directory
from tfdist.checkpoints.checkpointer import Position
from tfdist.checkpoints.output_directory import OutputDirectory
from tfdist.compat import keras as keras_compat
from tfdist.compat import stacks
from tfdist.compat.train_functions import AfterPassingOver, after_building_metrics
from tfdist.coordination.preemption import EXIT_PREEMPTED
from tfdist.errors import log

if TYPE_CHECKING:
    from tfdist.strategies.base import Job
    from tfdist.strategies.redealt import Rest

Logs = dict[str, Any]


def resume(
    job: Job, output: OutputDirectory, *, keep: int, save_steps: int | None = None
) -> Resume:
    """The callback for this job; the arguments are those of `Job.callbacks`."""
    kind = ResumeByStep if job.sees_steps else Resume
    return kind(job, output, keep=keep, save_steps=save_steps)


class Resume(tf.keras.callbacks.Callback):
    """Goes on from the newest checkpoint, saves one after each epoch and the model at the end.

    Where Keras does not see the steps, the job calls before each of them.
    """

    def __init__(
        self, job: Job, output: OutputDirectory, *, keep: int, save_steps: int | None
    ) -> None:
        super().__init__()
        # The logs of a step are not looked at, so that nothing waits for them.
        self._supports_tf_logs = True
        self._job = job
        self._output = output
        self._keep = keep
        self._save_steps = save_steps
        self._finished = 0
        self._has_trained = False
        self._steps = 0
        self._saved = 0
        self._earlier: tuple[tuple[int, int], ...] = ()
        self._rest: Rest | None = None
        # The steps of the first epoch that only seem to be made, because Keras 3 begins with 0.
        self._passed_over = 0
        self._leaving = ExitStack()

    def set_model(self, model: tf.keras.Model) -> None:
        stacks.check_is_of_tf_keras(model, tf.keras.Model)
        super().set_model(model)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._job.check(self.model)
        if self._job.is_chief:
            output_directory.remove_leftovers(self._output.path)
            output_directory.remove_leftovers(self._output.checkpoints)
        checkpointer.build(self.model, self._job.element_spec)
        self._checkpointer = checkpointer.Checkpointer(
            self.model,
            self._output.checkpoints,
            writes=self._job.is_chief,
            keep=self._keep,
            io_device=self._job.io_device,
            state=self._job.state(self.model),
        )
        epochs = self.params["epochs"]
        self._finished = self._checkpointer.restore()
        position = self._checkpointer.position
        if checkpointer.is_complete(self._output, self._finished, epochs):
            position = Position(epochs)
        # Agreed on by all tasks, because one that trains without the others waits for ever.
        position = self._job.start_equal(self.model, position)
        self._scale_learning_rate(position.replicas)
        start = self._within_epoch(position)
        step = self._step(start.steps)
        if start.epoch >= epochs:
            self._say(f"training is complete after {self._finished} epochs")
        elif start.is_within_epoch:
            is_anew = start.earlier and not start.steps
            dealt = f", dealt out anew to {_replicas(self._job.num_replicas)}," if is_anew else ""
            self._say(f"going on after step {step} of epoch {start.epoch + 1} of {epochs}{dealt}")
        elif start.epoch:
            self._say(f"going on after epoch {start.epoch} of {epochs}")
        if not keras_compat.is_keras_3(self.model):
            self.model.train_function = after_building_metrics(self.model)
        if start.epoch < epochs:
            if self._job.is_chief:
                self._output.done.unlink(missing_ok=True)
            self._go_on(start)
        self._saved = self._updates()
        keras_compat.set_start(self.model, start.epoch, step)
        self._leaving.enter_context(
            self._job.preemption.watched(*self._job.trainers, self._job.board)
        )
        self._job.before_steps(self._before_step)
        # Keras's last callback. What the others leave is exported, such as the best weights.
        self.model.history.on_train_end = self._end

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._finished = epoch

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._finished, self._earlier, self._rest, self._passed_over = epoch + 1, (), None, 0
        self._has_trained = True
        self._save()

    def _end(self, logs: Logs | None = None) -> None:
        epochs = self.params["epochs"]
        self._leaving.close()
        keras_compat.forget_start(self.model)
        if self._job.saves and (self._has_trained or not self._output.saved_model.exists()):
            with self._job.saving(self.model):
                export.export(
                    self.model,
                    self._output,
                    writes=self._job.is_chief,
                    io_device=self._job.io_device,
                )
        if not self._has_trained or self._finished >= epochs or self.model.stop_training:
            if self._job.is_chief:
                checkpointer.mark_done(self._output, self._finished, epochs)
        else:
            self._say(f"fit ended early, after epoch {self._finished} of {epochs}")

    def _before_step(self, steps: Callable[[], Sequence[int]]) -> None:
        if self._job.preemption.leaves():
            self._leave(steps())
        if self._save_steps and self._steps and self._steps % self._save_steps == 0:
            self._save(steps())
        self._steps += 1

    def _within_epoch(self, position: Position) -> Position:
        """`position` as this job can take it up; collective over the tasks that train."""
        if not position.is_within_epoch:
            return position
        dealt = (position.replicas, len(position.steps))
        is_same = dealt == (self._job.num_replicas, self._job.num_input_pipelines)
        start = position if is_same else position.dealt_anew()
        if start is not None and start.earlier:
            self._rest = self._job.rest_of_epoch(self.model, start, self.params["steps"])
        if start is None or (start.earlier and self._rest is None):
            if self._job.is_chief:
                logging.warning(
                    "The checkpoint is of a job with %d replicas and %d shards of the data: epoch "
                    "%d begins anew with all of its data.",
                    *dealt,
                    position.epoch + 1,
                )
            return Position(position.epoch)
        step = self._step(start.steps)
        if self._job.sees_steps and step >= (self.params["steps"] or self._job.count_steps()):
            self._rest = None
            return Position(position.epoch + 1)
        self._earlier = start.earlier
        return start

    def _go_on(self, start: Position) -> None:
        # A dataset without end begins anew: to find the place in it may take as long as training.
        if not self._job.is_infinite:
            self._job.go_on(self.model, start.epoch, () if self._rest else start.steps)
        if self._rest is not None:
            self._rest.train(self.model, self._job.step_of_epoch(start.steps))
        step = self._step(start.steps)
        if step and self._job.sees_steps and keras_compat.is_keras_3(self.model):
            self._passed_over = step
            executions = step // self.model.steps_per_execution
            self.model.train_function = AfterPassingOver(self.model, executions)

    def _step(self, steps: Sequence[int]) -> int:
        """Keras's number of the step before which the shards' readers have made so many."""
        made = self._job.step_of_epoch(steps)
        return self._rest.step(made) if self._rest is not None else made

    def _scale_learning_rate(self, replicas: int) -> None:
        """Puts right the checkpoint's learning rate, which was scaled for so many replicas."""
        rate = keras_compat.learning_rate_variable(self.model.optimizer)
        own = self._job.num_replicas
        scales = self._job.scales_learning_rate and replicas not in (0, own)
        if scales and rate is not None:
            rate.assign(rate * own / replicas)
            if self._job.is_chief:
                log(
                    f"the checkpoint is of {_replicas(replicas)}, the learning rate is "
                    f"{rate.numpy():g} for {_replicas(own)}"
                )

    def _save(self, steps: Sequence[int] = ()) -> None:
        self._job.make_equal()
        updates = self._updates()
        # What the end of an epoch has saved is not saved again before the next one's first step.
        if self._job.saves and (updates != self._saved or not steps):
            position = Position(self._finished, tuple(steps), self._job.num_replicas, self._earlier)
            with self._job.saving(self.model):
                if self._job.is_chief:
                    self._checkpointer.save(position, number=updates)
            self._saved = updates

    def _leave(self, steps: Sequence[int]) -> None:
        self._save(steps)
        self._job.await_chief()
        if self._job.is_chief:
            log(
                f"saved after step {self._step(steps)} of epoch "
                f"{self._finished + 1}, leaving with exit code {EXIT_PREEMPTED}"
            )
        sys.exit(EXIT_PREEMPTED)

    def _updates(self) -> int:
        return int(self.model.optimizer.iterations.numpy())

    def _say(self, text: str) -> None:
        if self._job.is_chief:
            log(f"{text} and {self._updates()} steps in {self._output.path}")


class ResumeByStep(Resume):
    """`Resume` where Keras sees each step."""

    # The first step of what Keras executes at a time.
    _begun = 0

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        self._begun = batch
        if not self._job.preemption.begin_step():
            self._leave(self._everywhere(max(batch, self._passed_over)))

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        done = keras_compat.last_step(self.model, batch, self.params["steps"]) + 1
        if done <= self._passed_over or done == self.params["steps"]:
            return  # The end of the epoch saves.
        # Where this may be the epoch's last step, tasks could leave on either side of its end.
        if self.params["steps"] is not None and self._job.preemption.leaves():
            self._leave(self._everywhere(done))
        if self._save_steps and done // self._save_steps > self._begun // self._save_steps:
            self._save(self._everywhere(done))

    def _everywhere(self, step: int) -> list[int]:
        """The steps that each shard's reader has made before Keras's step of that number."""
        made = self._rest.batches(step) if self._rest is not None else step
        return [made] * self._job.num_input_pipelines


def _replicas(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"
