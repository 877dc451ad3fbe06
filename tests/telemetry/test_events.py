"""The optional events: a rule near its limit, a session that ended."""

import pytest
from opentelemetry._logs import SeverityNumber

from otel_toolguard import SettingsError
from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.decision import Permit, Settled
from otel_toolguard.telemetry import Telemetry

WARNED, ENDED = "toolguard.circuit.warned", "toolguard.session.ended"
CALL = ToolCall("search", "search:0123456789abcdef", tool_class="read")
REPORT = {"calls": 12, "failed": 3, "refused": 2, "longest_fail_streak": 2, "classes": {"read": 9, "exec": 3}, "tools": {}}  # fmt: skip


def warn(telemetry, *rules, run="r1", shares=None):
    """A call at whose result these rules warned."""
    live = telemetry.start(CALL, session_id="s1", run_id=run)
    settled = _Shared()
    settled.warned, settled.shares = rules, shares or (0.5,) * len(rules)
    telemetry.end(live, CALL, Outcome("ok"), Permit(1, 1, 1, 1), settled, seconds=0.1)
    return live


class _Shared(Settled):
    shares = ()


def test_by_default_neither_is_emitted(told):
    """Warnings are on the span; events of them, and of a session's end, are for whoever asks."""
    telemetry = told.telemetry()
    warn(telemetry, "repeat_guard")
    telemetry.session_ended("s1", calls=12, tripped=False, report=REPORT)
    assert told.events() == []
    assert told.spans()[0].attributes["toolguard.warned"] == ("repeat_guard",)


@pytest.mark.parametrize("events", ["toolguard.circuit.opened", ["toolguard.circuit.warnt"], [WARNED, ""]])
def test_an_unknown_event(events):
    """An event that there is not, or that is not optional, is an error which names those that are."""
    with pytest.raises(SettingsError, match=r"valid are toolguard\.circuit\.warned, toolguard\.session\.ended"):
        Telemetry(events=events)


def test_a_warning(told):
    """The event of a warning is INFO, in the context of the call's span, with rule, share, tool, session and run."""
    live = warn(told.telemetry(events=WARNED, mode="observe"), "repeat_guard")
    (event,) = told.events()
    assert (event.event_name, event.severity_number, event.severity_text) == (WARNED, SeverityNumber.INFO, "INFO")
    assert dict(event.attributes) == {
        "toolguard.rule": "repeat_guard", "toolguard.share": 0.5, "toolguard.mode": "observe",
        "gen_ai.tool.name": "search", "toolguard.tool.class": "read", "toolguard.signature": CALL.signature,
        "toolguard.session.id": "s1", "toolguard.run.id": "r1",
    }  # fmt: skip
    assert event.body == "The rule repeat_guard has used 50% of its limit."
    assert event.span_id == live.span.get_span_context().span_id


def test_a_warning_is_news_at_half_and_at_three_quarters(told):
    """While a rule goes on warning it is told at a half and at three quarters, and after a fall at each rise again."""
    telemetry = told.telemetry(events=[WARNED])
    for share in (0.5, 0.6, 0.75, 0.9, 0.5, 0.8):
        warn(telemetry, "repeat_guard", shares=(share,))
    assert [event.attributes["toolguard.share"] for event in told.events()] == [0.5, 0.75, 0.8]


def test_each_rule_and_run_has_its_own(told):
    """What one rule, or one run, was told of says nothing about another."""
    telemetry = told.telemetry(events=[WARNED])
    for rules, run in ((("a", "b"), "r1"), (("a", "b"), "r1"), (("a",), "r2")):
        warn(telemetry, *rules, run=run)
    said = [(event.attributes["toolguard.rule"], event.attributes["toolguard.run.id"]) for event in told.events()]
    assert said == [("a", "r1"), ("b", "r1"), ("a", "r2")]


def test_what_is_remembered_of_warnings_is_bounded(told):
    """Runs that nobody hears of again are forgotten."""
    telemetry = told.telemetry(events=[WARNED])
    for number in range(3000):
        warn(telemetry, "repeat_guard", run=f"r{number}")
    assert len(telemetry._warnings._stages) <= 1024
    assert len(told.events()) == 3000


def test_a_session_s_end(told):
    """The event of a session's end is INFO with the numbers of the report, by class too, and how it ended."""
    telemetry = told.telemetry(events=[ENDED])
    telemetry.session_ended("s1", calls=12, tripped=True, report=REPORT)
    (event,) = told.events()
    assert (event.event_name, event.severity_number) == (ENDED, SeverityNumber.INFO)
    assert dict(event.attributes) == {
        "toolguard.session.id": "s1", "toolguard.outcome": "tripped", "toolguard.report.calls": 12,
        "toolguard.report.failed": 3, "toolguard.report.refused": 2, "toolguard.report.longest_fail_streak": 2,
        "toolguard.report.classes.read": 9, "toolguard.report.classes.exec": 3,
    }  # fmt: skip
    assert event.body == "The session ended after 12 calls."


def test_the_report_is_asked_for_only_if_it_is_told():
    """``reports`` says beforehand whether a session's end has a use for the report."""
    assert (Telemetry().reports, Telemetry(events=[WARNED]).reports, Telemetry(events=[ENDED]).reports) == (
        False,
        False,
        True,
    )


@pytest.mark.parametrize("report", [None, {}, {"calls": "x"}, {"classes": 5}], ids=str)
def test_a_report_of_any_shape_is_not_felt(told, report):
    """Even a report that is none raises nothing."""
    told.telemetry(events=[ENDED]).session_ended("s1", calls=1, tripped=False, report=report)
