"""Real checkpoints, made with torch itself."""

import hashlib

import torch


def digest(tensor):
    """The tensor digest of docs/FORMATS.md, computed by torch."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    flat = tensor.detach().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return hashlib.sha256(f"{dtype}:{'x'.join(map(str, tensor.shape))}:".encode() + raw).hexdigest()


def trained(steps=3, *, dtype=torch.float32, seed=0):
    """A model and an optimizer with two groups in another order than the model's, after some updates."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)).to(dtype)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=2e-3,
        betas=(0.9, 0.95),
    )
    for _ in range(steps):
        model(torch.randn(5, 8, dtype=dtype)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def nanogpt(path, step=3, **more):
    """A checkpoint in nanoGPT's shape."""
    model, optimizer = trained(step)
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "model_args": {"n_layer": 2, "bias": False},
            "iter_num": step,
            "best_val_loss": torch.tensor(2.5),
            "config": {"learning_rate": 2e-3, "dtype": "bfloat16", "out_dir": "out"},
            **more,
        },
        path,
    )
    return model, optimizer
