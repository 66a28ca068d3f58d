"""What a program does before its first step: imports, the first device context, the process group, moving modules."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ett.hooks.around import patch, unpatch
from ett.hooks.session import HookSession, OpenSpan
from ett.hooks.step_hook import StepHook


class StartUpHooks:
    """Spans of the start-up; each is over, and its hook gone, by the first step."""

    def __init__(self, session: HookSession, steps: StepHook) -> None:
        self._session, self._steps = session, steps
        self._imports: OpenSpan | None = None
        self._is_moving = self._is_starting_device = False
        self._module_class: Any = None
        self._cuda: Any = None

    def begin_imports(self) -> None:
        """The process has just begun; its imports end with the last one before anything else is seen."""
        if self._session.is_on("imports"):
            self._imports = self._session.begin_span("imports")
        self._session.on_work = self.end_imports
        self._session.run.before_work = self._session.work

    def end_imports(self) -> None:
        span, self._imports = self._imports, None
        if span is not None:
            # An import of which only the begin is seen may have lasted longer; so the end is inferred.
            self._session.end_span(span, self._session.watch.last_import_ns, inferred=True)

    def imported_late(self, module: ModuleType) -> None:
        """A large module that torch itself imports at its first use: `torch._dynamo`, by the first optimizer."""
        session = self._session
        begin_ns = session.watch.began_ns.get(module.__name__)
        if begin_ns is not None and session.on_work is None and not self._steps.num_steps and session.is_on("imports"):
            session.end_span(session.begin_span("imports", begin_ns))

    def install(self, torch: Any) -> None:
        self._module_class, self._cuda = torch.nn.Module, torch.cuda
        for name in ("to", "cuda"):
            patch([torch.nn.Module], name, self._before_move, self._after_move)
        patch([torch.cuda], "_lazy_init", self._before_device, self._after_device)

    def install_distributed(self, torch: Any) -> None:
        distributed = torch.distributed
        if hasattr(distributed, "init_process_group"):  # absent from a torch that was built without it
            owners = [distributed.distributed_c10d, distributed]
            patch(owners, "init_process_group", self._before_group, self._after)

    def _before_group(self, args: object, kwargs: object) -> OpenSpan | None:
        return self._begin("process_group")

    def _before_device(self, args: object, kwargs: object) -> OpenSpan | None:
        if self._is_starting_device or self._cuda.is_initialized():  # it calls itself, and once more for each check
            return None
        span = self._begin("device_init")
        self._is_starting_device = span is not None
        return span

    def _after_device(self, span: OpenSpan, result: object, is_done: bool) -> None:
        self._is_starting_device = False
        self._session.end_span(span)
        if self._cuda.is_initialized():
            unpatch(self._cuda, "_lazy_init")  # torch asks before every call to the device

    def _before_move(self, args: tuple[Any, ...], kwargs: object) -> OpenSpan | None:
        if self._steps.num_steps:
            for name in ("to", "cuda"):
                unpatch(self._module_class, name)
            return None
        if self._is_moving:
            return None
        span = self._begin("model_build")
        self._is_moving = span is not None
        return span

    def _after_move(self, span: OpenSpan, result: object, is_done: bool) -> None:
        self._is_moving = False
        self._session.end_span(span)

    def _begin(self, name: str) -> OpenSpan | None:
        self._session.work()
        return self._session.begin_span(name) if self._session.is_on(name) else None

    def _after(self, span: OpenSpan, result: object, is_done: bool) -> None:
        self._session.end_span(span)
