"""The kit for integrations: where a framework's run belongs, what its calls are answered, exact patching."""

from otel_toolguard.adapter.answers import Answers, advised, dealt_with, made, made_async
from otel_toolguard.adapter.beside import instrumented_by, traced_within
from otel_toolguard.adapter.layers import once, telling
from otel_toolguard.adapter.overlay import overlay
from otel_toolguard.adapter.patches import Patches
from otel_toolguard.adapter.recent import Recent
from otel_toolguard.adapter.runs import FrameworkRuns, at_model, counted, stop_of
from otel_toolguard.adapter.stops import Reason, native, stop_in
from otel_toolguard.adapter.tools import GuardedTool, GuardedTools, asked, defaults_in
from otel_toolguard.adapter.tracing import continued
from otel_toolguard.adapter.zero_code import ToolGuardInstrumentor, lazily
from otel_toolguard.attempt import Attempt
from otel_toolguard.callables import AnyOf
from otel_toolguard.calls import outside
from otel_toolguard.errors import CircuitOpen, SessionStopped
from otel_toolguard.guard import unfelt
from otel_toolguard.outcomes import Ended, failed_result
from otel_toolguard.place import Place, here
from otel_toolguard.session import Session
from otel_toolguard.telemetry.context import session_in_context

__all__ = [
    "Answers", "AnyOf", "Attempt", "CircuitOpen", "Ended", "FrameworkRuns", "GuardedTool", "GuardedTools", "Patches",
    "Place", "Reason", "Recent", "Session", "SessionStopped", "ToolGuardInstrumentor", "advised", "asked", "at_model",
    "continued", "counted", "dealt_with", "defaults_in", "failed_result", "here", "instrumented_by", "lazily", "made",
    "made_async", "native", "once", "outside", "overlay", "session_in_context", "stop_in", "stop_of", "telling",
    "traced_within", "unfelt",
]  # fmt: skip
