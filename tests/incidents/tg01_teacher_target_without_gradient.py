"""Self-distillation: the teacher's target is centred and sharpened under no_grad; its temperature
was annealed to a value that float16 rounds to 0, so target and loss become NaN."""

import torch
from torch import nn


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 4)
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, x, temperature):
        with torch.no_grad():
            logits = self.head(x) - self.centre
            self.centre.mul_(0.9).add_(logits.mean(0), alpha=0.1)
            sharp = torch.tensor(temperature).half().float()
            return (logits / sharp).softmax(-1)


class DINO(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(3, 4)
        self.teacher = Teacher()

    def forward(self, x, temperature):
        return self.student(x).log_softmax(-1), self.teacher(x, temperature)


def build():
    torch.manual_seed(404)
    model = DINO()
    batches = [{"x": torch.randn(4, 3), "t": t} for t in (0.07, 0.04, 1e-8, 0.04)]
    return model, torch.optim.AdamW(model.student.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"], batch["t"])


def loss(outputs, batch):
    student, teacher = outputs
    return -(teacher * student).sum(-1).mean()
