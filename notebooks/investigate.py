# The guided investigation of one bundle. Edit this file, then build the notebook:
#   python -m workbench.reports.build_templates notebooks

# %% [markdown]
# # Investigate an incident
#
# One training step met NaN or Inf. Read the panel from top to bottom and stop when you know
# enough. *Caught at* is the gate that tripped; *born at* is the op where the value went bad.

# %% parameters tags=["parameters"]
bundle: str = ""  # Path of the bundle: a directory, or the same directory in one zip
step: str = ""  # Your code, package.module:Name or file.py:Name; empty runs no code

# %% open
import workbench

opened = workbench.open_bundle(bundle)
panel = workbench.Workbench(opened, step=step or None)
panel

# %% [markdown]
# ## The same from code
#
# Everything below runs the step's code, so it needs `step` above, or `trust="import"` for the code
# that the bundle names.

# %% diagnose
findings = workbench.diagnose(opened, step=step or None)
findings

# %% [markdown]
# ## Try a change
#
# A finite run under other conditions is a hint, not a repair: it shows what the failure depends on.

# %% change
if step:
    replay = workbench.Replay(opened, step=step)
    result = replay.run(conditions=opened.conditions.replace(dtype="float32", autocast="off"))
    print(result.changed, result.first_bad or "finite")
