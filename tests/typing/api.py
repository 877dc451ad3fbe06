"""Checked by mypy, never run: the public names have the types that users rely on."""

from __future__ import annotations

from typing import assert_type

from otel_toolguard import CircuitOpen, Policy, Session, Trip, current_session, find_trip, guard_tool


@guard_tool
def search(q: str, limit: int = 10) -> list[str]:
    return [q] * limit


@guard_tool(name="lookup", tool_class="read", risk="read_only", poll=3, ignore=["request_id"])
async def look_up(key: str) -> int:
    return len(key)


async def use() -> None:
    assert_type(search("x"), list[str])
    assert_type(await look_up("x"), int)
    with Session("conversation", policy=Policy.profile("strict"), on_trip=print) as session:
        assert_type(session, Session)
        assert_type(session.trip, Trip | None)
        assert_type(session.bind(search)("x"), list[str])
        session.raise_if_open()
    async with Session() as other:
        assert_type(other.id, str)
    assert_type(current_session(), Session | None)
    try:
        search("y")
    except CircuitOpen as stopped:
        assert_type(stopped.trip, Trip)
        assert_type(find_trip(stopped), Trip | None)
