"""Makes what stands in tests/reference importable, and lets an example of Hypothesis take as long as it does, its
drawing as well: a busy machine makes a fast one slow.

Tensors are computed by one thread in each process, as ranks do unless a recipe says otherwise: threads of several
processes that wait for each other on few cores spend a third more on the same work, and much more on a busy machine.
"""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is imported, here and in processes of tests
sys.path.append(str(Path(__file__).parent / "reference"))
settings.register_profile("ett", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ett")
