"""PyTorch's DistributedDataParallel, without tfdist: each process has its examples."""

from __future__ import annotations

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, processes = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(20):
    points = torch.randn(8, 4)
    loss = ((model(points) - points.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{rank} of {processes}: {model.module.weight.detach().ravel().tolist()}")
dist.destroy_process_group()
