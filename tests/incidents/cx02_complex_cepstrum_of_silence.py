"""A complex cepstrum takes the complex logarithm of the spectrum; a silent frame's bins are 0 +
0j."""

import torch
from torch import nn


class Cepstrum(nn.Module):
    def forward(self, x):
        spectrum = torch.fft.fft(x)
        return torch.fft.ifft(torch.log(spectrum)).real


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cepstrum = Cepstrum()
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.cepstrum(x))


def build():
    torch.manual_seed(306)
    model = Net()
    xs = [torch.randn(3, 8) for _ in range(3)]
    xs[1][2] = 0.0
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, [{"x": x} for x in xs]


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
