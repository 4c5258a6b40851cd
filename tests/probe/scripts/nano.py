"""A training script in the manner of nanoGPT: batches by index, loss inside the model, its own accumulation."""

import argparse
import json
import os

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--micro", type=int, default=2)
parser.add_argument("--resume", default="")
parser.add_argument("--out", default="out")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--no-clip", action="store_true")
options = parser.parse_args()


class Tiny(nn.Module):
    def __init__(self, vocabulary=48, width=16):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        logits = self.head(x + self.scale * self.mlp(x))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


torch.manual_seed(1337)
model = Tiny()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
data = torch.randint(0, 48, (2000,), generator=torch.Generator().manual_seed(3))
begun = 0
if options.resume:
    state = torch.load(options.resume, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    begun = state["step"]
raw_model = model
mixed = torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.autocast)  # one region, entered again and again
if options.compile:
    model = torch.compile(model, backend="aot_eager")


def get_batch():
    starts = torch.randint(0, 1900, (4,))
    x = torch.stack([data[i : i + 8] for i in starts])
    y = torch.stack([data[i + 1 : i + 9] for i in starts])
    y[0, :3] = -1
    return x, y


@torch.no_grad()
def evaluate():
    model.eval()
    _, loss = model(*get_batch())
    model.train()
    return loss.item()


os.makedirs(options.out, exist_ok=True)
log = open(os.path.join(options.out, "log.jsonl"), "a")  # noqa: SIM115  # left unflushed on purpose
for step in range(begun, options.steps):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * (1 - step / 100)
    total = 0.0
    for _ in range(options.micro):
        x, y = get_batch()
        with mixed:
            _, loss = model(x, y)
            loss = loss / options.micro
        loss.backward()
        total += loss.item()
    norm = None if options.no_clip else torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    row = {"step": step + 1, "loss": total, "grad_norm": norm, "lr": optimizer.param_groups[0]["lr"]}
    log.write(json.dumps(row) + "\n")
    if step == 2:
        row["eval"] = evaluate()
    print(json.dumps(row), flush=True)
    state = {
        "model": raw_model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "step": step + 1,
    }
    torch.save(state, os.path.join(options.out, f"step-{step + 1}.pt"))
if options.compile:
    from torch._dynamo.utils import counters

    print(json.dumps({"graphs": counters["stats"]["unique_graphs"], "breaks": len(counters["graph_break"])}))
