"""Makes what stands here and in tests/reference importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "reference"))
sys.path.append(str(Path(__file__).parent))
