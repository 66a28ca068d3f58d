from __future__ import annotations

import pytest

from ett.errors import UsageError
from ett.hooks.hook_names import HOOKS, parse_hooks
from ett.hooks.session import STANDS_DOWN_FOR


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", set(HOOKS)),
        ("", set(HOOKS)),
        ("none", set()),
        ("steps", {"steps"}),
        (" steps , samples", {"steps", "samples"}),
        ("-eval", set(HOOKS) - {"eval"}),
        ("-eval,-saves", set(HOOKS) - {"eval", "saves"}),
        ("all,-eval", set(HOOKS) - {"eval"}),
        ("none,steps", {"steps"}),
        ("steps,saves,-saves", {"steps"}),
    ],
)
def test_a_text_names_the_hooks_that_are_on(text: str, names: set[str]) -> None:
    assert set(parse_hooks(text)) == names


@pytest.mark.parametrize("text", ["step", "all,-evel", "steps;samples"])
def test_an_unknown_hook_is_an_error_with_the_nearest_name(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_hooks(text)
    assert "did you mean" in str(raised.value.expected)


def test_every_hook_knows_what_the_program_may_say_instead() -> None:
    assert STANDS_DOWN_FOR.keys() == HOOKS.keys()
