from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from ett import errors
from ett.error_pages import PAGES, command

ROOT = Path(__file__).parents[2]
FOLDERS = ("ett", "checkpoint", "recovery", "compile_cache", "trainer", "dashboards", "alerts")
CODE = re.compile(r"""code=["']([A-Z]\d{3})["']|ETT-([A-Z]\d{3})\b|code, exit_code = ["']([A-Z]\d{3})["']""")


def codes_used() -> set[str]:
    texts = [path.read_text() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {next(filter(None, groups)) for text in texts for groups in CODE.findall(text)}


def test_every_code_that_is_used_has_a_page_and_no_page_is_idle() -> None:
    assert codes_used() == set(PAGES)


def test_pages_name_the_exit_code_of_their_class() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.EttError)]
    wrong = [cls.code for cls in classes if PAGES[cls.code][1] != cls.exit_code]
    assert not wrong


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "exit_codes.md").read_text()
    assert not [exit_code for _, exit_code, _ in PAGES.values() if f"| {exit_code} |" not in text]


def test_a_code_is_found_as_it_was_printed() -> None:
    for given in ("ETT-L121", "L121", "l121"):
        assert CliRunner().invoke(command, [given]).output.startswith("ETT-L121: the restart policy gave up")
