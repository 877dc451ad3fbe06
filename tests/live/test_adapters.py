"""What comes to Jaeger and the Collector from the adapters' examples, run with `opentelemetry-instrument`."""

from __future__ import annotations

import os
from functools import cache

import pytest
from exported import CLIENT, INTERNAL, SERVER, WITHIN, Example, calls_by_run, of_the_guard, tripping
from services.collector import Collector

AGENT, GRAPH = Example("langchain"), Example("langchain", "own_graph.py")
HOST = Example("mcp", "host.py", later=1, names_calls=False)
CLAUDE = Example("claude_agent_sdk", tool="WebSearch", tool_class="network")
EXAMPLES = [AGENT, GRAPH, HOST, Example("openai_agents"), Example("pydantic_ai"), CLAUDE]
CALLS = 6  # that the default rules let a run make which repeats itself
TURNS = 50  # after which the half without the guard is ended by the framework

ADMITTED, REFUSED = 3, 3
REFUSING = f"""
[[tool_plugins]]
plugin = "call_ceiling"
tools = {{ "*" = {ADMITTED} }}
[[tool_plugins]]
plugin = "max_refusals"
limit = {REFUSED}
"""

for_each_example = pytest.mark.parametrize("example", EXAMPLES, ids=str)
in_both_ways = pytest.mark.parametrize("way", ["in code", "zero code"])


@pytest.fixture(scope="module")
def collector(stack, had):
    """A Collector in front of the stack's Jaeger that keeps every trace, and decides soon."""
    keep = {"COLLECTOR_KEEP_PERCENT": "100", "COLLECTOR_DECISION_WAIT": "1s"}
    with had(), Collector(stack.jaeger.grpc_address, settings=keep) as collector:
        yield collector


@pytest.fixture(scope="module")
def told(collector, stack, tmp_path_factory):
    """What a run of an example told, in one of some ways; each is run once: ``told(example, way, guarded)``."""
    rules = tmp_path_factory.mktemp("rules") / "refusing.toml"
    rules.write_text(REFUSING)
    others = "langchain"  # the entry point of the framework's own instrumentation

    @cache
    def run(example, way, guarded):
        if example.missing:
            end = pytest.fail if os.environ.get("CI") else pytest.skip
            end(f"no {' and no '.join(example.missing)}: `make live` makes them")
        ours = f"toolguard_{example.folder}"
        within, off, more = {
            "in code": ((), f"{ours},{others}", {}),
            "zero code": ((), others, {}),
            "refusing": ((WITHIN,), f"{ours},{others}", {"TOOLGUARD_CONFIG": str(rules)}),
            "both": ((WITHIN,), others, {"TOOLGUARD_MODE": "observe", "LANGGRAPH_DEFAULT_RECURSION_LIMIT": "100"}),
            "beside": ((), ours, {}),
        }[way]
        made = example.run(way, collector, *within, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=off, **more)
        return made, made.spans(stack.jaeger, collector, guarded=guarded)

    return run


@pytest.fixture
def stopped(told):
    """A run that the default rules stopped: in code after the unguarded half, zero code in place of it."""

    def run(example, way):
        later = example.later if way == "in code" else 0
        made, spans = told(example, way, CALLS + later)
        return made, spans, CALLS + later

    return run


@for_each_example
def test_an_example_ends_as_without_telemetry(example, stopped):
    """The example tells its whole story: going on for ever without the guard, stopped with it, and the next run."""
    made, _spans, _calls = stopped(example, "in code")
    assert made.done.returncode == 0, made.done.stderr
    assert all(part in made.done.stdout for part in ("without the guard", "stopped", "next run"))


@for_each_example
def test_zero_code_stops_what_has_no_guard(example, stopped):
    """With the entry point on, the half of the example that has no line of ours ends by our exception."""
    made, _spans, _calls = stopped(example, "zero code")
    assert made.done.returncode == 1
    assert "Stopped: Repeats and failures since the last progress" in made.done.stderr
    assert "stopped" not in made.done.stdout


@for_each_example
@in_both_ways
def test_each_call_is_one_span(example, way, stopped):
    """The guarded calls, and only they, are one span each, numbered without a gap, with all that describes a call."""
    _made, spans, count = stopped(example, way)
    calls = of_the_guard(spans)
    assert sorted(calls_by_run(calls).values()) == sorted([list(range(1, CALLS + 1)), [1]][: 1 + count - CALLS])
    for span in calls:
        said = span["said"]
        assert (span["name"], span["kind"]) == (f"execute_tool {example.tool}", INTERNAL)
        assert (said["gen_ai.operation.name"], said["gen_ai.tool.name"]) == ("execute_tool", example.tool)
        assert (said["toolguard.outcome"], said["toolguard.tool.class"]) == ("ok", example.tool_class)
        assert said["toolguard.signature"].startswith(f"{example.tool}:")
    assert len({span["said"]["toolguard.signature"] for span in calls}) == 1
    assert len({span["spanId"] for span in spans}) == len(spans)
    ids = {span["said"].get("gen_ai.tool.call.id") for span in calls}
    assert len(ids) == (count if example.names_calls else 1)
    assert (None in ids) is not example.names_calls


@for_each_example
def test_a_call_is_a_root_where_nothing_is_above_it(example, stopped):
    """No framework opens a span for an agent by itself: the calls of a session share its id, and no trace."""
    _made, spans, count = stopped(example, "in code")
    calls = of_the_guard(spans)
    assert not any(span.get("parentSpanId") for span in calls)
    assert len({span["traceId"] for span in calls}) == count
    assert {span["said"]["toolguard.session.id"] for span in calls} == {"conversation-42"}
    assert {span["said"]["gen_ai.conversation.id"] for span in calls} == {"conversation-42"}


@for_each_example
@in_both_ways
def test_the_trip_is_on_the_last_call_and_found(example, way, stopped, stack):
    """One span has tripped, the last one of its run, and a search by attribute finds its trace and no other."""
    made, spans, _count = stopped(example, way)
    (trip,) = tripping(spans)
    said = trip["said"]
    assert (said["toolguard.rule"], said["toolguard.mode"]) == ("stagnation", "enforce")
    assert said["toolguard.run.calls"] == CALLS
    assert stack.jaeger.search(made.service, {"toolguard.tripped": "true"}) == {trip["traceId"]}


@for_each_example
@in_both_ways
def test_the_event_of_the_trip_names_its_span(example, way, stopped, collector):
    """The Collector has one log record of the trip, with the ids of the tripping span."""
    made, spans, _count = stopped(example, way)
    (trip,) = tripping(spans)
    (event,) = collector.logs(service=made.service)
    assert event["eventName"] == "toolguard.circuit.opened"
    assert (event["traceId"], event["spanId"]) == (trip["traceId"], trip["spanId"])


@for_each_example
@in_both_ways
def test_metrics_count_what_the_guard_admitted(example, way, stopped, collector):
    """The histogram of durations has each guarded call and none of the unguarded half, and there is one trip."""
    made, _spans, count = stopped(example, way)
    assert collector.total("gen_ai_execute_tool_duration_seconds_count", at_least=count, job=made.service) == count
    assert collector.total("toolguard_circuit_trips_total", at_least=1, job=made.service) == 1


@for_each_example
def test_a_stuck_run_is_one_trace_below_the_applications_span(example, told):
    """In an application's span all calls are children of it, refused ones too, in whatever threads they run."""
    _made, spans = told(example, "refusing", ADMITTED + REFUSED + example.later)
    (root,) = [span for span in spans if span["name"] == "answer"]
    assert {span["traceId"] for span in spans} == {root["traceId"]}
    assert {span["parentSpanId"] for span in of_the_guard(spans)} == {root["spanId"]}


@for_each_example
def test_refused_calls_point_to_the_one_that_tripped(example, told, collector):
    """Once a tool is used up its calls are ERROR spans that link to the first; the last of them also ends the run."""
    made, spans = told(example, "refusing", ADMITTED + REFUSED + example.later)
    calls = of_the_guard(spans)
    first, *others = [span for span in calls if span["said"]["toolguard.outcome"] == "refused"]
    assert len(others) == REFUSED - 1
    assert [link["spanId"] for span in others for link in span["links"]] == [first["spanId"]] * len(others)
    assert all(span["status"]["code"] == 2 and span["said"]["error.type"] for span in (first, *others))
    assert tripping(calls) == [first, others[-1]]
    opened = {log["said"]["toolguard.rule"]: log["spanId"] for log in collector.logs(service=made.service, at_least=2)}
    assert opened == {"call_ceiling": first["spanId"], "max_refusals": others[-1]["spanId"]}
    ran = ADMITTED + example.later
    assert collector.total("gen_ai_execute_tool_duration_seconds_count", at_least=ran, job=made.service) == ran
    assert collector.total("toolguard_calls_refused_total", at_least=REFUSED, job=made.service) == REFUSED


@pytest.mark.parametrize("example", [each for each in EXAMPLES if each != AGENT], ids=str)  # it has no end of its own
def test_entry_point_and_adapter_in_code_count_once(example, told, collector):
    """With both on, and observing, each call of both halves is one span, and neither half is stopped by the guard."""
    count = 2 * TURNS + example.later
    made, spans = told(example, "both", count)
    runs = calls_by_run(of_the_guard(spans))
    assert sorted(runs.values()) == sorted([list(range(1, TURNS + 1))] * 2 + [[1]] * example.later)
    assert not tripping(spans)
    assert any(span["said"].get("toolguard.would_trip") for span in spans)
    assert collector.total("gen_ai_execute_tool_duration_seconds_count", at_least=count, job=made.service) == count


def test_spans_of_the_mcp_sdk_are_below_ours(stopped):
    """The SDK's span of each guarded request is our span's child, the server's is below it, and neither is flagged."""
    _made, spans, count = stopped(HOST, "in code")
    ours = {span["spanId"] for span in of_the_guard(spans)}
    sent = [span for span in spans if span["kind"] == CLIENT and "tools/call" in span["name"]]
    served = [span for span in spans if span["kind"] == SERVER and span["name"].startswith("tools/call")]
    assert len(sent) == len(served) == TURNS + count
    assert {span["parentSpanId"] for span in served} == {span["spanId"] for span in sent}
    assert sorted(span["parentSpanId"] for span in sent if span.get("parentSpanId")) == sorted(ours)


@pytest.mark.parametrize(("example", "above"), [(AGENT, "invoke_agent"), (GRAPH, "invoke_workflow LangGraph")], ids=str)
def test_beside_the_frameworks_instrumentation_its_spans_are_enriched(example, above, told, collector):
    """The tool spans of OpenTelemetry's LangChain instrumentation, below its agent's span, say what the guard found."""
    made, spans = told(example, "beside", CALLS)
    roots = {span["spanId"]: span for span in spans if span["name"] == above}
    calls = of_the_guard(spans)
    assert calls_by_run(calls) == {calls[0]["said"]["toolguard.run.id"]: list(range(1, CALLS + 1))}
    (parent,) = {span["parentSpanId"] for span in calls}
    below = [span for span in spans if span.get("parentSpanId") == parent and span["name"].startswith("execute_tool")]
    assert (parent in roots, below) == (True, calls)
    assert tripping(spans) == [calls[-1]]
    tools = [span for span in spans if span["name"] == f"execute_tool {example.tool}"]
    assert len(tools) == TURNS + CALLS
    (event,) = collector.logs(service=made.service)
    assert event["spanId"] == calls[-1]["spanId"]
