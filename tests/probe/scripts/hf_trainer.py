"""An ordinary script around the HF Trainer: accumulation, clipping, a causal language model."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

out, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        ids = torch.randint(0, 64, (10,), generator=torch.Generator().manual_seed(index))
        labels = ids.clone()
        labels[:2] = -100
        return {"input_ids": ids, "attention_mask": torch.ones(10, dtype=torch.long), "labels": labels}


model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(
    output_dir=out,
    max_steps=steps,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_grad_norm=0.5,
    learning_rate=1e-2,
    lr_scheduler_type="linear",
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    dataloader_num_workers=0,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
trainer.train()
torch.save(model.state_dict(), f"{out}/final.pt")
