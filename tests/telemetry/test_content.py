"""Arguments, results and the words of errors: told only where asked for, bounded, typed and redacted."""

import json
import math

import pytest

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.telemetry import content

ARGUMENTS, RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
WORDS = {None: False, "": False, "NO_CONTENT": False, "EVENT_ONLY": False, "SPAN_ONLY": True, "span_and_event": True}


def a_call(**arguments):
    return ToolCall("search", "search:0123456789abcdef", arguments=arguments)


def made(told, telemetry, call, outcome=None, **ending):
    live = telemetry.start(call, session_id="s1", run_id="r1")
    telemetry.end(live, call, outcome or Outcome("ok", exact="ab12"), None, None, seconds=0.1, **ending)
    return told.spans()[-1]


@pytest.mark.parametrize(("said", "captured"), WORDS.items(), ids=str)
def test_the_standard_variable_decides(told, monkeypatch, said, captured):
    """Arguments and result are on the span where the GenAI conventions' variable says so, and by default are not."""
    monkeypatch.delenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", raising=False)
    if said is not None:
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", said)
    span = made(told, told.telemetry(), a_call(q="shoes", n=2), result=["boots"])
    names = {ARGUMENTS, RESULT, "toolguard.result.hash"}
    assert names & set(span.attributes) == (names if captured else set())
    if captured:
        assert (span.attributes[ARGUMENTS], span.attributes[RESULT]) == ('{"n": 2, "q": "shoes"}', '["boots"]')
        assert span.attributes["toolguard.result.hash"] == "ab12"


def test_code_goes_before_the_variable(told, monkeypatch):
    """What the constructor says holds, whatever the environment does."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    assert ARGUMENTS not in made(told, told.telemetry(content=False), a_call(q="shoes")).attributes


def test_a_call_without_a_result_has_none(told):
    """A body that raised, and a refused call, have no result; a body that returned None has "null"."""
    telemetry = told.telemetry(content=True)
    assert RESULT not in made(told, telemetry, a_call(), Outcome("failed")).attributes
    assert made(told, telemetry, a_call(), result=None).attributes[RESULT] == "null"


def test_a_host_tells_its_own(told):
    """On another instrumentation's span content is left to that one's settings."""
    host = {"gen_ai.operation.name": "execute_tool"}
    with told.tracing.get_tracer("host").start_as_current_span("host", attributes=host):
        telemetry = told.telemetry(content=True)
        live = telemetry.start(a_call(q="shoes"), session_id="s1", run_id="r1")
        telemetry.end(live, a_call(q="shoes"), Outcome("ok"), None, None, seconds=0.1, result="boots")
    assert {ARGUMENTS, RESULT}.isdisjoint(told.spans()[0].attributes)


class Odd:
    """Refuses whatever is asked of it."""

    def __repr__(self):
        raise ZeroDivisionError

    __str__ = __len__ = __iter__ = __hash__ = __repr__


VALUES = {
    "text": ("plain", "plain"),
    "none": (None, "null"),
    "truth": ([True, False], "[true, false]"),
    "not finite": ([math.nan, math.inf, -math.inf], '["nan", "inf", "-inf"]'),
    "too large for 64 bits": ({"n": 10**30, "m": -(2**63)}, '{"m": -9223372036854775808, "n": "<builtins.int>"}'),
    "bytes": (b"abc", '"<builtins.bytes>"'),
    "set": ({1}, "[1]"),
    "mixed list": ([1, "a", None, 1.5], '[1, "a", null, 1.5]'),
    "keys of other types": ({1: "a", None: "b", (1, 2): "c"}, '{"1": "a", "None": "b", "[1, 2]": "c"}'),
    "surrogate": (["a\ud800b"], '["a?b"]'),
    "nul": ("a\0b", "a\ufffdb"),
}


@pytest.mark.parametrize(("value", "text"), VALUES.values(), ids=VALUES)
def test_values_become_json(value, text):
    """JSON values stay what they are, with sorted keys; anything else is named by its type, and all of it is UTF-8."""
    assert content.Content(None).json(RESULT, value) == (text, False)


def test_odd_values():
    """An object that refuses everything is its type; a mapping that raises is a placeholder; nothing is raised."""
    assert content.Content(None).json(RESULT, {"a": Odd()})[0].endswith('Odd>"}')

    class Broken(dict):
        def __iter__(self):
            raise ZeroDivisionError("words of the value")

    assert content.Content(None).json(RESULT, Broken(a=1)) == ("(redaction failed)", False)
    circle = []
    circle.append(circle)
    assert content.Content(None).json(RESULT, circle) == ('[[[[[[[["…"]]]]]]]]', True)


LARGE = {
    "text": "x" * 12_000_000,
    "wide text": "\U0001f600" * 1_000_000,
    "list": ["x" * 100] * 100_000,
    "dict": {f"key{n}": n for n in range(100_000)},
    "one key": {"k" * 1_000_000: 1},
    "nested": {"a": [{"b": "x" * 1_000_000}] * 50},
}


@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
def test_large_values(told, value):
    """However large arguments and result are, each is 4 KiB on the span, which says that they were cut."""
    span = made(told, told.telemetry(content=True), a_call(q=value), result=value)
    for name in (ARGUMENTS, RESULT):
        assert 100 < len(span.attributes[name].encode()) <= 4096
    assert span.attributes["toolguard.cut"] == (ARGUMENTS, RESULT)
    whole = sum(len(value.encode()) for value in span.attributes.values() if isinstance(value, str))
    assert whole <= 65536


def test_only_as_much_as_is_told_is_looked_at():
    """Of a list that never ends no more is taken than there is room for."""
    taken = []

    class Endless(list):
        def __iter__(self):
            for number in range(10**9):
                taken.append(number)
                yield number

    content.Content(None).json(RESULT, Endless())
    assert len(taken) < 10_000


def test_a_cut_is_not_claimed_where_there_was_none(told):
    """A value that is told whole has no mark."""
    assert "toolguard.cut" not in made(told, told.telemetry(content=True), a_call(q="a"), result="b").attributes


SECRETS = {
    "named": {"password": "hunter2hunter2", "API_KEY": 5, "nested": {"auth": ["a"]}},
    "in an address": {"url": "https://user:hunter2hunter2@host/"},
    "of a known form": {"text": "use sk-hunter2hunter2 please"},
    "bearer": "Authorization: Bearer hunter2hunter2",
}


@pytest.mark.parametrize("value", SECRETS.values(), ids=SECRETS)
def test_secrets_are_masked_even_where_content_is_told(value):
    """What is named like a secret, or has the form of one, is masked before anybody's redactor sees it."""
    seen = []
    told, _ = content.Content(lambda name, text: seen.append(text) or text).json(RESULT, value)
    assert "hunter2" not in told + seen[0]
    assert "(redacted)" in told


def test_a_secret_that_the_cut_would_divide(told):
    """A secret at the place of the cut is masked first."""
    text = "x" * (4096 - 70) + " sk-hunter2hunter2hunter2 " + "y" * 5000
    assert "hunter2" not in made(told, told.telemetry(content=True), a_call(), result=text).attributes[RESULT]


def test_the_redactor_decides(told):
    """A redactor is asked by attribute, sees the text as it would be told, and may change or drop it."""
    asked = []

    def redact(name, text):
        asked.append((name, text))
        return None if name == ARGUMENTS else text.replace("boots", "***")

    telemetry = told.telemetry(content=True, redact=redact)
    span = made(told, telemetry, a_call(q="shoes"), result="boots")
    assert (span.attributes.get(ARGUMENTS), span.attributes[RESULT]) == (None, "***")
    assert asked == [(ARGUMENTS, '{"q": "shoes"}'), (RESULT, "boots")]
    failed = Outcome("failed", error_type="OSError")
    assert made(told, telemetry, a_call(), failed, message="no boots").status.description == "no ***"


@pytest.mark.parametrize("answer", [lambda: 1 / 0, lambda: 5, lambda: b"boots"], ids=["raises", "number", "bytes"])
def test_a_redactor_that_fails(told, answer, caplog):
    """A redactor that raises, or returns what is no text, has a placeholder told, never the value."""
    telemetry = told.telemetry(content=True, redact=lambda name, text: answer())
    failed = Outcome("failed", error_type="OSError")
    span = made(told, telemetry, a_call(q="shoes-4711"), failed, result="boots-4711", message="words-4711")
    assert "4711" not in json.dumps(dict(span.attributes)) + str(span.status.description)
    assert {span.attributes[name] for name in (ARGUMENTS, RESULT)} == {"(redaction failed)"}
    assert span.attributes["toolguard.outcome"] == "failed"
    assert "4711" not in caplog.text


def test_without_capture_nobody_is_asked(told):
    """By default values are not even turned into text."""
    telemetry = told.telemetry(content=False, redact=lambda name, text: pytest.fail("asked"))
    made(told, telemetry, a_call(q=Odd()), result=Odd())
