"""An ordinary Lightning module: closure-style steps, accumulation, clipping, a metric of its own."""

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

out = sys.argv[1]


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), "interval": "step"}]


torch.manual_seed(4)
rows = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
model = Classifier()
trainer = lightning.Trainer(
    max_steps=4,
    accelerator="cpu",
    accumulate_grad_batches=2,
    gradient_clip_val=0.5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(rows, batch_size=4, shuffle=True))
torch.save(model.state_dict(), out)
