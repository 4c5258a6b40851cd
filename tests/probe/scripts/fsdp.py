"""Two ranks, sharded parameters (FSDP2) on the CPU, clipping."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--out", default="out")
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(11)
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6))
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
for part in (model[0], model[2], model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(100 + rank)
norms = []
for _ in range(options.steps):
    x, y = torch.randn(4, 12, generator=data), torch.randint(0, 6, (4,), generator=data)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item())
    optimizer.step()
    optimizer.zero_grad()
os.makedirs(options.out, exist_ok=True)
shards = {name: p.to_local() for name, p in model.named_parameters()}
torch.save({"shards": shards, "norms": norms}, f"{options.out}/rank{rank}.pt")
dist.barrier()  # a rank that leaves first can abort the other
dist.destroy_process_group()
