"""Secrets are masked wherever they stand, and what only looks like one arrives as it was."""

from __future__ import annotations

import json

import pytest
import raw_otlp
from services.places import json_of, text_of, until

# Put together here, so that no scanner takes this file for a leak.
SECRETS = {
    "AWS key": "AKIA" + "Q" * 16,
    "Google key": "AIza" + "a1B2c" * 7,
    "GitHub token": "ghp_" + "a1B2" * 9,
    "GitHub fine-grained token": "github_pat_" + "a1B2" * 10,
    "GitLab token": "glpat-" + "a1B2-" * 5,
    "OpenAI key": "sk-" + "proj-" + "a1B2" * 8,
    "older OpenAI key": "sk-" + "a1B2" * 12,
    "Anthropic key": "sk-" + "ant-api03-" + "a1B2_" * 6,
    "OpenRouter key": "sk-" + "or-v1-" + "0a1b" * 16,
    "Langfuse key": "sk-" + "lf-0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f",
    "Groq key": "gsk_" + "a1B2" * 12,
    "Hugging Face token": "hf_" + "aBcD" * 9,
    "LangSmith key": "lsv2_" + "pt_" + "0a1b" * 8 + "_0a1b2c",
    "Slack token": "xoxb-" + "1234567890-abcdef",
    "Stripe key": "sk_live_" + "a1B2" * 6,
    "JSON web token": "eyJ" + "hbGciOiJIUzI1NiJ9" + "." + "eyJzdWIiOiIxMjM0In0" + "." + "c2lnbmF0dXJl",
    "bearer header": "Bearer " + "0123456789abcdef0123",
    "basic header": "Basic " + "dXNlcjpwYXNzd29yZA==",
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
}
# In these a name or a place tells that it is one; what is masked, and what is left around it.
TOLD = {
    "AWS secret key": ("aws_secret_access_key=hunter2/K7MDENG", "aws_secret_****"),
    "password in JSON": ('{"user": "u", "password": "hunter2", "page": 2}', '{"user": "u", "****", "page": 2}'),
    "password in JSON in JSON": (r'{"a": "{\"password\": \"hunter2\"}"}', r'{"a": "{\"****\"}"}'),
    "password in a dictionary": ("{'password': 'hunter2'}", "{'****'}"),
    "password with a quote in it": (r'{"password": "a\"hunter2", "b": 1}', '{"****", "b": 1}'),
    "key in an address": ("https://h/?api_key=hunter2&page=2", "https://h/?****&page=2"),
    "user in an address": ("https://u:hunter2@h:8080/path", "https:****h:8080/path"),
    "key with a dot": ("api.key=hunter2 pwd=hunter2", "**** ****"),
    "token in an address": ("https://h/?token=hunter2&page=2", "https://h/?****&page=2"),
    "header as text": ("authorization: token hunter2", "****"),
}
NAMES = [
    *(
        "api_key",
        "http.request.header.authorization",
        "db.password",
        "client_secret",
        "aws.credentials",
        "clientSecret",
    ),
    *(
        "api.key",
        "private.key",
        "access_key",
        "accessKey",
        "session.token",
        "pwd",
        "token",
        "connection_string",
        "id_token",
    ),
    *("http.request.header.cookie", "private_key", "access_token", "session.auth_token", "X-Api-Key", "AWS_SECRET_KEY"),
]
# Ids, names and texts in which a part looks like the beginning of a secret.
INNOCENT = [
    *("task-0b2c1a8e-1111-2222-3333-444455556666", "desk-research-assistant-agent", "ask-the-knowledge-base-search"),
    *("flask-api-0123456789abcdef0123456789", "risk-assessment-of-large-customers", "disk-0123456789abcdef01234567"),
    *("sk-learn-random-forest-classifier", "my-sk-or-cz-translation-agent", "webhook_0123456789abcdefghijkl"),
    *("high_shf_abcdefghijklmnopqrstuvwxyzabcd", "monkeyJabcdefghijkl.mnopqrstuvwx.yz", "tasks.sk-1"),
    *(
        "XAKIAQQQQQQQQQQQQQQQQ",
        "ghs_list_all_open_pull_requests_of_us",
        "the bearer understands",
        "basic responsibilities",
    ),
    *(
        "http://localhost:8080/users/me@example.com",
        "tokens: 17, passwordless: yes",
        "see //docs/a:b",
        "secretary: Ann",
    ),
    *("0b2c1a8e11112222333344445555666677778888", "host-1:4711", "arn:aws:iam::123456789012:role/reader"),
]
KEYS_KEPT = ["gen_ai.usage.input_tokens", "secretary", "token.count", "author"]


def hidden(secret):
    """A secret as it would stand in JSON."""
    return json.dumps(secret)[1:-1]


@pytest.fixture(scope="module")
def everywhere(stack):
    """All secrets in all places but a link, and everything that came out again, as text."""
    texts = {f"note.{index}": f"before {secret} after" for index, secret in enumerate(SECRETS.values())}
    named = dict.fromkeys(NAMES, "hunter2")
    deep = {"map": {"in": {"a": {"map": texts | named}}}, "list": list(SECRETS.values())}
    events = [("an event", texts | named | deep), *((f"event {secret}", {}) for secret in SECRETS.values())]
    spans = [raw_otlp.span("all", texts | named | deep, events=events, error="failed")]
    spans += [raw_otlp.span(f"name {secret}", error=f"failed with {secret}") for secret in SECRETS.values()]
    logs = [raw_otlp.log(body, texts | named | deep) for body in (*texts.values(), deep, list(texts.values()), named)]
    logs.append(raw_otlp.log("an event", event=f"an event {SECRETS['AWS key']}"))
    # Labels of Prometheus: of two names that it spells alike it would drop the series.
    labels = {name.replace(".", "_"): value for name, value in (texts | named).items()}
    metrics = [raw_otlp.counter("redacted.calls", labels)]
    resource = labels | deep | {"service.name": "secrets"}
    raw_otlp.send(stack.collector, resource, labels, spans=spans, logs=logs, metrics=metrics)
    traces = [until(lambda at=span: json_of(f"{stack.jaeger.ui}/api/v3/traces/{at['traceId']}")) for span in spans]
    assert len(stack.collector.logs(service="secrets", at_least=len(logs))) == len(logs)
    assert stack.collector.total("redacted_calls_total", at_least=1) == 1
    assert stack.collector.total("traces_span_metrics_calls_total", at_least=len(spans), job="secrets") == len(spans)
    page = text_of(f"http://{stack.collector.prometheus}/metrics")
    return json.dumps(traces) + (stack.collector.folder / "logs.jsonl").read_text(encoding="utf-8") + page


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_masked_wherever_it_stands(everywhere, kind):
    """It is in no attribute, list, map, event, scope, resource, span name, status, log or series; what is around it is."""
    assert hidden(SECRETS[kind]) not in everywhere
    assert "before **** after" in everywhere
    assert "failed with ****" in everywhere
    assert '"name": "name ****"' in everywhere
    assert '"name": "event ****"' in everywhere


def test_what_a_name_calls_a_secret_is_masked(everywhere):
    """A value is masked by its attribute's name, in maps and bodies too."""
    assert "hunter2" not in everywhere


@pytest.mark.parametrize("kind", TOLD)
def test_a_secret_that_its_surroundings_tell_is_masked(stack, kind):
    """In text it is masked by the name before it or by its place in an address, and the rest of the text is left."""
    text, expected = TOLD[kind]
    span = raw_otlp.span(text, {"a.text": text}, error=text, events=[(text, {"a.text": text})])
    raw_otlp.send(stack.collector, {"service.name": "told"}, spans=[span], logs=[raw_otlp.log(text)])
    (seen,) = stack.jaeger.trace(span["traceId"])
    (event,) = seen["events"]
    assert [seen["said"]["a.text"], seen["name"], seen["status"]["message"], event["name"]] == [expected] * 4
    assert expected in [log["text"] for log in until(lambda: stack.collector.logs(service="told"))]


@pytest.mark.parametrize("innocent", INNOCENT)
def test_what_only_looks_like_a_secret_arrives_as_it_was(stack, innocent):
    """It is whole as an id, a name and a text, of spans, events and logs."""
    said = dict.fromkeys(
        ["toolguard.session.id", "gen_ai.tool.name", "gen_ai.conversation.id", "session.id", "note"], innocent
    )
    resource = {"service.name": innocent, "service.instance.id": innocent, "host.name": innocent}
    span = raw_otlp.span(innocent, said, error=innocent, events=[(innocent, said)])
    raw_otlp.send(stack.collector, resource, spans=[span], logs=[raw_otlp.log(innocent, said)])
    (seen,) = stack.jaeger.trace(span["traceId"])
    (log,) = stack.collector.logs(service=innocent)
    (event,) = seen["events"]
    assert seen["said"] == log["said"] == said
    assert resource.items() <= seen["resource"].items()
    assert {seen["name"], seen["status"]["message"], event["name"], log["text"]} == {innocent}


def test_two_processes_stay_two(stack):
    """Counters of processes and tools are separate series, even if their ids were to look like secrets."""
    ids = [f"sk-{'a1B2' * 8}{n}" for n in range(2)]
    for one in ids:
        metric = raw_otlp.counter("processes.calls", {"gen_ai.tool.name": one, "toolguard.rule": one})
        resource = {"service.name": "processes", "service.instance.id": one}
        raw_otlp.send(stack.collector, resource, metrics=[metric])
    assert stack.collector.total("processes_calls_total", at_least=2) == 2
    series = stack.collector.metrics("processes_calls_total", job="processes")
    assert sorted(sample.labels["instance"] for sample in series) == ids
    assert sorted(sample.labels["gen_ai_tool_name"] for sample in series) == ids


def test_names_that_only_look_like_those_of_secrets(stack):
    """An attribute whose name has a word like token or secretary in it keeps its value."""
    said = dict.fromkeys(KEYS_KEPT, "17")
    span = raw_otlp.span("names", said, error="failed")
    raw_otlp.send(stack.collector, {"service.name": "names"}, spans=[span])
    (seen,) = stack.jaeger.trace(span["traceId"])
    assert seen["said"] == said


def test_a_link_cannot_be_reached(stack):
    """What stands in a link arrives as it was sent, as the README says: no processor of this release looks there."""
    span = raw_otlp.span("linked", error="failed", links=[{"a.note": "told here"}])
    raw_otlp.send(stack.collector, {"service.name": "linked"}, spans=[span])
    (seen,) = stack.jaeger.trace(span["traceId"])
    assert "told here" in json.dumps(seen["links"])
