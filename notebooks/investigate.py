# The guided investigation of one bundle. Edit this file, then build the notebook:
#   python -m workbench.reports.build_templates notebooks

# %% [markdown]
# # Investigate an incident
#
# One training step met NaN or Inf and was sealed in a bundle. This notebook opens it.
# Read the panel from top to bottom and stop when you know enough. *Caught at* is the gate that
# tripped; *Born at* is the op where the value went bad.
#
# Opening runs nothing that the bundle names. The first replay asks whose code may run.

# %% parameters tags=["parameters"]
bundle: str = ""  # Path of the bundle: a directory, or the same directory in one zip
step: str = ""  # Your code, package.module:Name or file.py:Name; empty asks before any code runs

# %% open
import workbench

panel = workbench.Workbench(bundle, step=step or None)
panel

# %% [markdown]
# ## What to try
#
# 1. **Run to first bad.** The step runs again in a process of its own, from its sealed state. The
#    rail shows how far it came, *Sure?* how it compares with the record, *Ranges* every layer.
# 2. **Diagnose**, in the line *Born at*. *Origin* then shows how the bad value came to be.
# 3. **Change one switch**, Autocast for example, and press **Replay**. A finite run under other
#    conditions is a hint, not a repair: it shows what the failure depends on.
# 4. **Show code** gives the Python for what is on screen. Each button is a method too.

# %% code
# panel.run_to_first_bad(); panel.set_condition("autocast", "off"); panel.replay(); panel.stop()
print(panel.to_code())
