"""Makes what stands in tests/reference importable, and lets an example of Hypothesis take as long as it does: a busy
machine makes a fast one slow.
"""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.append(str(Path(__file__).parent / "reference"))
settings.register_profile("ett", deadline=None)
settings.load_profile("ett")
