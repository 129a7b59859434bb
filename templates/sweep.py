# The recorded step under a grid of conditions. Edit this file, then build the notebook:
#   python -m workbench.reports.build_templates

# %% [markdown]
# # Sweep
#
# One recorded step, replayed under many conditions, and the smallest changes that end the
# failure. Run it with `workbench report BUNDLE --template sweep --step file.py:Name`.

# %% parameters tags=["parameters"]
bundle: str = ""  # Path of the bundle: a directory, or the same directory in one zip
step: str = ""  # Code of the step, package.module:Name or file.py:Name
trust: str = ""  # "import" or "source": use the code that the bundle names or carries
conditions: str = ""  # Values to try, as after workbench sweep --set, split by blanks; empty: usual
combine: bool = False  # Run every combination of the values instead of one change at a time
minimal: bool = True  # Look for the smallest changes that end the failure
repeats: int = 1  # Runs of each cell; more than one shows whether a result varies
timeout_s: float = 600.0  # Longest time of one cell, in seconds
title: str = ""  # Title of the page; empty makes one from the incident
author: str = ""  # Who answers for this report; never taken from the system

# %% load doing="Reading the bundle"
from workbench.reports import sections, sweeps

incident = sections.load_incident(bundle, title=title, author=author)

# %% sweep doing="Replaying the step under each of the conditions"
chosen = {"conditions": conditions, "combine": combine, "minimal": minimal}
limits = {"repeats": repeats, "timeout_s": timeout_s}
found = sweeps.run(incident, bundle, step, trust, **chosen, **limits)

# %% first-screen doing="Writing the first screen"
sweeps.first_screen(found)

# %% [markdown]
# ## Cells
#
# Each cell is one replay of the recorded step, in a process of its own.

# %% cells
sweeps.cells(found)

# %% [markdown]
# ## Smallest changes

# %% smallest
sweeps.smallest(found)

# %% [markdown]
# ## What the finite cells show

# %% shows
sweeps.shows(found)

# %% [markdown]
# ## Environment

# %% environment
sections.environment(incident)

# %% [markdown]
# ## How to check this report

# %% check
sections.check(incident, replayed="The step, once for each cell, by this report.")
