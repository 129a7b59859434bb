"""One element of an LSTM's recurrent weight is NaN after a merge of checkpoints (0/0 in the
averaging script): the fused layer reads it."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnns = nn.ModuleList([nn.LSTM(3, 4, batch_first=True), nn.LSTM(4, 4)])
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        x = self.rnns[0](x)[0]
        return self.head(self.rnns[1](x)[0])


def build():
    torch.manual_seed(312)
    model = Tagger()
    batches = [{"x": torch.randn(2, 5, 3)} for _ in range(3)]
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def PRE_STEP(k, model, opt, scaler):
    if k == 1:
        with torch.no_grad():
            model.rnns[1].weight_hh_l0[5, 2] = float("nan")


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
