"""Content and secrets that an instrumentation captured do not get past the Collector, wherever they stand."""

from __future__ import annotations

import json

import pytest
from services.collector import Collector
from services.places import until
from services.sender import Sender, trace_id
from services.stack import run_demo, telemetry

# The names under which instrumentations tell what was said and done.
CONTENT = [
    *("gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "gen_ai.input.messages", "gen_ai.output.messages"),
    *("gen_ai.system_instructions", "gen_ai.prompt", "gen_ai.completion", "gen_ai.prompt.0.content"),
    *("gen_ai.completion.11.tool_calls.0.arguments", "gen_ai.retrieval.documents", "gen_ai.retrieval.query.text"),
    *("traceloop.entity.input", "traceloop.entity.output", "input.value", "output.value"),
    *("llm.input_messages.0.message.content", "llm.output_messages.0.message.content", "llm.prompts.0"),
    *("retrieval.documents.0.document.content", "reranker.input_documents.0.document.content"),
    *("embedding.embeddings.0.embedding.text", "input", "output", "events", "all_messages_events", "final_result"),
    *("pydantic_ai.all_messages", "request_data", "response_data", "tool_arguments", "tool_response"),
    *("langfuse.observation.input", "langfuse.trace.output"),
]
# Names that look like those, and must stay.
KEPT = {
    "gen_ai.tool.name": "search",
    "gen_ai.tool.call.id": "call_1",
    "gen_ai.prompt.name": "greeting",
    "gen_ai.usage.input_tokens": 17,
    "gen_ai.output.type": "text",
    "gen_ai.conversation.id": "c1",
    "llm.model_name": "m",
    "input.mime_type": "text/plain",
    "toolguard.signature": "search:0123456789abcdef",
    "toolguard.session.id": "s1",
    "toolguard.result.hash": "0123456789abcdef",
    "toolguard.limit": 8.5,
    "toolguard.cycle": ["search:0123456789abcdef", "read:0123456789abcdef"],
}
# Put together here, so that no scanner takes this file for a leak.
SECRETS = {
    "AWS key": "AKIA" + "Q" * 16,
    "JSON web token": "eyJ" + "hbGciOiJIUzI1NiJ9" + "." + "eyJzdWIiOiIxMjM0In0" + "." + "c2lnbmF0dXJl",
    "model provider's key": "sk-" + "proj-" + "a1B2" * 8,
    "GitHub token": "ghp_" + "a1B2" * 9,
    "Slack token": "xoxb-" + "1234567890-abcdef",
    "bearer header": "Bearer " + "0123456789abcdef0123",
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
}
NAMES = [
    *("api_key", "http.request.header.authorization", "db.password", "client_secret", "aws.credentials"),
    *("http.request.header.cookie", "private_key", "access_token", "session.auth_token", "X-Api-Key"),
]


def mark(name):
    return f"<content of {name}>"


def left(answer, wanted=CONTENT):
    """The names whose content is anywhere in an answer."""
    text = json.dumps(answer)
    return [name for name in wanted if mark(name) in text]


@pytest.fixture(scope="module")
def captured(stack):
    """A span, an event on it, its resource and two log records, all full of content; and as they came out again."""
    content = {name: mark(name) for name in CONTENT}
    with Sender(stack.collector, service="captured", resource=content) as sender:
        span = sender.span("execute_tool search", content | KEPT, event=content, error="x" * 300 + mark("status"))
        sender.log("an answer", content | KEPT)
        sender.log({"content": mark("body"), "index": 1, "role": "user"}, content)
        sender.log({"message": {"text": mark("message")}}, event="gen_ai.choice")
        sender.log(mark("old event"), {"event.name": "gen_ai.user.message"})
    (seen,) = stack.jaeger.trace(trace_id(span))
    return seen, stack.collector.logs(service="captured", at_least=4)


def test_no_content_is_left_of_a_span(captured):
    """Of the span, its event, its resource and the end of its status no content reached Jaeger."""
    span, _logs = captured
    assert span["events"]
    assert left(span, [*CONTENT, "status"]) == []


def test_no_content_is_left_of_logs(captured):
    """Of attributes, structured bodies and events of the GenAI conventions no content reached the log file."""
    _span, logs = captured
    assert len(logs) == 4
    assert left(logs, [*CONTENT, "body", "message", "old event"]) == []


def test_the_rest_is_untouched(captured):
    """Names that only look like content, and everything of the guard, arrive as they were, also on logs."""
    span, logs = captured
    (log,) = [log for log in logs if log["text"] == "an answer"]
    assert {name: span["said"].get(name) for name in KEPT} == KEPT
    assert {name: log["said"].get(name) for name in KEPT} == KEPT
    assert [log["text"] for log in logs if isinstance(log["text"], dict)] == [{"index": 1, "role": "user"}]


def test_secrets_are_masked_wherever_they_stand(stack):
    """A key in an attribute, a list, an event, a resource or the text of a log becomes ****, what is around it stays."""
    texts = {f"note.{index}": f"before {secret} after" for index, secret in enumerate(SECRETS.values())}
    named = dict.fromkeys(NAMES, "hunter2")
    with Sender(stack.collector, service="secrets", resource=texts | named) as sender:
        lists = {"list": list(SECRETS.values())}
        span = sender.span("execute_tool search", texts | named | lists, event=texts | named, error="failed")
        for text in texts.values():
            sender.log(text, texts | named)
    (seen,) = stack.jaeger.trace(trace_id(span))
    logs = stack.collector.logs(service="secrets", at_least=len(SECRETS))
    everything = json.dumps([seen, logs])
    assert [kind for kind, secret in SECRETS.items() if json.dumps(secret)[1:-1] in everything] == []
    assert "hunter2" not in everything
    assert {seen["said"][name] for name in texts} == {"before **** after"}
    assert {log["text"] for log in logs} == {"before **** after"}


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
    """collector-core.yaml removes the conventions' content from spans, and keeps the rest."""
    collector = start(Collector, stack.jaeger.grpc_address, "collector-core.yaml")
    names = [name for name in CONTENT if name.startswith("gen_ai.") and "retrieval" not in name]
    with Sender(collector, service="core") as sender:
        span = sender.span("execute_tool search", {name: mark(name) for name in names} | KEPT)
    seen = until(lambda: stack.jaeger.trace(trace_id(span)))
    assert left(seen, names) == []
    assert {name: seen[0]["said"].get(name) for name in KEPT} == KEPT
