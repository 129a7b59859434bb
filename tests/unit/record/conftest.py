import sys
from pathlib import Path

# the steps are imported under one name here and in fresh processes, as a user's module is
sys.path.insert(0, str(Path(__file__).parent))
