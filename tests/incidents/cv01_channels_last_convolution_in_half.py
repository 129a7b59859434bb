"""A convolution in channels_last memory format under float16 autocast: un-normalised 16-bit pixels
of one image leave the range in the second block's convolution."""

import torch
from torch import nn

AUTOCAST = {"dtype": torch.float16}


class Block(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(3, 8), Block(8, 8), Block(8, 4)])
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.float().mean((2, 3)))


def build():
    torch.manual_seed(72)
    model = Net().to(memory_format=torch.channels_last)
    with torch.no_grad():
        for block in model.blocks:
            block.conv.weight.abs_()
    xs = [torch.rand(3, 3, 6, 6) for _ in range(3)]
    xs[1][2] *= 20000
    batches = [{"x": x.to(memory_format=torch.channels_last)} for x in xs]
    return model, torch.optim.SGD(model.parameters(), 1e-6), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return outputs.pow(2).mean()
