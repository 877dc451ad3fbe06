"""What doctor says of the variables that the SDK reads when it comes up, and of those that the library reads."""

from __future__ import annotations

import os

import pytest

from otel_toolguard import Session, SettingsError, guard_tool

from .doctored import clean, command, report


@pytest.mark.parametrize(
    ("name", "value", "level", "words"),
    [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "abc", "fail", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be"),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "-1", "fail", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"),
        ("OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", "x", "fail", "for logs"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "1", "fail", "max_export_batch_size"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "abc", "warn", "OTEL_BSP_MAX_QUEUE_SIZE"),
        ("OTEL_BLRP_SCHEDULE_DELAY", "0", "fail", "for logs"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0", "fail", "for metrics"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "soon", "warn", "export interval"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "x", "fail", "for metrics"),
        ("OTEL_RESOURCE_ATTRIBUTES", "abc", "warn", "abc"),
        ("OTEL_PROPAGATORS", "bogus", "fail", "names bogus"),
        ("OTEL_PYTHON_ID_GENERATOR", "bogus", "fail", "names bogus"),
        ("OTEL_TRACES_EXPORTER", "bogus", "fail", "names bogus"),
        ("OTEL_LOGS_EXPORTER", " ", "fail", "names nothing"),
        ("OTEL_METRICS_EXPORTER", "none,console", "fail", "names none"),
        ("OTEL_CONFIG_FILE", "sdk.yaml", "warn", "no other variable"),
    ],
)
def test_what_the_sdk_makes_of_a_variable(name, value, level, words, monkeypatch):
    """What the SDK refuses fails, and what it replaces by its default is a warning, in its own words."""
    clean(monkeypatch, **{name: value})
    told = report(code=int(level == "fail"))["export"]["sdk"]
    assert (told["level"], words in told["text"]) == (level, True)


def test_the_sdk_leaves_nothing_running(monkeypatch):
    """Bringing the SDK up for a look leaves no thread and no provider behind."""
    import threading

    from opentelemetry import trace

    clean(monkeypatch)
    before = trace.get_tracer_provider()
    report()
    assert trace.get_tracer_provider() is before
    assert not [thread.name for thread in threading.enumerate() if "Otel" in thread.name]


def test_a_limit_that_breaks_the_import_of_the_sdk():
    """A variable on which the very import of the SDK fails is one failing line in a process of its own."""
    done = command(OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="abc")
    assert (done.returncode, done.stderr) == (1, "")
    assert "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" in done.stdout


@guard_tool
def look(n: int) -> int:
    return n


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOOLGUARD_TELEMETRY", "bogus"),
        ("TOOLGUARD_TELEMETRY", "disabled"),
        ("TOOLGUARD_TELEMETRY", "off "),
        ("TOOLGUARD_TELEMETRY", "OFF"),
        ("TOOLGUARD_TELEMETRY", ""),
        ("TOOLGUARD_MODE", "on"),
        ("TOOLGUARD_MODE", "Observe"),
        ("TOOLGUARD_PROFILE", "Strict"),
        ("TOOLGUARD_STRICT", "maybe"),
        ("TOOLGUARD_STRICT", "NO"),
        ("TOOLGUARD_CAPTURE_ARGUMENTS", "x"),
        ("TOOLGUARD_SIGNATURE_KEY", "k" * 65),
        ("TOOLGUARD_SIGNATURE_KEY", "k" * 64),
        ("TOOLGUARD_STORE", " "),
        ("TOOLGUARD_STORE", "Memory"),
        ("TOOLGUARD_STORE", "memory:"),
        ("TOOLGUARD_STORE", "sqlite:///x?ttl=soon"),
        ("TOOLGUARD_CONFIG", "/no/such/file"),
        ("TOOLGUARD_CONFIG", " "),
        ("TOOLGUARD_CONFIG", os.devnull),
    ],
)
def test_doctor_fails_where_a_session_does(name, value, monkeypatch):
    """A value of each of our variables fails here exactly if a session in the agent raises."""
    clean(monkeypatch, **{name: value})
    try:
        with Session():
            look(1)
    except SettingsError:
        code = 1
    else:
        code = 0
    found = [each for section in report(code=code).values() for each in section.values()]
    assert any(each["level"] == "fail" for each in found) == bool(code)
