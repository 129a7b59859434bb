# Which checkpoints of a run may be trained on, and which were. Edit this file, then build:
#   python -m workbench.reports.build_templates

# %% [markdown]
# # Checkpoint audit
#
# The states of a directory of checkpoints, what their scans saw, who changed what and why, and
# what re-entered training. Nothing is scanned and nothing is changed. Run it with
# `workbench report --template checkpoint-audit -p directory CHECKPOINTS`.

# %% parameters tags=["parameters"]
directory: str = ""  # Folder that training saves its checkpoints to
runs: str = ""  # Folder with the runs' ledgers; they say what each run started from
title: str = ""  # Title of the page; empty makes one from the folder's name
author: str = ""  # Who answers for this report; never taken from the system

# %% load doing="Reading the states of the checkpoints"
from workbench.reports import audits

audit = audits.load(directory, runs, title=title, author=author)

# %% first-screen doing="Writing the first screen"
audits.first_screen(audit)

# %% [markdown]
# ## Checkpoints

# %% checkpoints
audits.checkpoints(audit)

# %% [markdown]
# ## What was found bad

# %% bad
audits.bad(audit)

# %% [markdown]
# ## What re-entered training

# %% training
audits.training(audit)

# %% [markdown]
# ## Who changed what

# %% changes
audits.changes(audit)

# %% [markdown]
# ## How to check this report

# %% check
audits.check(audit)
