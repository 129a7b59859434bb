# One step under eager code and compile backends. Edit this file, then build the notebook:
#   python -m workbench.reports.build_templates

# %% [markdown]
# # Backend ladder
#
# The recorded step, uncompiled and under each backend of `torch.compile`, each with one more part
# of the compiler than the one before. Run it with
# `workbench report BUNDLE --template backend-ladder --step file.py:Name`.

# %% parameters tags=["parameters"]
bundle: str = ""  # Path of the bundle: a directory, or the same directory in one zip
step: str = ""  # Code of the step, package.module:Name or file.py:Name
trust: str = ""  # "import" or "source": use the code that the bundle names or carries
backends: str = "eager aot_eager aot_eager_decomp_partition inductor"  # Backends, in order
search_compiler: bool = False  # Ask torch's compiler bisector where inductor is first to differ
timeout_s: float = 1800.0  # Longest time the compiler bisector may take, in seconds
title: str = ""  # Title of the page; empty makes one from the incident
author: str = ""  # Who answers for this report; never taken from the system

# %% load doing="Reading the bundle"
from workbench.reports import ladders, sections

incident = sections.load_incident(bundle, title=title, author=author)

# %% climb doing="Running the step under each backend"
asked = {"backends": backends, "search_compiler": search_compiler, "timeout_s": timeout_s}
found = ladders.run(incident, bundle, step, trust, **asked)

# %% first-screen doing="Writing the first screen"
ladders.first_screen(found)

# %% [markdown]
# ## Runs

# %% runs
ladders.runs(found)

# %% [markdown]
# ## Where they part

# %% partings
ladders.partings(found)

# %% [markdown]
# ## Environment

# %% environment
sections.environment(incident)

# %% [markdown]
# ## How to check this report

# %% check
sections.check(incident, replayed="The step, once for each run listed above, by this report.")
