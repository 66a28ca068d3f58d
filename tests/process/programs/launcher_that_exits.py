"""`ett …`, in a process that ends at once with code N when somebody writes N into the file $EXIT_WITH."""

import os
import threading
import time
from pathlib import Path

from ett.cli import main


def wait_for_order(path: Path) -> None:
    while not path.exists() or not (text := path.read_text()):
        time.sleep(0.02)
    os._exit(int(text))


threading.Thread(target=wait_for_order, args=(Path(os.environ["EXIT_WITH"]),), daemon=True).start()
main()
