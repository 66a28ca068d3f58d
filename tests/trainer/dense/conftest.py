"""Makes what stands in tests/reference importable here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "reference"))
