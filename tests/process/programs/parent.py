"""Start a child in the session and one outside it, and live for long; the second attempt ends at once."""

import subprocess
import sys
import time

import ett

run = ett.init()
if run.attempt > 1:
    sys.exit(0)
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("started", flush=True)
time.sleep(600)
