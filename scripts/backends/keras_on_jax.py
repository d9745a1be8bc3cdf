"""Keras on JAX, without tfdist: each process has its examples."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

keras.distribution.initialize()
rank, processes = jax.process_index(), jax.process_count()
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
points = np.random.default_rng(rank).normal(size=[64, 4]).astype("float32")
model.fit(points, points.sum(1, keepdims=True), batch_size=8, epochs=3, verbose=0, shuffle=False)
kernel = model.layers[0].kernel.value.addressable_data(0)
print(f"{rank} of {processes}: {np.asarray(kernel).ravel().tolist()}")
