"""pack_padded_sequence refuses a sequence of length 0 (an empty utterance after trimming): the
step ends in an exception, every number is finite."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.lstm(packed)[1][0][-1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(4, 1)

    def forward(self, x, lengths):
        return self.head(self.encoder(x, lengths))


def build():
    torch.manual_seed(55)
    model = Net()
    batches = [{"x": torch.randn(3, 5, 2), "n": torch.tensor([5, n, 3])} for n in (2, 4, 0)]
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"], batch["n"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
