# Which block of the model, and which op in it. Edit this file, then build the notebook:
#   python -m workbench.reports.build_templates

# %% [markdown]
# # Layer bisect
#
# The block, the part of it and the op where the bad value was born, with few runs and without a
# full trace. Run it with `workbench report BUNDLE --template layer-bisect --step file.py:Name`.

# %% parameters tags=["parameters"]
bundle: str = ""  # Path of the bundle: a directory, or the same directory in one zip
step: str = ""  # Code of the step, package.module:Name or file.py:Name
trust: str = ""  # "import" or "source": use the code that the bundle names or carries
halve: bool = False  # Halve over prefixes of the forward instead of scanning it once
precision: bool = True  # Look for the blocks that must leave low precision
remove: bool = False  # Look for the blocks that must be replaced by identity
title: str = ""  # Title of the page; empty makes one from the incident
author: str = ""  # Who answers for this report; never taken from the system

# %% load doing="Reading the bundle"
from workbench.reports import bisects, sections

incident = sections.load_incident(bundle, title=title, author=author)

# %% bisect doing="Looking for the block where the bad value was born"
asked = {"halve": halve, "precision": precision, "remove": remove}
found = bisects.run(incident, bundle, step, trust, **asked)

# %% first-screen doing="Writing the first screen"
bisects.first_screen(found)

# %% [markdown]
# ## Search

# %% search
bisects.search(found)

# %% [markdown]
# ## Blocks that must change
#
# Finite with blocks changed narrows the failure down to what they do; it repairs nothing.

# %% changes
bisects.changes(found)

# %% [markdown]
# ## Environment

# %% environment
sections.environment(incident)

# %% [markdown]
# ## How to check this report

# %% check
sections.check(incident, replayed="The step, once for each run listed above, by this report.")
