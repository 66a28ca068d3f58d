"""docs/store.md: its commands are run, as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_the_commands_of_the_page_do_what_it_says(
    tmp_path: Path, case_log: Callable[[Any], Any], store_url: str
) -> None:
    cases = json.loads((ROOT / "tests" / "ett" / "cases" / "handed.json").read_text())["cases"]
    for name, case in (("ctr-aaaa", cases[1]), ("ctr-bbbb", cases[7])):
        case_log(case | {"id": name}).write(tmp_path / "jobs" / name)
    page = (ROOT / "docs" / "store.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    script = f'set -eux\nett() {{ "{sys.executable}" -m ett "$@"; }}\n' + "".join(blocks)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ETT_")}
    environ |= {
        "ETT_HOME": str(tmp_path),
        "NEW": store_url,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listed = done.stdout.splitlines()[-2:]
    assert {line.split()[0] for line in listed} == {"ctr-aaaa", "ctr-bbbb"}
