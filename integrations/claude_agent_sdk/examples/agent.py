"""An agent that asks for the same search for ever, and what its caller gets; offline, for Claude Code is scripted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query
from otel_toolguard_claude_agent_sdk import guard_options, guarded_stream

from otel_toolguard import CircuitOpen, Session

TURNS = 50  # after which the unguarded agent is stopped, so that this example ends


async def main(folder: str) -> None:
    options = ClaudeAgentOptions(cli_path=Path(__file__).with_name("claude_code.py"), cwd=folder, max_turns=TURNS)
    async for message in query(prompt="Find the answer.", options=options):
        if isinstance(message, ResultMessage):
            print("without the guard:", message.num_turns, "model requests, and it would go on")

    options = guard_options(options)
    with Session("conversation-42") as session:
        try:
            async for message in guarded_stream(query(prompt="Find the answer.", options=options)):
                if isinstance(message, ResultMessage):
                    print("with the guard:", message.num_turns, "model requests")
        except CircuitOpen as stop:
            print("stopped:", stop.trip.why)
            print("kept: session", stop.partial["session_id"], "for the next query to resume")
            resuming = replace(options, resume=stop.partial["session_id"])
            async for message in guarded_stream(query(prompt="Sum up.", options=resuming)):
                if isinstance(message, ResultMessage):
                    print("next run:", message.result)
        print("report:", session.report()["tools"])


if __name__ == "__main__":
    with TemporaryDirectory() as folder:  # of the scripted Claude Code's transcript
        asyncio.run(main(folder))
