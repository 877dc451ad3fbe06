"""Clients of the user's own, whose results are whatever they were given."""

from __future__ import annotations

import asyncio

from otel_toolguard_mcp import guard_client


class Fake:
    """A client of the user's own, whose results are whatever it was given."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.meta = []

    async def call_tool(self, name, arguments=None, *, meta=None):
        self.meta.append(meta)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def list_tools(self):
        return self.listing

    listing: object = ()


def by_fake(fake, *calls, policy=None, **more):
    """The results of calls of a fake client."""

    async def ask():
        found, client = [], guard_client(fake, policy, **more)
        for name, arguments in calls:
            try:
                found.append(await client.call_tool(name, arguments))
            except Exception as error:
                found.append(error)
        return found

    return asyncio.run(ask())
