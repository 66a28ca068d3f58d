"""Puts this folder's `jagged_batches` on the path: test files import it by that name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
