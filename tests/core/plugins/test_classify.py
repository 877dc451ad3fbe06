"""The plugin that only asks for the class."""

from otel_toolguard.core.call import Outcome, ToolCall
from otel_toolguard.core.chain import Chain
from otel_toolguard.core.plugins.classify import Classify
from otel_toolguard.core.plugins.repeat_guard import RepeatGuard
from otel_toolguard.core.state import SessionState


def test_it_asks_for_the_class_wherever_it_stands():
    """The chain needs the class as soon as the plugin is in it, first or last."""
    assert "class" in Chain([Classify(), RepeatGuard(2)]).needs
    assert "class" in Chain([RepeatGuard(2), Classify()]).needs
    assert "class" not in Chain([RepeatGuard(2)]).needs


def test_it_stops_nothing():
    """However often a call comes round, nothing is refused."""
    chain, state = Chain([Classify()]), SessionState("s")
    for _ in range(100):
        call = ToolCall("a", "a:1")
        assert chain.settle(state, "r", chain.admit(state, "r", call).number, call, Outcome("failed")).trip is None
