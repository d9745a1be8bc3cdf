"""The minimum work of the benchmark's training, and the peak performance of this machine.

flops_per_image()                          # training ResNet-20 on one 32x32 image
least_bytes_per_step("ring", 2)            # over all processes
python -m scripts.benchmarks.arithmetic    # prints the peak of matrix multiplication, FLOP/s
"""

from __future__ import annotations

import time

#: The models of the benchmarks, and the units of the layers of an MLP.
MODELS = ("resnet20", "vgg", "mlp", "wide_mlp", "embedding")
#: The models for images.
IMAGE_MODELS = ("resnet20", "vgg")
UNITS = {"mlp": 64, "wide_mlp": 2048}
#: The filters of the convolutions of vgg between its poolings, and the units of its dense layers.
VGG_FILTERS, VGG_UNITS = (32, 64, 128), (2048, 1024)
#: ResNet-20.
NUM_LAYERS = 20
_STAGES = ((16, 32), (32, 16), (64, 8))  # channels, and image size in pixels
_CLASSES = 10


def _convolutions(num_layers: int) -> list[tuple[int, int, int]]:
    """Input channels, output channels and output size in pixels of each convolution."""
    found = [(3, 16, 32)]
    for channels, side in _STAGES:
        for _ in range((num_layers - 2) // len(_STAGES)):
            found.append((found[-1][1], channels, side))
    return found


def parameters(num_layers: int = NUM_LAYERS) -> int:
    """The number of trainable parameters of a ResNet with option-A shortcuts."""
    convolutions = _convolutions(num_layers)
    kernels = sum(9 * inputs * outputs for inputs, outputs, _ in convolutions)
    scales_and_offsets = sum(2 * outputs for _, outputs, _ in convolutions)
    return kernels + scales_and_offsets + (_STAGES[-1][0] + 1) * _CLASSES


def flops_per_image(num_layers: int = NUM_LAYERS) -> int:
    """Floating-point operations of a training step per image; a multiply-add counts as two.

    Counts only convolutions and the last layer. The backward pass takes twice as many operations as
    the forward pass.
    """
    convolutions = _convolutions(num_layers)
    forward = sum(2 * 9 * inputs * outputs * side**2 for inputs, outputs, side in convolutions)
    return 3 * (forward + 2 * _STAGES[-1][0] * _CLASSES)


def least_bytes_per_step(kind: str, processes: int, num_layers: int = NUM_LAYERS) -> int:
    """The minimum number of bytes that all processes send in a step, with 32-bit gradients.

    Args:
      kind: `ring`: in a step of all processes, each sends 2(N-1)/N of the parameters (Patarasuk
        and Yuan 2009). `parameter_server`: in a step of one worker, the parameters are sent to it
        and the gradients are sent back.
      processes: the number of training processes.
      num_layers: the layers of the ResNet.
    """
    size = 4 * parameters(num_layers)
    return 2 * (processes - 1) * size if kind == "ring" else 2 * size


def measure_peak(seconds: float = 2.0, size: int = 1024) -> float:
    """FLOP/s of float32 matrix multiplication with TensorFlow as configured in this process."""
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
