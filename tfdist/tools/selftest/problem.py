"""A least-squares problem, and the weights that NumPy computes for it."""

from __future__ import annotations

import numpy as np

STEPS, EPOCHS = 10, 2
LEARNING_RATE = 0.1
FEATURES = 4
#: The examples of a replica's batch.
BATCH_SIZE = 32


def examples(replicas: int) -> tuple[np.ndarray, np.ndarray]:
    """All examples, which are one global batch: float32 of [n, FEATURES] and [n, 1]."""
    random = np.random.default_rng(7)
    inputs = random.normal(size=(BATCH_SIZE * replicas, FEATURES))
    targets = inputs @ random.normal(size=(FEATURES, 1))
    return inputs.astype(np.float32), targets.astype(np.float32)


def solution(replicas: int) -> np.ndarray:
    """The weights [FEATURES, 1] after all steps of gradient descent, from zeros; float64."""
    inputs, targets = (each.astype(np.float64) for each in examples(replicas))
    weights = np.zeros((FEATURES, 1))
    for _ in range(STEPS * EPOCHS):
        errors = inputs @ weights - targets
        weights -= LEARNING_RATE * 2 / len(inputs) * inputs.T @ errors
    return weights
