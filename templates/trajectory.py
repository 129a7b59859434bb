# The kept steps before an incident, replayed. Edit this file, then build the notebook:
#   python -m workbench.reports.build_templates

# %% [markdown]
# # Trajectory
#
# Every kept step from the oldest recovery point to the incident, replayed: where it first departs
# from the record, and what first left its usual range. Run it with
# `workbench report BUNDLE --template trajectory --step file.py:Name`.

# %% parameters tags=["parameters"]
bundle: str = ""  # Path of the bundle: a directory, or the same directory in one zip
step: str = ""  # Code of the step, package.module:Name or file.py:Name
trust: str = ""  # "import" or "source": use the code that the bundle names or carries
parameters: int = 20  # How many parameters the table of ranges names at most
title: str = ""  # Title of the page; empty makes one from the incident
author: str = ""  # Who answers for this report; never taken from the system

# %% load doing="Reading the bundle"
from workbench.reports import sections, trajectories

incident = sections.load_incident(bundle, title=title, author=author)

# %% replay doing="Replaying the kept steps"
found = trajectories.run(incident, bundle, step, trust, parameters)

# %% first-screen doing="Writing the first screen"
trajectories.first_screen(found)

# %% [markdown]
# ## Steps

# %% steps
trajectories.steps(found)

# %% [markdown]
# ## Ranges

# %% ranges
trajectories.ranges(found)

# %% [markdown]
# ## Environment

# %% environment
sections.environment(incident)

# %% [markdown]
# ## How to check this report

# %% check
sections.check(incident, replayed="Every kept step, by this report.")
