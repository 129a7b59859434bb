# %% [markdown]
# # Eager against compiled
#
# A norm in float16. Run op by op, `+ 1e-9` rounds to nothing and the result is NaN. A compiler
# that keeps middle values in float32 gives a number. Neither is a bug of the compiler.
#
# The step is in `steps/half_norm.py`. Inductor needs a C++ compiler; without one the ladder says
# so.

# %% record
import tempfile

from steps.half_norm import Step, record

import workbench

bundle = workbench.open_bundle(record(tempfile.mkdtemp()))
findings = workbench.diagnose(bundle, step=Step())
print("\n".join(findings.summary))

# %% [markdown]
# ## The ladder
#
# The same step uncompiled, traced by dynamo alone (`eager`), and compiled by inductor. Masks are
# compared before errors: a NaN on one side is a difference whatever the numbers are.

# %% ladder
from workbench.diagnose.ladder import ladder

found = ladder(bundle, step=Step(), backends=("eager", "inductor"), search_compiler=False)
for rung in found.rungs:
    print(f"{rung.backend:<10} {rung.error or rung.values['loss']}")
print("the first that differs:", found.first)

# %% [markdown]
# ## What follows
#
# The failure belongs to the code as it is written: the eps cannot be held in float16. That the
# compiled step is finite is a hint about rounding, not a repair, and another version of the
# compiler may round again. Use an eps that the dtype can hold, or compute the norm in float32.
