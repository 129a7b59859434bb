"""Mean over the rows of a jagged tensor, one row is empty."""

import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, values, offsets):
        nt = self.fc(torch.nested.nested_tensor_from_jagged(values, offsets))
        return torch.stack([row.mean(0) for row in nt.unbind()])


def build():
    torch.manual_seed(22)
    model = Net()
    batches = [{"v": torch.randn(6, 3), "o": torch.tensor([0, 2, 3, 6])} for _ in range(3)]
    batches[2]["o"] = torch.tensor([0, 3, 3, 6])
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["v"], batch["o"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()
