"""Every name this library emits or looks for, and the requirement level and source of each.

Levels: *required*, *conditional*, *recommended* and *development* are those of the OpenTelemetry GenAI conventions (all
of them in development, except ``error.type``, which is stable); *ours* are names in the ``toolguard`` namespace, on by
default. No other file spells a name, so that a renamed attribute is one changed line here.
"""

from __future__ import annotations

from typing import Final

SCOPE_NAME: Final = "otel_toolguard"  # instrumentation scope of all three signals
# The last version of the main registry that owned the gen_ai names.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"

# --- Tool span, GenAI conventions: model/gen-ai/spans.yaml, "execute_tool" ---
OPERATION: Final = "gen_ai.operation.name"  # required, at start: samplers read it
EXECUTE_TOOL: Final = "execute_tool"  # the operation's value, and the first word of the span's name
TOOL_NAME: Final = "gen_ai.tool.name"  # required, at start
TOOL_TYPE: Final = "gen_ai.tool.type"  # recommended, at start: function, extension or datastore
AGENT_NAME: Final = "gen_ai.agent.name"  # conditional: an agent is known
CALL_ID: Final = "gen_ai.tool.call.id"  # recommended, at end: the model's id of the call
# Not of execute_tool, but applications may add it to any span: conditional, if the caller gave one.
CONVERSATION_ID: Final = "gen_ai.conversation.id"
ERROR_TYPE: Final = "error.type"  # conditional (stable): the call failed or was refused

# --- error.type values ---
CIRCUIT_OPEN: Final = "otel_toolguard.CircuitOpen"  # every refusal, whatever class a framework made of it
UNKNOWN_TOOL: Final = "(unknown)"  # gen_ai.tool.name on metrics, for names that a model invented

# --- Tool span, ours ---
TOOL_CLASS: Final = "toolguard.tool.class"  # str, start: read write exec build network mcp agent other
SESSION_ID: Final = "toolguard.session.id"  # str, start, if there is a session
RUN_ID: Final = "toolguard.run.id"  # str, start, if there is a run
SIGNATURE: Final = "toolguard.signature"  # str, end: {tool}:{16 hex}; never on a metric
SIGNATURE_CALLS: Final = "toolguard.signature.calls"  # int, end: this signature in this run, this call included
RUN_CALLS: Final = "toolguard.run.calls"  # int, end: admissions so far
SESSION_CALLS: Final = "toolguard.session.calls"  # int, end: admissions so far
OUTCOME: Final = "toolguard.outcome"  # str, end: ok failed refused cancelled interrupted closed unknown
FAILURE: Final = "toolguard.failure"  # str, end, if failed: transient or permanent
REPEAT_LENGTH: Final = "toolguard.repeat.length"  # int, end, from the second lap: calls in one lap
REPEAT_COUNT: Final = "toolguard.repeat.count"  # int, end, from the second lap: laps so far
WARNED: Final = "toolguard.warned"  # list of str, end: rules at half or three quarters of their limit
TRIPPED: Final = "toolguard.tripped"  # bool true: this call opened a circuit (for tail sampling)
WOULD_TRIP: Final = "toolguard.would_trip"  # bool true: it would have, were the rules enforced
RULE: Final = "toolguard.rule"  # str, trip and refusal: the plugin's name
SCOPE: Final = "toolguard.scope"  # str, trip and refusal: signature tool run session
LIMIT: Final = "toolguard.limit"  # double, trip and refusal
OBSERVED: Final = "toolguard.observed"  # double, trip and refusal
MODE: Final = "toolguard.mode"  # str, trip, trip event and trip counter: enforce or observe
CYCLE: Final = "toolguard.cycle"  # list of str, trip by a rule that knows a cycle: signatures in order

# --- Content, only where it was asked for; on our own spans, for a host tells or leaves out its own ---
ARGUMENTS: Final = "gen_ai.tool.call.arguments"  # opt-in, at end: JSON text
RESULT: Final = "gen_ai.tool.call.result"  # opt-in, at end: JSON text
RESULT_HASH: Final = "toolguard.result.hash"  # str, opt-in, at end: the fingerprint that rules compare
CUT: Final = "toolguard.cut"  # list of str, opt-in, at end: which of the two are not all of it

# --- Metrics ---
DURATION: Final = "gen_ai.execute_tool.duration"  # histogram, s: development, GenAI conventions; not for refusals
DURATION_BUCKETS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
REFUSED: Final = "toolguard.calls.refused"  # counter, {call}: ours
TRIPS: Final = "toolguard.circuit.trips"  # counter, {trip}: ours, 0 from the start for each rule and mode
# Two more histograms, {call}, have the names of span attributes: RUN_CALLS when a run ends, SESSION_CALLS when a
# session's block does; OUTCOME is one of the next two on both.
COMPLETED: Final = "completed"
STOPPED: Final = "tripped"
CALLS_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
PEAK_REPEATS: Final = "toolguard.run.peak_repeats"  # histogram, {call}, when a run ends: what a repeat limit is set by
PEAK_BUCKETS: Final = (1, 2, 3, 5, 8, 13, 15, 20, 25, 30, 40)
DISTINCT_RATIO: Final = "toolguard.run.distinct_ratio"  # histogram, 1, when a run ends: different calls of all
RATIO_BUCKETS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
OTHER_TOOL: Final = "(other)"  # gen_ai.tool.name on metrics, once there are too many tools
OTHER_ERROR: Final = "_OTHER"  # error.type on metrics, once there are too many kinds; the conventions' own word

# --- Events (log records): ours ---
CIRCUIT_OPENED: Final = "toolguard.circuit.opened"  # WARN
CIRCUIT_WARNED: Final = "toolguard.circuit.warned"  # INFO, opt-in: a rule has half, or three quarters, of its limit
SESSION_ENDED: Final = "toolguard.session.ended"  # INFO, opt-in
SHARE: Final = "toolguard.share"  # double, circuit.warned: how much of the limit is used
ENDED_CALLS: Final = "toolguard.report.calls"  # int, session.ended, as are the next three: as in the report
ENDED_FAILED: Final = "toolguard.report.failed"
ENDED_REFUSED: Final = "toolguard.report.refused"
ENDED_STREAK: Final = "toolguard.report.longest_fail_streak"
ENDED_CLASS: Final = "toolguard.report.classes."  # and the class: int, session.ended

# --- What marks another instrumentation's span as a tool span: attribute, value, and where it keeps the tool's name ---
HOST_MARKS: Final = (
    (OPERATION, EXECUTE_TOOL, (TOOL_NAME,)),  # GenAI conventions
    ("openinference.span.kind", "TOOL", ("tool.name", TOOL_NAME)),  # OpenInference
    ("traceloop.span.kind", "tool", (TOOL_NAME, "traceloop.entity.name")),  # OpenLLMetry
    ("logfire.msg_template", "Function: {name}", ("name", TOOL_NAME)),  # Logfire for OpenAI Agents
)
# An instrumentation that does not make its spans current: its module, which has get_current_span(). Until they end its
# spans carry no attributes; that of a tool has the tool's name.
KEEPS_ITS_SPANS: Final = "openinference.instrumentation.langchain"
KEEPS_ITS_SPANS_BY: Final = "LangChainInstrumentor"  # the instrumentor, in that module
# Environment, GenAI conventions: whether content may be told.
CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
# Instrumentations whose scope begins like this record the duration histogram themselves.
RECORDS_DURATION: Final = "opentelemetry.instrumentation.genai"
