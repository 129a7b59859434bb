# Two incidents side by side. Edit this file, then build the notebook:
#   python -m workbench.reports.build_templates

# %% [markdown]
# # Incident comparison
#
# Two bundles: what is the same, what differs, non-finite elements before values. Run it with
# `workbench report BUNDLE BUNDLE --template incident-comparison`. Code runs only where it is named.

# %% parameters tags=["parameters"]
bundle: str = ""  # Path of the first bundle: a directory, or the same directory in one zip
other: str = ""  # Path of the second bundle
step: str = ""  # Code of the step of the first, package.module:Name or file.py:Name; empty: none
other_step: str = ""  # Code of the step of the second; empty: the code of the first
trust: str = ""  # "import" or "source": use the code that the bundles name or carry
title: str = ""  # Title of the page; empty makes one from the incidents
author: str = ""  # Who answers for this report; never taken from the system

# %% load doing="Reading the first bundle"
from workbench.reports import comparisons, sections

about = {"title": title, "author": author}
a = sections.load_incident(bundle, step=step, trust=trust, **about)

# %% load-other doing="Reading the second bundle"
b = sections.load_incident(other, step=other_step or step, trust=trust, **about)

# %% compare doing="Comparing what the two bundles recorded"
found = comparisons.compare(a, b, bundle, other)

# %% first-screen doing="Writing the first screen"
comparisons.first_screen(found)

# %% [markdown]
# ## Facts

# %% facts
comparisons.facts(found)

# %% [markdown]
# ## Non-finite elements, then values
#
# Two tensors are compared by shape and dtype, then by which elements are NaN or infinite, then by
# values where both are finite.

# %% tensors
comparisons.tensors(found)

# %% [markdown]
# ## Conditions and environment

# %% surroundings
comparisons.surroundings(found)

# %% [markdown]
# ## History

# %% history
comparisons.history(found)

# %% [markdown]
# ## How to check this report

# %% check
comparisons.check(found)
