"""What holds for a guarded function inside another instrumentation's tool span, whoever made that."""

from __future__ import annotations

from otel_toolguard import Policy, Session


class Inside:
    """Expects a fixture ``run``: has an agent ask for the tool once with each of the words, and returns its error."""

    def test_there_is_one_tool_span_and_it_is_theirs(self, run, search, seen):
        """Our attributes are on the span that the instrumentation opened, and we open none beside it."""
        with Session("s1"):
            assert run(search, ["a", "b"]) is None
        assert seen.only_theirs(["ok", "ok"])
        assert {span.attributes["toolguard.session.id"] for span in seen.told()} == {"s1"}
        assert [span.attributes["toolguard.run.calls"] for span in seen.told()] == [1, 2]

    def test_what_the_tool_traces_hangs_below_it(self, run, search, seen):
        """A request that the tool makes is a child of the tool span, also where its owner does not make it current."""
        with Session("s1"):
            run(search, ["a"])
        (span,), (request,) = seen.told(), seen.inside()
        assert request.parent.span_id == span.context.span_id
        assert request.context.trace_id == span.context.trace_id

    def test_a_failure_is_told_on_it(self, run, search, seen):
        """A call that raises is failed on their span, whether the framework ends the run by it or answers it."""
        with Session("s1"):
            run(search, ["bad"])
        assert seen.only_theirs(["failed"])
        assert seen.told()[0].attributes["toolguard.failure"] == "permanent"

    def test_a_refusal_is_told_on_it(self, run, search, seen, refused_around):
        """A refused call says on its one span, theirs if it came so far, that it was, and by which rule."""
        with Session("s1", policy=Policy(plugins=[{"plugin": "call_ceiling", "tools": {"search": 1}}])):
            run(search, ["a", "b"])
        assert seen.outcomes() == ["ok", "refused"]
        assert [span.context.span_id for span in seen.of_tool()] == [span.context.span_id for span in seen.told()]
        refused = seen.told()[-1]
        assert seen.ours() == ([refused] if refused_around else [])
        told = {name: refused.attributes[f"toolguard.{name}"] for name in ("rule", "scope", "tripped", "mode")}
        assert told == {"rule": "call_ceiling", "scope": "tool", "tripped": True, "mode": "enforce"}
        assert "error.type" in refused.attributes

    def test_each_call_is_measured_once(self, run, search, seen):
        """The duration is recorded by us, or by an instrumentation that has the same histogram, never by both."""
        with Session("s1"):
            run(search, ["a", "b", "c"])
        assert seen.measured() == 3

    def test_in_the_trace_around_it(self, run, search, seen, providers):
        """Under a span of the application all of it is one trace."""
        with Session("s1"), providers.tracing.get_tracer("app").start_as_current_span("request") as around:
            run(search, ["a"])
        assert {span.context.trace_id for span in (*seen.told(), *seen.inside())} == {
            around.get_span_context().trace_id
        }

    def test_suppressed(self, run, search, seen):
        """Where the application suppresses instrumentation nothing of ours is told, and the limit still holds."""
        from opentelemetry.instrumentation.utils import suppress_instrumentation

        ceiling = Policy(plugins=[{"plugin": "call_ceiling", "tools": {"search": 1}}])
        with Session(policy=ceiling) as session, suppress_instrumentation():
            run(search, ["a", "b"])
        assert seen.told() == []
        assert (session.report()["calls"], session.report()["refused"]) == (1, 1)
