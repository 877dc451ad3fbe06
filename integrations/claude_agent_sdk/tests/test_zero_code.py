"""Zero-code: what is replaced, what is put back, and what others put over it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import claude_agent_sdk as sdk
import pytest
from otel_toolguard_claude_agent_sdk import ToolGuardClaudeAgentSDKInstrumentor

from otel_toolguard import CircuitOpen, Session
from otel_toolguard.testing.scripts import for_ever

from . import scripted as s

NAMES = ("connect", "receive_messages", "receive_response")


def as_it_is(given):
    return given


async def read(_said):
    return "nothing"


@pytest.fixture
def instrumented():
    instrumentor = ToolGuardClaudeAgentSDKInstrumentor()
    instrumentor.instrument()
    yield instrumentor
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


@pytest.mark.parametrize("way", s.WAYS)
def test_plain_code_is_guarded(instrumented, way):
    """Code that knows nothing of the guard is stopped, and its caller gets the trip."""
    cli = s.ScriptedCLI(for_ever("Read"), own={"Read": read})
    with Session(policy=s.repeat(3)), pytest.raises(CircuitOpen):
        s.run(cli, way, guard=as_it_is, wrap=as_it_is)
    assert (cli.asked, cli.ran) == (3, 3)


def test_what_others_put_over_it_stays(instrumented):
    """A replacement of ours that somebody else replaced since is left to them."""
    ours = vars(sdk.ClaudeSDKClient)["receive_response"]

    def theirs(client):
        return ours(client)

    sdk.ClaudeSDKClient.receive_response = theirs
    try:
        instrumented.uninstrument()
        assert vars(sdk.ClaudeSDKClient)["receive_response"] is theirs
        assert not hasattr(vars(sdk.ClaudeSDKClient)["connect"], "__wrapped__")
    finally:
        sdk.ClaudeSDKClient.receive_response = ours.__wrapped__


def test_entry_point():
    """The instrumentor is found by name."""
    (found,) = entry_points(group="opentelemetry_instrumentor", name="toolguard_claude_agent_sdk")
    assert found.load() is ToolGuardClaudeAgentSDKInstrumentor


def test_loads_without_the_sdk():
    """The package imports without the SDK, so that the entry point can say what is missing."""
    code = "import sys; sys.modules['claude_agent_sdk'] = None; import otel_toolguard_claude_agent_sdk as package; "
    code += "package.ToolGuardClaudeAgentSDKInstrumentor().instrumentation_dependencies()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
