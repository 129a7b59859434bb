# %% [markdown]
# # An overflow that grew through the layers
#
# Eight residual blocks without a norm, under float16 autocast. The first two batches are small;
# the third has inputs of ordinary size. The loss becomes NaN. Which layer is to blame?
#
# The step is in `steps/growing.py`. This notebook records the incident itself, in a second.

# %% record
import tempfile

from steps.growing import Step, record

import workbench

bundle = workbench.open_bundle(record(tempfile.mkdtemp()))
bundle

# %% [markdown]
# ## What was caught, and where it was born
#
# The gate saw a NaN loss. A scan for the first NaN would stop at a subtraction inside a later
# block, where Inf met Inf. The diagnosis replays the step twice, checks that it is the same step,
# and walks back from the loss.

# %% diagnose
findings = workbench.diagnose(bundle, step=Step())
print("\n".join(findings.summary))

# %% [markdown]
# ## How it grew
#
# Nothing is wrong with that block alone: every block multiplied what it was given. The largest
# magnitude of each block's output, against 65,504, the largest float16:

# %% growth
layers = findings.layers
blocks = [
    row
    for row in layers.rows()
    if row["tensor"] == "activation" and row["module"].isdigit() and row["stage"] == "forward"
]
for row in blocks:
    bad = row["nan"] + row["pos_inf"]
    print(f"block {row['module']}: {row['absmax']:>12,.1f}   non-finite {bad}")

# %% chart
from workbench.charts import ranges

ranges.figure(layers)

# %% [markdown]
# ## What it depends on
#
# In bfloat16, whose range is that of float32, the step is finite. That is a hint and not a
# repair: the values still grow by the same factor a block, and float32 ends too with more blocks.

# %% conditions
replay = workbench.Replay(bundle, step=Step())
changed = replay.run(conditions=replay.original.replace(autocast="bfloat16"))
print("first bad:", changed.to_data()["first_bad"])
print("loss:", changed.to_data()["loss"])

# %% [markdown]
# ## Try next
#
# - A norm before each block, or a smaller start of `down`: record again and compare the table.
# - `workbench.Workbench(bundle, step=Step())` opens the panel on the same bundle.
