# %% [markdown]
# # A storm of skips, and the way that led there
#
# One skip of the loss scaler is its normal work. Six in a row are an alert: the recorder makes a
# bundle though nothing stopped. `Policy(recovery_every=10)` kept the steps before it.
#
# The step is in `steps/storm.py`.

# %% record
import tempfile

from steps.storm import Step, record

import workbench

bundle = workbench.open_bundle(record(tempfile.mkdtemp()))
print(bundle.kind, bundle.completeness)

# %% [markdown]
# ## The ledger
#
# It needs no replay and no code.

# %% ledger
for line in bundle.ledger()[-9:]:
    skipped = line["optimizers"][0]["skipped_by"]
    print(
        f"step {line['step']:>3}  loss {line['loss']:>14,.1f}  "
        f"scale {line['loss_scale']:>8,.0f}  skipped by {skipped}"
    )

# %% chart
from workbench.charts import timeline

timeline.figure(bundle.ledger(), incident=bundle.ledger()[-1]["step"])

# %% [markdown]
# ## What departed from its usual range
#
# No value is non-finite where it counts, so there is no origin. The diagnosis compares the step
# with the calm ones before it.

# %% diagnose
findings = workbench.diagnose(bundle, step=Step())
print("\n".join(findings.summary))
print("origins:", findings.data["origins"])

# %% [markdown]
# ## The steps before
#
# From the recovery point every kept step is run again and compared with the ledger. A step that
# departs would say that something outside of the step changed the state.

# %% trajectory
from workbench.replay.source import Source
from workbench.replay.trajectory import replay_trajectory

trajectory = replay_trajectory(bundle, Source.from_bundle(bundle, Step(), None))
print("\n".join(trajectory.sentences))

# %% [markdown]
# The loss of the batches grew, and the scaler followed it down. Lowering the learning rate would
# hide that; the targets are in another unit from step 12 on.
