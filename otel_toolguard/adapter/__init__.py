"""The kit for integrations: where a framework's run belongs, what its calls are answered, exact patching."""

from otel_toolguard.adapter.answers import Answers, advised, dealt_with, made, made_async
from otel_toolguard.adapter.patches import Patches
from otel_toolguard.adapter.recent import Recent
from otel_toolguard.adapter.runs import FrameworkRuns, at_model, counted, stop_of
from otel_toolguard.adapter.stops import Reason, native, stop_in
from otel_toolguard.adapter.tools import GuardedTool, GuardedTools, asked, defaults_in
from otel_toolguard.adapter.zero_code import ToolGuardInstrumentor, lazily
from otel_toolguard.attempt import Attempt, Place, here, unfelt
from otel_toolguard.errors import CircuitOpen, SessionStopped
from otel_toolguard.outcomes import Ended, failed_result

__all__ = [
    "Answers", "Attempt", "CircuitOpen", "Ended", "FrameworkRuns", "GuardedTool", "GuardedTools", "Patches", "Place",
    "Reason", "Recent", "SessionStopped", "ToolGuardInstrumentor", "advised", "asked", "at_model", "counted",
    "dealt_with", "defaults_in", "failed_result", "here", "lazily", "made", "made_async", "native", "stop_in",
    "stop_of", "unfelt",
]  # fmt: skip
