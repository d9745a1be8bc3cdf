"""The same training with PyTorch's DistributedDataParallel under `torchrun`, with gloo."""

from __future__ import annotations

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from scripts.benchmarks.arithmetic import IMAGE_MODELS, MODELS, UNITS, VGG_FILTERS, VGG_UNITS
from scripts.benchmarks.marks import Marks

_DTYPES = {"mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}
_FEATURES = 32


class Block(nn.Module):
    """Two convolutions and a parameter-free shortcut (He et al. 2015, option A)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.missing = channels - channels_in
        self.stride = stride
        self.layers = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        if self.stride > 1:
            x = functional.avg_pool2d(x, self.stride)
        if self.missing:
            x = functional.pad(x, [0, 0, 0, 0, self.missing // 2, self.missing - self.missing // 2])
        return functional.relu(x + y)


def resnet(num_layers: int) -> nn.Module:
    blocks = [
        Block(channels_in if not block else channels, channels, 2 if stage and not block else 1)
        for stage, (channels_in, channels) in enumerate([(16, 16), (16, 32), (32, 64)])
        for block in range((num_layers - 2) // 6)
    ]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def vgg() -> nn.Module:
    """Six convolutions, two wide linear layers, and logits of 10 classes; from images."""
    layers: list[nn.Module] = []
    channels = 3
    for filters in VGG_FILTERS:
        for _ in range(2):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    width = channels * (32 // 2 ** len(VGG_FILTERS)) ** 2
    for units in VGG_UNITS:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, 10))


def mlp(units: int) -> nn.Module:
    """Four linear layers, and logits of 10 classes; from float32 [batch, 32]."""
    hidden: list[nn.Module] = []
    for index in range(4):
        hidden += [nn.Linear(units if index else _FEATURES, units), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(units, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("batch_size", 64), ("steps", 20), ("epochs", 4), ("num_layers", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--channels_last", action="store_true")
    parser.add_argument("--model", choices=MODELS, default="resnet20")
    parser.add_argument("--autocast", choices=_DTYPES)
    parser.add_argument("--bucket_cap_mb", type=float, default=25.0)
    arguments = parser.parse_args()
    order_in_memory = torch.channels_last if arguments.channels_last else torch.contiguous_format
    dist.init_process_group("gloo")
    if arguments.model == "resnet20":
        own = resnet(arguments.num_layers)
    else:
        own = vgg() if arguments.model == "vgg" else mlp(UNITS[arguments.model])
    has_images = arguments.model in IMAGE_MODELS
    model = nn.parallel.DistributedDataParallel(
        own.to(memory_format=order_in_memory) if has_images else own,
        bucket_cap_mb=arguments.bucket_cap_mb,
    )
    precision: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if arguments.autocast:
        precision = torch.autocast("cpu", _DTYPES[arguments.autocast])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    count = arguments.steps * arguments.batch_size
    generator = torch.Generator().manual_seed(dist.get_rank())
    if has_images:
        pixels = torch.randint(0, 256, [count, 3, 32, 32], generator=generator).float()
        inputs = (pixels / 128 - 1).to(memory_format=order_in_memory)
    else:
        inputs = torch.randn([count, _FEATURES], generator=generator)
    labels = torch.randint(0, 10, [count], generator=generator)
    marks = Marks(writes=dist.get_rank() == 0)
    for _ in range(arguments.epochs):
        order = torch.randperm(count)
        marks.epoch_begins()
        for indices in order.split(arguments.batch_size):
            optimizer.zero_grad()
            with precision:
                outputs = model(inputs[indices])
            functional.cross_entropy(outputs.float(), labels[indices]).backward()
            optimizer.step()
            marks.step_ends()
        marks.epoch_ends()
    marks.write()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
