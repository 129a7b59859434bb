# %% [markdown]
# # A gradient that where() does not stop
#
# Vectors are divided by their length, and `where` drops the result for vectors of length zero.
# The forward is finite everywhere, and so is the loss. The gradient of the first layer is NaN.
#
# The step is in `steps/where.py`.

# %% record
import tempfile

from steps.where import Step, record

import workbench

bundle = workbench.open_bundle(record(tempfile.mkdtemp()))
print(bundle.first_bad)

# %% [markdown]
# ## Where it was born
#
# The op is one of backward. It belongs to a line of forward, where the fix goes.

# %% diagnose
findings = workbench.diagnose(bundle, step=Step())
print("\n".join(findings.summary))
origin = findings.data["origins"][0]
print("backward op:", origin["op"], "of", origin["autograd_node"])
print("forward op: ", origin["forward_op"], "at", origin["source"])

# %% [markdown]
# ## Counterfactuals
#
# Each is one specific change, replayed, beside a placebo: the same kind of change where it should
# not matter.

# %% counterfactuals
for row in findings.data["counterfactuals"]:
    print(f"{row['result']:<12} {row['intervention']} (placebo: {row['placebo']})")

# %% [markdown]
# ## The repair
#
# Make the dropped branch safe before it is computed. The same batch, with the repaired module:

# %% repair
import torch
from torch import nn


class SafeDirection(nn.Module):
    def forward(self, v):
        squares = v.square().sum(-1, keepdim=True)
        kept = squares > 0
        length = torch.where(kept, squares, torch.ones_like(squares)).sqrt()
        return torch.where(kept, v / length, torch.zeros_like(v))


class Repaired(Step):
    def build_model(self):
        model = super().build_model()
        model[1] = SafeDirection()
        return model


print("first bad:", workbench.Replay(bundle, step=Repaired()).run().to_data()["first_bad"])

# %% [markdown]
# This is a repair of the code, seen to be finite on the batch that failed. It says nothing about
# other batches; record on.
