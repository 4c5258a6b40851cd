"""Two ranks, a DataLoader with workers, a loss function outside of the model, accumulation with no_sync."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--out", default="out")
options = parser.parse_args()


class Rows(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(12, generator=generator), "y": torch.randint(0, 5, (), generator=generator)}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 5))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rows = Rows()
    loader = DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows, shuffle=True, seed=5), num_workers=1)
    criterion = nn.CrossEntropyLoss()
    step, losses = 0, []
    while step < options.steps:
        for number, batch in enumerate(loader):
            last = number % 2 == 1
            if last:
                loss = criterion(model(batch["x"]), batch["y"]) / 2
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
            else:
                with model.no_sync():
                    loss = criterion(model(batch["x"]), batch["y"]) / 2
                    loss.backward()
            losses.append(loss.item())
            if step == options.steps:
                break
    os.makedirs(options.out, exist_ok=True)
    torch.save({"model": model.module.state_dict(), "losses": losses}, f"{options.out}/rank{rank}.pt")
    dist.barrier()  # a rank that leaves first can abort the other
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
