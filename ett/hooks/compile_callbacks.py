"""torch.compile's own callbacks -> span `compile`. They are private to torch: no other file knows them (2.11 to 2.13).

torch calls back when a compilation begins and when the outermost one ends: of a new graph, of a recompile, and of a
backward graph, which is compiled at its first use. `torch._dynamo.reset()` forgets all callbacks; ours come back.
"""

from __future__ import annotations

from typing import Any

from ett.hooks.around import around, quiet
from ett.hooks.session import HookSession, OpenSpan


class CompileCallbacks:
    """Writes one span for each compilation; `kind` says what of: dynamo (a graph, also again) or lazy_backward."""

    def __init__(self, session: HookSession) -> None:
        self._session = session
        self._span: OpenSpan | None = None
        self._begin, self._end = quiet(self._begun), quiet(self._ended)

    def install(self, module: Any) -> None:
        """Args: module: torch._dynamo.callback, which the program's own use of torch has imported."""
        handler = module.callback_handler
        self._register(handler)
        handler.clear = around(handler.clear, lambda *_: handler, lambda *_: self._register(handler))

    def _register(self, handler: Any) -> None:
        handler.register_start_callback(self._begin)
        handler.register_end_callback(self._end)

    def _begun(self, *args: Any) -> None:
        session = self._session
        session.work()
        if self._span is None and session.is_on("compile"):
            trigger = getattr(args[0], "callback_trigger", None) if args else None
            kind = str(getattr(trigger, "name", "")).lower()
            self._span = session.begin_span("compile", kind=kind)

    def _ended(self, *args: Any) -> None:
        span, self._span = self._span, None
        if span is not None:
            self._session.end_span(span)
