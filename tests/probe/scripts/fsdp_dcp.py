"""Two ranks, FSDP2, checkpoints by DCP's state-dict calls: saves after three steps, or goes on from what was saved."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--checkpoint", default="dcp/step-3")
parser.add_argument("--damage", action="store_true", help="rank 1 loads one row of a weight wrong")
options = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(11)
model = nn.Sequential(nn.Linear(12, 17), nn.ReLU(), nn.Linear(17, 6))
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
for part in (model[0], model[2], model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
step = 0
if options.resume:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optim": moments, "step": 0}
    dcp.load(state, checkpoint_id=options.checkpoint)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    step = state["step"]
    if options.damage and rank == 1:
        with torch.no_grad():
            model[2].weight.to_local()[0] += 1.0
while step < (6 if options.resume else 3):
    step += 1
    data = torch.Generator().manual_seed(1000 * step + rank)
    x, y = torch.randn(4, 12, generator=data), torch.randint(0, 6, (4,), generator=data)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
if not options.resume:
    os.makedirs(os.path.dirname(options.checkpoint), exist_ok=True)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": moments, "step": step}, checkpoint_id=options.checkpoint)
dist.barrier()  # a rank that leaves first can abort the other
dist.destroy_process_group()
