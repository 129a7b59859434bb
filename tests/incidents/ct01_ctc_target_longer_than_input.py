"""Speech: an utterance with more labels than frames has no CTC alignment, so its loss is +Inf."""

import torch
import torch.nn.functional as F
from torch import nn


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 6, bidirectional=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.lstm(x)[0]).log_softmax(-1)


def build():
    torch.manual_seed(32)
    model = Recogniser()
    target = torch.tensor([[1, 2, 3, 4], [2, 3, 4, 1]])
    batches = [
        {"x": torch.randn(8, 2, 3), "frames": torch.tensor([8, frames]), "target": target}
        for frames in (8, 7, 3, 8)
    ]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return F.ctc_loss(outputs, batch["target"], batch["frames"], torch.tensor([4, 4]))
