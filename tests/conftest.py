"""Settings for all tests: one thread (small tensors gain nothing from more), a calibration cache of their own."""

import os
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["DPSWEEP_CACHE"] = tempfile.mkdtemp(prefix="dpsweep-cache-")
