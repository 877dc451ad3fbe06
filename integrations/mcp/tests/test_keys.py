"""Whose call a request over HTTP is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from otel_toolguard_mcp._server import Keys

from otel_toolguard.adapter import FrameworkRuns


def over_http(*, session_id=None, query=None, subject=None, client="app", claims=None):
    """What a handler knows of a request over HTTP."""
    token = SimpleNamespace(client_id=client, subject=subject, claims=claims)
    user = {"user": SimpleNamespace(access_token=token)} if subject or claims else {}
    headers = {"mcp-session-id": session_id} if session_id else {}
    request = SimpleNamespace(headers=headers, query_params={"session_id": query} if query else {}, scope=user)
    return SimpleNamespace(request=request, session=object(), lifespan_context={})


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (over_http(subject="ann"), over_http(subject="ann", session_id="x"), True),
        (over_http(subject="ann"), over_http(subject="bob"), False),
        (over_http(subject="ann"), over_http(subject="ann", client="other app"), False),
        (over_http(claims={"sub": "ann", "iss": "a"}), over_http(claims={"sub": "ann", "iss": "a"}), True),
        (over_http(claims={"sub": "ann", "iss": "a"}), over_http(claims={"sub": "ann", "iss": "b"}), False),
        (over_http(session_id="x"), over_http(session_id="x"), True),
        (over_http(session_id="x"), over_http(session_id="y"), False),
        (over_http(query="x"), over_http(query="x"), True),
    ],
)
def test_http_requests_belong_to_subject_or_connection(one, other, together):
    """Over HTTP a session is an authenticated subject of one application, else the transport's own session."""
    keys = Keys(FrameworkRuns(), None)
    first, second = keys.place(one, {}), keys.place(other, {})
    assert (first.session.id == second.session.id) is together
    assert first.guard.conversation_id is None
    assert "ann" not in first.session.id


def test_http_request_that_nobody_can_place():
    """Without token, session and trace a call is made and traced, not limited, for there is nothing to count in."""
    assert Keys(FrameworkRuns(), None).place(over_http(claims={"scope": "x"}), {}) is None


def test_baggage_names_the_session():
    """W3C baggage that arrived with the request names the session, and that is a conversation."""
    from opentelemetry import baggage, context

    token = context.attach(baggage.set_baggage("session.id", "conversation-42"))
    try:
        place = Keys(FrameworkRuns(), None).place(over_http(session_id="x"), {})
    finally:
        context.detach(token)
    assert (place.session.id, place.guard.conversation_id) == ("conversation-42", "conversation-42")
