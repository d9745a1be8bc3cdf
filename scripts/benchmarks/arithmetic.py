"""What the training of the benchmark has to do at least, and what this machine can do at most.

flops_per_image()                    # of training ResNet-20 on an image of 32x32
least_bytes_per_step("ring", 2)      # over all processes
python -m benchmarks.arithmetic      # this machine's peak in multiplying matrices, FLOP/s
"""

from __future__ import annotations

import time

_BLOCKS = 3  # of each stage: 6 * 3 + 2 layers
_STAGES = ((16, 32), (32, 16), (64, 8))  # channels, and pixels a side
_CLASSES = 10


def _convolutions() -> list[tuple[int, int, int]]:
    """Channels in, channels out, and pixels a side of each convolution's output."""
    found = [(3, 16, 32)]
    for channels, side in _STAGES:
        for _ in range(2 * _BLOCKS):
            found.append((found[-1][1], channels, side))
    return found


def parameters() -> int:
    """Trainable parameters of ResNet-20 with option-A shortcuts."""
    kernels = sum(9 * inputs * outputs for inputs, outputs, _ in _convolutions())
    scales_and_offsets = sum(2 * outputs for _, outputs, _ in _convolutions())
    return kernels + scales_and_offsets + (_STAGES[-1][0] + 1) * _CLASSES


def flops_per_image() -> int:
    """Floating-point operations of a step for one image: two for each multiplication and addition.

    Convolutions and the last layer alone; the backward pass takes twice as many as the forward one.
    """
    forward = sum(2 * 9 * inputs * outputs * side**2 for inputs, outputs, side in _convolutions())
    return 3 * (forward + 2 * _STAGES[-1][0] * _CLASSES)


def least_bytes_per_step(kind: str, processes: int) -> int:
    """Bytes that all processes must send in a step at least, with gradients of 32 bits.

    Args:
      kind: `ring`, in which a step of all processes takes 2(N-1)/N of the parameters from each
        (Patarasuk and Yuan 2009), or `parameter_server`, where a step of one worker takes the
        parameters to it and the gradients back.
      processes: those that train.
    """
    size = 4 * parameters()
    return 2 * (processes - 1) * size if kind == "ring" else 2 * size


def measure_peak(seconds: float = 2.0, size: int = 1024) -> float:
    """FLOP/s of multiplying float32 matrices, by TensorFlow as it is set up in this process."""
    import tensorflow as tf

    matrix = tf.random.normal([size, size])
    multiply = tf.function(lambda: tf.reduce_sum(tf.matmul(matrix, matrix)))
    multiply()
    count, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        multiply().numpy()
        count += 1
    return count * 2 * size**3 / passed


if __name__ == "__main__":
    print(measure_peak())
