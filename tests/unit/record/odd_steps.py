"""Training steps that are legal and rare: odd batches, losses, parameters and exceptions."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from workbench import TrainingStep


class Pair(NamedTuple):
    x: torch.Tensor
    w: torch.Tensor

    def product(self):
        return self.x * self.w


@dataclass
class Sample:
    pair: Pair
    bad: bool

    def inputs(self):
        return self.pair.product()


class Plain(TrainingStep):
    def build_model(self):
        torch.manual_seed(0)
        return nn.Linear(4, 1)

    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), 1e-2)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return torch.log(outputs * 0 - 1).mean() if batch["bad"] else outputs.pow(2).mean()

    def batch(self, k, bad=False):
        return {"x": torch.randn(3, 4, generator=torch.Generator().manual_seed(k)), "bad": bad}


class OwnClasses(Plain):
    """A batch of the user's own classes, whose methods the step calls."""

    def forward(self, model, batch):
        assert isinstance(batch.pair, Pair)
        return model(batch.inputs())

    def loss(self, outputs, batch):
        return super().loss(outputs, {"bad": batch.bad})

    def batch(self, k, bad=False):
        return Sample(Pair(super().batch(k)["x"], torch.ones(4)), bad)


class Sequences(Plain):
    """A packed sequence: a named tuple whose constructor checks its fields."""

    def build_model(self):
        torch.manual_seed(0)
        return nn.LSTM(4, 1)

    def forward(self, model, batch):
        return model(batch["packed"])[1][0]

    def batch(self, k, bad=False):
        x = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(k))
        packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3])
        return {"packed": packed, "bad": bad}


class Odd(Plain):
    """Tensors that some operations refuse, beside one that is fine."""

    def batch(self, k, bad=False):
        z = torch.randn(3, dtype=torch.complex64, generator=torch.Generator().manual_seed(k))
        return super().batch(k, bad) | {"conjugate": z.conj(), "negative": z.conj().imag}


class Unstorable(Plain):
    """A nested tensor, and a batch that contains itself."""

    def batch(self, k, bad=False):
        batch = super().batch(k, bad)
        batch["nested"] = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        batch["self"] = batch
        return batch


class Lazy(Plain):
    def build_model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 1))


class NeverUsed(Plain):
    """A lazy parameter that no forward ever gives a shape."""

    def build_model(self):
        model = super().build_model()
        model.register_parameter("ghost", nn.UninitializedParameter())
        return model

    def build_optimizer(self, model):
        return torch.optim.SGD([model.weight, model.bias], 1e-2)


class LossPerSample(Plain):
    """The loss is a vector, and the step's own backward sums it."""

    def loss(self, outputs, batch):
        loss = outputs.pow(2).squeeze(1)
        return torch.log(loss * 0 - 1) if batch["bad"] else loss

    def backward(self, loss, scaler):
        loss.sum().backward()


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Raises(Plain):
    def forward(self, model, batch):
        if batch["bad"]:
            raise SilentError
        return super().forward(model, batch)
