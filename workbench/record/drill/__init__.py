"""The drill: faults put into a run on purpose, to see which boundary catches each.

One file a fault in ``faults/``; a fault there is found by its file name.
"""

from workbench.record.drill.fault import Fault, Put
from workbench.record.drill.run import Drill, Row, faults, run_drill

__all__ = ["Drill", "Fault", "Put", "Row", "faults", "run_drill"]
