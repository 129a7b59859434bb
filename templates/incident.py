# The report of one incident. Edit this file, then build the notebook that papermill runs:
#   python -m workbench.reports.build_templates

# %% [markdown]
# # Incident report
#
# One page about one training step that met NaN or Inf. Run it with
# `workbench report BUNDLE -o report.html`, or with papermill and the parameters below.

# %% parameters tags=["parameters"]
bundle: str = ""  # Path of the bundle: a directory, or the same directory in one zip
step: str = ""  # Code of the step, package.module:Name or file.py:Name; empty runs no code
trust: str = ""  # "import" or "source": use the code that the bundle names or carries
show_samples: bool = False  # Whether sample identifiers may stand in the report
title: str = ""  # Title of the page; empty makes one from the incident
author: str = ""  # Who answers for this report; never taken from the system

# %% load doing="Reading the bundle and its findings"
from workbench.reports import sections

incident = sections.load_incident(
    bundle, step=step, trust=trust, show_samples=show_samples, title=title, author=author
)

# %% first-screen doing="Writing the first screen"
sections.first_screen(incident)

# %% [markdown]
# ## Stages
#
# A step runs in ten stages. *Caught at* is the gate that tripped; *born at* is where the value
# went bad.

# %% stages
sections.stages(incident)

# %% [markdown]
# ## Origin

# %% origin
sections.origin(incident)

# %% [markdown]
# ## Counterfactuals

# %% counterfactuals
sections.counterfactuals(incident)

# %% [markdown]
# ## Ranges

# %% ranges
sections.ranges(incident)

# %% [markdown]
# ## Timeline

# %% timeline
sections.timeline(incident)

# %% [markdown]
# ## Notes

# %% notes
sections.notes(incident)

# %% [markdown]
# ## Environment

# %% environment
sections.environment(incident)

# %% [markdown]
# ## How to check this report

# %% check
sections.check(incident)
