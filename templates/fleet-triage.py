# Many incidents of many runs, grouped by fault. Edit this file, then build the notebook:
#   python -m workbench.reports.build_templates

# %% [markdown]
# # Fleet triage
#
# A store of bundles: kinds, stages, modules, steps, groups and why they are groups. Run it with
# `workbench triage URL --report fleet.html`. Nothing is replayed and no code is run.

# %% parameters tags=["parameters"]
store: str = ""  # The store: a folder, s3://bucket/incidents, gs://, http:// and others of fsspec
since: str = ""  # Only incidents since a date, or so long ago: 12h, 7d, 2w
known: str = ""  # Fingerprints that are known already, with commas between, or a file of them
jobs: int = 8  # Bundles read at a time
title: str = ""  # Title of the page; empty makes one from the store
author: str = ""  # Who answers for this report; never taken from the system

# %% load doing="Reading manifests and ledgers of the store"
from workbench.reports import fleets

fleet = fleets.load(store, since=since, known=known, jobs=jobs, title=title, author=author)

# %% first-screen doing="Writing the first screen"
fleets.first_screen(fleet)

# %% [markdown]
# ## Groups
#
# Incidents of one group have the same fault as far as the evidence says.

# %% groups
fleets.groups(fleet)

# %% [markdown]
# ## Kinds, stages and modules

# %% counts
fleets.counts(fleet)

# %% [markdown]
# ## Steps

# %% steps
fleets.steps(fleet)

# %% [markdown]
# ## Ranks

# %% ranks
fleets.ranks(fleet)

# %% [markdown]
# ## Incidents

# %% incidents
fleets.incidents(fleet)

# %% [markdown]
# ## Not read

# %% unreadable
fleets.unreadable(fleet)

# %% [markdown]
# ## How to check this report

# %% check
fleets.check(fleet)
