"""Content that an instrumentation captured does not get past the Collector, wherever it stands."""

from __future__ import annotations

import json

import pytest
import raw_otlp
from services.collector import Collector
from services.otlp import said
from services.places import json_of, text_of, until
from services.sender import Sender, trace_id
from services.stack import run_demo, telemetry

# The names under which instrumentations tell what was said and done.
CONTENT = {
    "GenAI conventions": [
        *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions"),
        *("gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "gen_ai.retrieval.documents"),
        *("gen_ai.retrieval.query.text", "gen_ai.memory.query.text", "gen_ai.evaluation.explanation"),
    ],
    "older and other spellings": [
        *(
            "gen_ai.prompt",
            "gen_ai.completion",
            "gen_ai.prompt.0.content",
            "gen_ai.completion.11.tool_calls.0.arguments",
        ),
        *("gen_ai.content.prompt", "gen_ai.content.completion", "gen_ai.event.content", "gen_ai.request.messages"),
        *("gen_ai.tool.input", "gen_ai.tool.output", "gen_ai.tool.result", "gen_ai.tool.args", "gen_ai.tool.message"),
        *("gen_ai.response.text", "gen_ai.response.tool_calls", "gen_ai.agent.system_instructions", "gen_ai.input"),
    ],
    "OpenLLMetry": [
        *("traceloop.entity.input", "traceloop.entity.output", "traceloop.prompt.template_variables"),
        *("traceloop.prompt.template", "mcp.response.value", "mcp.request.argument", "db.query.result.0.document"),
        *("llm.completions.0.content", "llm.request.functions.0.parameters"),
    ],
    "OpenInference": [
        *("input.value", "output.value", "llm.input_messages.0.message.content", "llm.prompts.0", "metadata"),
        *("llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments", "llm.function_call"),
        *("llm.invocation_parameters", "llm.prompt_template.variables", "tool.parameters", "tool.json_schema"),
        *("retrieval.documents.0.document.content", "reranker.query", "reranker.input_documents.0.document.content"),
        *("embedding.embeddings.0.embedding.text", "input.audio.transcript"),
    ],
    "Logfire and Pydantic AI": [
        *(
            "input",
            "output",
            "events",
            "all_messages_events",
            "final_result",
            "pydantic_ai.all_messages",
            "logfire.msg",
        ),
        *("request_data", "response_data", "tool_arguments", "tool_response", "model_request_parameters"),
        *("request", "response", "raw_input", "args", "return"),
    ],
    "others": [
        *("langfuse.observation.input", "langfuse.trace.output", "langfuse.observation.metadata.x"),
        *("gcp.vertex.agent.llm_request", "gcp.vertex.agent.llm_response", "gcp.vertex.agent.tool_call_args"),
        *("gcp.vertex.agent.tool_response", "gcp.vertex.agent.data", "ai.prompt.messages", "ai.toolCall.args"),
        *("mlflow.spanInputs", "braintrust.output_json", "haystack.component.input"),
    ],
    "coding agents": [
        *("prompt", "user_prompt", "tool_parameters", "tool_input", "full_command", "function_args", "arguments"),
        *("request_text", "response_text", "body"),
    ],
    "the process": ["process.command_args", "process.command_line", "exception.stacktrace"],
}
ALL = [name for names in CONTENT.values() for name in names]
# Names that look like those, and must stay.
KEPT = {
    "gen_ai.tool.name": "search",
    "gen_ai.tool.call.id": "call_1",
    "gen_ai.tool.description": "looks things up",
    "gen_ai.prompt.name": "greeting",
    "gen_ai.usage.input_tokens": 17,
    "gen_ai.output.type": "text",
    "gen_ai.conversation.id": "c1",
    "gen_ai.response.finish_reasons": ["stop"],
    "llm.model_name": "m",
    "llm.token_count.prompt": 17,
    "llm.token_count.completion": 4,
    "langfuse.observation.prompt.name": "greeting",
    "ai.response.finishReason": "stop",
    "input.mime_type": "text/plain",
    "tool_input_size_bytes": 20,
    "prompt_length": 12,
    "db.query.text": "SELECT 1",
    "exception.type": "ValueError",
    "http.response.status_code": 200,
    "url.query": "page=2",
    "toolguard.signature": "search:0123456789abcdef",
    "toolguard.session.id": "s1",
    "toolguard.result.hash": "0123456789abcdef",
    "toolguard.limit": 8.5,
    "toolguard.cycle": ["search:0123456789abcdef", "read:0123456789abcdef"],
}
# Events of spans, of the kinds that tell one message each.
EVENTS = {
    "gen_ai.user.message": ["content"],
    "gen_ai.tool.message": ["content"],
    "gen_ai.choice": ["message", "tool.result"],
    "gen_ai.content.prompt": ["gen_ai.prompt"],
}
MESSAGES = [{"role": "user", "parts": [{"type": "text", "content": "<content of messages>"}]}]
# Bodies of logs that are more than text, and what is left of them.
BODIES = {
    "a name": ({"content": "<content of body>", "index": 1, "role": "user"}, {"index": 1, "role": "user"}),
    "a dotted name": ({"gen_ai.input.messages": "<content of body>", "index": 2}, {"index": 2}),
    "a map in a map": ({"message": {"content": "<content of body>"}}, "(removed)"),
    "a list": ([{"content": "<content of body>"}], "(removed)"),
    "JSON as text": (json.dumps({"messages": [{"content": "<content of body>"}]}), "(removed)"),
    "JSON after words": ("asked: " + json.dumps({"user_input": "<content of body>"}), "(removed)"),
    "no content": ({"jobs": {"done": 3, "input_files": 4}}, {"jobs": {"done": 3, "input_files": 4}}),
    "text": ("the content of 3 messages was read", "the content of 3 messages was read"),
}


def mark(name):
    return f"<content of {name}>"


def left(text, names):
    """The names whose content is anywhere in a text."""
    return [name for name in names if mark(name) in text]


@pytest.fixture(scope="module")
def captured(stack):
    """All content in all places of a span and a log record, and everything that came out again, as text."""
    content = {name: mark(name) for name in ALL}
    deep = {"some": {"map": content | {"list": [content]}}}
    events = [("an event", content), *((name, {"role": "user", "id": "1"} | marks(name)) for name in EVENTS)]
    span = raw_otlp.span("chat", content | {"deep": deep}, events=events, error="x" * 300 + mark("status"))
    logs = [raw_otlp.log("an answer", content | {"deep": deep})]
    resource = content | {"service.name": "captured"}
    raw_otlp.send(stack.collector, resource, content, spans=[span], logs=logs)
    answer = until(lambda: json_of(f"{stack.jaeger.ui}/api/v3/traces/{span['traceId']}"))
    (log,) = stack.collector.logs(service="captured")
    assert log["text"] == "an answer"
    return json.dumps(answer) + (stack.collector.folder / "logs.jsonl").read_text(encoding="utf-8")


def marks(event):
    """The content of an event, marked by the event's name too."""
    return {name: mark(f"{event} {name}") for name in EVENTS[event]}


@pytest.mark.parametrize("source", CONTENT)
def test_no_content_is_left(captured, source):
    """Under none of a source's names content is left in spans, events, logs, scopes, resources or maps in maps."""
    assert left(captured, CONTENT[source]) == []


@pytest.mark.parametrize("event", EVENTS)
def test_no_content_is_left_in_an_event_that_tells_a_message(captured, event):
    """Of an event of the conventions on a span the event is left, and not what was said."""
    assert f'"name": "{event}"' in captured
    assert left(captured, [f"{event} {name}" for name in EVENTS[event]]) == []


def test_a_status_description_is_cut(captured, stack):
    """The first 256 characters of a description are left, whole ones, and of an exception's message as well."""
    assert left(captured, ["status"]) == []
    message = {"exception.type": "ValueError", "exception.message": "é" * 300}
    span = raw_otlp.span("cut", message, error="é" * 300, events=[("exception", message)])
    raw_otlp.send(stack.collector, {"service.name": "cut"}, spans=[span])
    (seen,) = stack.jaeger.trace(span["traceId"])
    assert seen["status"]["message"] == seen["said"]["exception.message"] == "é" * 256
    assert json.dumps(seen["events"]).count("\\u00e9") == 256


def test_the_rest_is_untouched(stack):
    """Names that only look like content, and everything of the guard, arrive as they were, also on logs."""
    with Sender(stack.collector, service="untouched") as sender:
        span = sender.span("execute_tool search", KEPT, event=KEPT, error="failed")
        sender.log("an answer", KEPT)
    (seen,) = stack.jaeger.trace(trace_id(span))
    (log,) = stack.collector.logs(service="untouched")
    assert seen["said"] == KEPT
    assert log["said"] == KEPT
    assert said(seen["events"][0]["attributes"]) == KEPT
    assert (seen["name"], seen["events"][0]["name"], log["text"]) == ("execute_tool search", "an event", "an answer")


def test_messages_are_known_by_what_they_are(stack):
    """Messages as JSON in an attribute that nobody knows go as well, and other JSON stays."""
    texts = {"mine": json.dumps(MESSAGES), "twice": json.dumps({"x": json.dumps(MESSAGES)}), "other": '{"a": ["b"]}'}
    span = raw_otlp.span("unknown", texts, error="failed")
    raw_otlp.send(stack.collector, {"service.name": "unknown"}, spans=[span])
    (seen,) = stack.jaeger.trace(span["traceId"])
    assert seen["said"] == {"mine": "(removed)", "twice": "(removed)", "other": '{"a": ["b"]}'}


@pytest.mark.parametrize("kind", BODIES)
def test_content_is_taken_out_of_the_body_of_a_log(stack, kind):
    """Whatever a body is, content in it goes, and a body without content stays."""
    body, expected = BODIES[kind]
    service = f"body with {kind}"
    raw_otlp.send(stack.collector, {"service.name": service}, logs=[raw_otlp.log(body)])
    (log,) = stack.collector.logs(service=service)
    assert log["text"] == expected


@pytest.mark.parametrize("place", ["event name", "attribute"])
def test_an_event_of_the_conventions_loses_its_body(stack, place):
    """A log record that is an event of the GenAI conventions keeps who, which and what model, and nothing that was said."""
    said = {"role": "user", "message": mark("message"), "gen_ai.request.model": "m"}
    by_name = place == "event name"
    named = {} if by_name else {"event.name": "gen_ai.user.message"}
    record = raw_otlp.log({"anything": mark("body")}, said | named, event="gen_ai.user.message" if by_name else "")
    raw_otlp.send(stack.collector, {"service.name": f"event by {place}"}, logs=[record])
    (log,) = stack.collector.logs(service=f"event by {place}")
    assert log["text"] == "(removed)"
    assert log["said"] == {"role": "user", "gen_ai.request.model": "m"} | named


def test_no_content_is_left_of_metrics(stack):
    """Content is on no series, and not in what is told of the resource; what tells series apart is."""
    content = {name: mark(name) for name in ALL}
    metric = raw_otlp.counter("content.calls", content | {"gen_ai.tool.name": "search"})
    resource = content | {"service.name": "content-metrics", "service.instance.id": "i1", "service.version": "7"}
    raw_otlp.send(stack.collector, resource, content, metrics=[metric])
    assert stack.collector.total("content_calls_total", at_least=1, gen_ai_tool_name="search", job="content-metrics")
    (about,) = stack.collector.metrics("target_info", job="content-metrics")
    assert about.labels["service_version"] == "7"
    page = text_of(f"http://{stack.collector.prometheus}/metrics")
    assert left(page, ALL) == []


def test_the_guards_own_capture_is_taken_out(stack):
    """Arguments that the guard was told to capture are on the spans at Jaeger's door, and gone behind the Collector."""
    capture = {
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_AND_EVENT",
        "TOOLGUARD_CAPTURE_ARGUMENTS": "1",
    }
    seen = {}
    for name, to in (("straight", stack.jaeger), ("collected", stack.collector)):
        runs = run_demo(telemetry(to, service=f"content-{name}", **capture), "--limit", "3")
        spans = stack.jaeger.trace(runs["loop"]["trace_id"], spans=7)
        keys = {key for span in spans for key in span["said"]}
        seen[name] = keys & {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"}
    assert seen["straight"]
    assert seen["collected"] == set()


def test_the_small_collector_takes_content_out_of_attributes(stack, start):
    """collector-core.yaml removes the commonest names from spans and series, and keeps the rest."""
    collector = start(Collector, stack.jaeger.grpc_address, "collector-core.yaml")
    names = [name for source in ("GenAI conventions", "older and other spellings") for name in CONTENT[source]]
    names += ["input.value", "traceloop.entity.input", "llm.prompts.0", "tool.parameters", "prompt", "tool_input"]
    content = {name: mark(name) for name in names}
    span = raw_otlp.span("execute_tool search", content | KEPT)
    metric = raw_otlp.counter("core.calls", content | {"gen_ai.tool.name": "search"})
    raw_otlp.send(collector, {"service.name": "core"}, spans=[span], metrics=[metric])
    (seen,) = stack.jaeger.trace(span["traceId"])
    assert seen["said"] == KEPT
    assert collector.total("core_calls_total", at_least=1, gen_ai_tool_name="search") == 1
    assert left(text_of(f"http://{collector.prometheus}/metrics"), names) == []
