"""Resumes a training, saves its checkpoints, and stops it in all tasks after the same step.

    model.fit(…, callbacks=[…, Resume(state, OutputDirectory("/shared/run1"), keep=5)])

A checkpoint contains a `Position`, which can be within an epoch, so a resumed job neither repeats
nor skips an example. A job that resumes with a different number of replicas or shards repeats the
current epoch, with a warning.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat import replaced, versions
from tfdist.compat.train_functions import AfterSkippedSteps
from tfdist.coordination.agreement import SHARE_DIRECTORY
from tfdist.coordination.liveness import activity
from tfdist.data.position import Position
from tfdist.errors import EXIT_PREEMPTED, log
from tfdist.process import thread_stacks
from tfdist.storage import checkpointer, export, io_device, lock, output_directory
from tfdist.storage import files as checkpoint_files
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training import (
    data_checks,
    declarations,
    dynamic_tables,
    history,
    resumed_hyperparameters,
)
from tfdist.training.callback_states import CallbackStates
from tfdist.training.exports import Exports
from tfdist.training.final_weights import FinalWeights
from tfdist.training.records import events
from tfdist.training.state import TrainingState
from tfdist.training.steps import Logs, StepFollower
from tfdist.training.summaries import facts_of
from tfdist.upstream import keras_initial_epoch


class Resume(StepFollower):
    """Resumes from the newest checkpoint, saves one after each epoch, and exports the model.

    The arguments are those of `Job.callbacks`.
    """

    def __init__(
        self, state: TrainingState, output: OutputDirectory, *, keep: int, save_steps: int | None
    ) -> None:
        super().__init__(state, output)
        self._strategy = state.strategy
        self._agreement = state.strategy.agreement
        self._checkpointing = state.strategy.checkpointing
        self._cursor = state.strategy.cursor
        self._topology = state.strategy.topology
        self._keep = keep
        self._save_steps = save_steps
        self._finished = self._earlier_epochs = 0
        # The first of the steps that Keras executes at once.
        self._first_step = 0
        self._has_trained = self._has_unsaved_epoch = False
        self._steps = 0
        # The number of steps at the last save, divided by `save_steps`.
        self._saved_after = 0
        self._saved = 0
        # The steps of the first epoch that Keras 3, which starts at step 0, skips without training.
        self._skipped = 0
        self._watching, self._fit = ExitStack(), ExitStack()

    def set_model(self, model: tf.keras.Model) -> None:
        versions.check_is_of_tf_keras(model, tf.keras.Model)
        self._fit.close()  # An exception may have ended an earlier one.
        self._fit = replaced.fitting()
        if self._state.role.flags.jit_compile:
            # Keras has not made its train function yet.
            model.jit_compile = True
        super().set_model(model)
        self._follow_all_callbacks()

    def on_train_begin(self, logs: Logs | None = None) -> None:
        self._state.is_saved = True
        if self._state.data is None:
            data_checks.warn_if_not_shared(self._strategy.topology)
        else:
            self._state.data.check_length(self.params["steps"], self.params["epochs"])
        self._state.prepare(self.model)
        # A legacy optimizer of Keras 2 creates these variables when they are first read, which all
        # tasks must do: only the chief waits for no other in `check`.
        keras_compat.hyperparameters(self.model)
        self._agreement.check(
            "fit", lambda: declarations.of_fit(self.model, self.params, self._save_steps)
        )
        self._agreement.inside = "fit"
        if self._checkpointing.all_save:
            self._agreement.check(
                "fit",
                lambda: {f"the lock of {self._output.path}": lock.holder(self._output.lock)},
                remedy=SHARE_DIRECTORY,
            )
        if self._state.is_chief:
            output = self._output
            for directory in (output.path, output.checkpoints, output.final, output.exports):
                checkpoint_files.remove_leftovers(directory)
        device = io_device.choose(
            self._output.checkpoints, self._checkpointing.io_device, self._checkpointing.owners
        )
        # Who writes the checkpoints, the final weights and the exported model.
        self._writer: dict[str, Any] = {"writes": self._state.is_chief, "io_device": device}
        state = self._checkpointing.state(self.model)
        self._checkpointer = checkpointer.Checkpointer(
            self.model, self._output.checkpoints, keep=self._keep, state=state, **self._writer
        )
        self._final = FinalWeights(self.model, self._output.final, state=state, **self._writer)
        variables = keras_compat.hyperparameters(self.model)
        self._hyperparameters = {name: float(each.numpy()) for name, each in variables.items()}
        epochs = self.params["epochs"]
        # The chief may still write the checkpoint of an earlier `fit`.
        self._checkpointing.wait_for_chief()
        self._finished = self._checkpointer.restore()
        self._state.start_counting(self._checkpointer.number)
        position = self._checkpointer.position
        if checkpointer.is_complete(self._output, self._finished, epochs):
            position = Position(epochs)
            self._final.restore()
        # Tasks with different start positions would wait for each other forever.
        position = self._checkpointing.broadcast(self.model, position)
        self._restored = position.callbacks
        if position.epoch < epochs:
            self._hyperparameters = resumed_hyperparameters.settle(
                self._state, variables, self._hyperparameters, position
            )
        start = self._within_epoch(position)
        step = self._cursor.step_of_epoch(start.steps)
        if start.epoch >= epochs:
            fewer = f"nothing to train up to epoch {epochs}: the weights and the history are those"
            told = fewer if self._finished > epochs else "training is complete"
            self._say_after(f"{told} after {self._finished} epochs")
        elif start.steps:
            self._say_after(f"resuming after step {step} of epoch {start.epoch + 1} of {epochs}")
        elif start.epoch:
            self._say_after(f"resuming after epoch {start.epoch} of {epochs}")
        # Of a complete training, these are the epochs of its weights, which may be more.
        self._earlier_epochs = max(start.epoch, self._finished)
        if start.epoch < epochs:
            # The epochs so far may have had other numbers of steps, with other tasks.
            steps, begun = self.params["steps"], self._state.steps - step
            self._state.goal = begun + steps * (epochs - start.epoch) if steps else 0
            if self._state.is_chief:
                self._output.reopen()
                output_directory.cut_json_lines(
                    self._output.metrics, lambda record: record["epoch"] <= start.epoch
                )
                size = self._state.data and self._state.data.feed.batch_size
                known = [each.get("batch_size") for each in events.read(self._output)]
                before = next(filter(None, reversed(known)), size)
                if self._state.steps and size and before != size:
                    log(f"warning: a batch of a replica had {before} examples, now it has {size}")
                facts = {**facts_of(self._state.role), "goal": self._state.goal, "batch_size": size}
                self._log_event(events.START, start.epoch, **facts)
            self._fast_forward(start, step)
        self._saved = self._state.steps
        self._exports = Exports(self._state, self.model, self._output, self._writer)
        keras_initial_epoch.set_start(self.model, (start.epoch, step))
        self._watching.enter_context(
            self._state.preemption.watched(
                self._topology.peer, self._topology.peers, self._strategy.kv_store
            )
        )
        # `history` is Keras's last callback, so the exported model includes the changes of all
        # other callbacks, such as restoring the best weights.
        # With Keras 2, a prediction in a callback gives the model another one for a while.
        self._history = self.model.history
        replaced.replace(self._history, "on_train_end", self._end)
        if len(self._topology.peers) > 1:
            # Any callback or thread may set `stop_training`, by what its own task sees.
            self._asks = False
            replaced.replace(self._history, "on_train_batch_end", self._after_step)

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self._finished = epoch
        self._evict()
        self._state.call_data("on_epoch_begin")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        self._finished, self._skipped = epoch + 1, 0
        self._has_trained = self._has_unsaved_epoch = True
        self._state.call_data("on_epoch_end")

    def _end(self, logs: Logs | None = None) -> None:
        self._state.reporter.activity.enter(activity.EXPORTING)
        epochs = self.params["epochs"]
        self._watching.close()
        self._agreement.inside = ""
        keras_initial_epoch.set_start(self.model, None)
        self._checkpointer.wait()
        is_complete = self._finished >= epochs or self.model.stop_training
        if self._saves and is_complete and self._final.have_changed():
            with self._checkpointing.save_scope(self.model):
                if self._state.is_chief:
                    self._final.save(Position(self._finished), self._state.steps)
                    self._final.wait()
        if self._saves and (self._has_trained or not self._output.has_model):
            with self._checkpointing.save_scope(self.model):
                export.export(self.model, self._output, **self._writer)
        if not self._has_trained or is_complete:
            if self._state.is_chief:
                # It may have been stopped early.
                checkpointer.mark_done(self._output, finished=self._finished, epochs=epochs)
                if self._has_trained:
                    self._log_event(events.COMPLETE, self._finished)
        else:
            self._say_after(f"fit ended early, after epoch {self._finished} of {epochs}")
        history.add_earlier_epochs(self._history, self._output.metrics, epochs=self._earlier_epochs)
        self._checkpointing.finish(self.model)
        self._fit.close()
        self._state.reporter.end_watch()

    def before_request(self, steps: Callable[[], Sequence[int]], count: int) -> None:
        if self._state.preemption.should_stop():
            self._exit(steps())
        if self._save_steps and self._steps // self._save_steps > self._saved_after:
            self._saved_after = self._steps // self._save_steps
            self._save(steps())
            self._evict()
        self._steps += count

    def before_steps(self, batch: int) -> None:
        self._first_step = batch
        if not self._state.preemption.begin_step():
            self._exit(self._of_all_shards(max(batch, self._skipped)))

    def after_steps(self, batch: int, logs: Logs | None) -> None:
        done = keras_compat.last_step(self.model, batch, self.params["steps"]) + 1
        self._cursor.saw_steps(max(0, done - max(self._first_step, self._skipped)))
        if done <= self._skipped or done == self.params["steps"]:
            return  # The end of the epoch saves.
        # Without a known number of steps, this may be the last step, and some tasks could exit
        # before the end of the epoch and others after it.
        if self.params["steps"] is not None and self._state.preemption.should_stop():
            self._exit(self._of_all_shards(done))
        if self._save_steps and done // self._save_steps > self._first_step // self._save_steps:
            self._save(self._of_all_shards(done))
            self._evict()

    def _within_epoch(self, position: Position) -> Position:
        """The position from which this job can resume. Every training task must call it."""
        if not position.fits(self._state.batches_per_update, self._topology.num_shards):
            self._say(
                f"warning: the checkpoint is from a job with {position.described()}. Epoch "
                f"{position.epoch + 1} is repeated from its beginning."
            )
            return Position(position.epoch)
        step = self._cursor.step_of_epoch(position.steps)
        sees = step and self._cursor.sees_steps
        if sees and step >= (self.params["steps"] or self._state.count_steps()):
            return Position(position.epoch + 1)
        return position

    def _fast_forward(self, start: Position, step: int) -> None:
        for _ in range(start.epoch):
            self._state.call_data("on_epoch_end")  # It may shuffle the data.
        data = self._state.data
        if data is not None:
            self._cursor.fast_forward(
                self.model, start.epoch, start.steps, cardinality=data.cardinality
            )
        # Keras 3 begins each epoch at step 0, also where only the number of steps ends it.
        counts = self._cursor.sees_steps or self.params["steps"] is not None
        if step and counts and keras_compat.is_keras_3(self.model):
            self._skipped = step
            executions = step // self.model.steps_per_execution
            self.model.train_function = AfterSkippedSteps(self.model, executions)

    def _save(self, steps: Sequence[int] = (), logs: Logs | None = None) -> None:
        self._checkpointing.synchronize()
        number = self._state.steps
        # Do not save again before the first step of an epoch what the last epoch's end has saved.
        if number == self._saved and steps:
            return
        self._saved = number
        if self._saves:
            self._write(number, steps)
        self._exports.saved(number, logs)

    def _evict(self) -> None:
        """Frees rows after a save, or after a restore, so that what is saved has all of them."""
        self._exports.evicted(dynamic_tables.evict(self.model, self._state.steps))

    def _write(self, number: int, steps: Sequence[int]) -> None:
        batches = self._state.batches_per_update
        position = Position(
            self._finished, tuple(steps), batches, self._hyperparameters, self._states.changed()
        )
        with (
            self._state.reporter.activity.doing(activity.SAVING),
            self._checkpointing.save_scope(self.model),
        ):
            if self._state.is_chief:
                self._checkpointer.save(position, number=number)
        if not steps:
            self._final.epoch_saved()

    def _exit(self, steps: Sequence[int]) -> None:
        self._agreement.inside = ""
        self._save(steps)
        self._checkpointer.wait()
        self._checkpointing.wait_for_chief()
        if self._state.is_chief:
            step, epoch = self._cursor.step_of_epoch(steps), self._finished
            place = f"step {step} of epoch {epoch + 1}" if step or not epoch else f"epoch {epoch}"
            log(
                f"saved after {place}, exiting with code {EXIT_PREEMPTED}; start the job again to "
                "resume"
            )
            self._log_event(events.PREEMPTED, self._finished)
        thread_stacks.keep_forever(inspect.currentframe())
        sys.exit(EXIT_PREEMPTED)

    @property
    def _saves(self) -> bool:
        return self._state.is_chief or self._checkpointing.all_save

    def _log_event(self, event: str, epoch: int, **facts: Any) -> None:
        events.add(self._output, event, epoch=epoch, step=self._state.steps, **facts)

    def _say(self, text: str) -> None:
        if self._state.is_chief:
            log(text)

    def _say_after(self, text: str) -> None:
        self._say(f"{text} and {self._state.steps} steps in {self._output.path}")

    def _after_step(self, batch: int, logs: Logs | None = None) -> None:
        self._take_wish()
        asking = self._state.preemption.end_step(asks=self._asks)
        self._take_wish()
        if asking:
            done = keras_compat.last_step(self.model, batch, self.params["steps"]) + 1
            self._stop(f"step {done} of epoch {self._finished + 1}", asking)

    def _follow_all_callbacks(self) -> None:
        """Saves after all callbacks, so that a smaller rate and their states are saved, too."""
        kind = tf.keras.callbacks.CallbackList
        begin, end = kind.on_train_begin, kind.on_epoch_end

        def on_train_begin(own: tf.keras.callbacks.CallbackList, logs: Logs | None = None) -> None:
            begin(own, logs)
            if self in own.callbacks:  # Another model may be trained in a callback.
                self._states = CallbackStates(own.callbacks)
                self._states.restore(self._restored)

        def on_epoch_end(
            own: tf.keras.callbacks.CallbackList, epoch: int, logs: Logs | None = None
        ) -> None:
            try:
                end(own, epoch, logs)
            finally:
                # A callback that fails does not cost the epoch. The other tasks save, too.
                if self in own.callbacks and self._has_unsaved_epoch:
                    self._has_unsaved_epoch = False
                    self._save(logs=logs)
            if self in own.callbacks and len(self._topology.peers) > 1:
                self._agree_to_stop()

        replaced.replace(kind, "on_train_begin", on_train_begin)
        replaced.replace(kind, "on_epoch_end", on_epoch_end)

    def _agree_to_stop(self) -> None:
        peers = self._topology.peers
        # All tasks stop here, also if they have not agreed yet on the step of an earlier wish.
        self._take_wish()
        answers = zip(peers, self._strategy.gather(int(self._asks)), strict=True)
        self._take_wish()
        if asking := [peer for peer, asks in answers if asks]:
            self._stop(f"epoch {self._finished}", asking)

    def _take_wish(self) -> None:
        """Notes that this task wants to stop, and keeps Keras from stopping in this task alone.

        Call it before and after a wait.
        """
        if self.model.stop_training:
            self._asks, self.model.stop_training = True, False

    def _stop(self, place: str, asking: Sequence[str]) -> None:
        self.model.stop_training = True
        if len(asking) < len(self._topology.peers):
            self._say(f"stopping after {place}: {', '.join(asking)} set stop_training")

    def _of_all_shards(self, step: int) -> list[int]:
        """For each shard, the number of steps before Keras's step number `step`."""
        return [step] * self._topology.num_shards
