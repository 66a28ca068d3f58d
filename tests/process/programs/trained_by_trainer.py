"""A model trained by transformers.Trainer, which evaluates, saves and goes on; it prints what the model was given."""

import os
import sys

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

ACCUMULATE, DIES_AT = int(sys.argv[1]), int(sys.argv[2])
NUM_ROWS, BATCH = 44, 4


class Rows(Dataset):
    """Inputs and targets by a formula, so that any part of them can be made again."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), float(index)), "labels": torch.tensor([float(index)])}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            print("given", len(x), flush=True)
        out = self.linear(x / NUM_ROWS)
        return {"loss": torch.nn.functional.mse_loss(out, labels / NUM_ROWS), "logits": out}


class Dies(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs) -> None:
        print("step", state.global_step, flush=True)
        if state.global_step == DIES_AT and not os.path.exists("died"):
            with open("died", "w"):
                os.kill(os.getpid(), 9)


arguments = TrainingArguments(
    output_dir="trained",
    per_device_train_batch_size=BATCH,
    per_device_eval_batch_size=BATCH,
    gradient_accumulation_steps=ACCUMULATE,
    num_train_epochs=2,
    save_steps=4,
    eval_strategy="steps",
    eval_steps=3,
    logging_steps=2,
    save_total_limit=2,
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
    seed=7,
)
trainer = Trainer(Model(), arguments, train_dataset=Rows(NUM_ROWS), eval_dataset=Rows(12), callbacks=[Dies()])
trainer.train(resume_from_checkpoint=get_last_checkpoint("trained") if os.path.isdir("trained") else None)
print("weights", [round(value, 6) for value in trainer.model.linear.weight.flatten().tolist()])
trainer.save_model("final")
