"""Argument shapes: names, types and lengths, and previews only where they were asked for."""

import json

import pytest

from otel_toolguard.core.call import ToolCall
from otel_toolguard.core.shapes import ARGUMENTS_SHOWN, PREVIEW_LIMIT, argument_shapes


class Hostile:
    def __repr__(self):
        raise RuntimeError("no")

    def __len__(self):
        raise RuntimeError("no")


class HostileText(str):
    __slots__ = ()

    def __len__(self):
        raise RuntimeError("no")


SHAPES = [
    ({"q": "secret words"}, {"q": "str(12)"}),
    ({"n": 5, "f": 1.5, "b": True, "z": None}, {"n": "int", "f": "float", "b": "bool", "z": "NoneType"}),
    ({"l": [1, 2], "d": {"a": 1}, "s": {1}, "t": (), "y": b"abc"}, {"l": "list(2)", "d": "dict(1)", "s": "set(1)", "t": "tuple(0)", "y": "bytes(3)"}),
    ({"o": Hostile()}, {"o": "Hostile"}),
    ({}, {}),
    (None, {}),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "expected"), SHAPES)
def test_shapes_hold_no_values(arguments, expected):
    """By default only names, types and lengths are told."""
    assert argument_shapes(arguments) == expected


CAPTURED = [
    ("q", "words", "str(5) = words"),
    ("q", "x" * 500, "str(500) = " + "x" * PREVIEW_LIMIT),
    ("n", 5, "int = 5"),
    ("password", "hunter2", "str(7) = (redacted)"),
    ("API_KEY", "k", "str(1) = (redacted)"),
    ("Authorization", "k", "str(1) = (redacted)"),
    ("session_cookie", "k", "str(1) = (redacted)"),
    ("l", ["inside"], "list(1)"),
    ("o", Hostile(), "Hostile"),
]


@pytest.mark.parametrize(("name", "value", "expected"), CAPTURED)
def test_previews_are_short_and_redacted(name, value, expected):
    """With capture a scalar's preview follows, of at most 200 characters, and never under a secret's name."""
    assert argument_shapes({name: value}, capture=True) == {name: expected}


@pytest.mark.parametrize("arguments", ["raw text", 5, {"a": HostileText("x")}, {"n": 10**5000}])
@pytest.mark.parametrize("capture", [False, True])
def test_nothing_raises(arguments, capture):
    """What cannot be read is called unreadable, and the record stays JSON."""
    json.dumps(argument_shapes(arguments, capture=capture))


def test_shapes_are_bounded():
    """At most 32 arguments are told, and long names are cut."""
    shapes = argument_shapes({f"{i}{'n' * 500}": i for i in range(100)})
    assert len(shapes) == ARGUMENTS_SHOWN
    assert max(map(len, shapes)) == 80


def test_the_call_tells_its_shapes():
    """A call shows its arguments as its policy allows."""
    assert ToolCall("t", "t:1", arguments={"q": "ab"}).shapes() == {"q": "str(2)"}
    assert ToolCall("t", "t:1", arguments={"q": "ab"}, capture=True).shapes() == {"q": "str(2) = ab"}


@pytest.mark.parametrize(
    "value",
    [
        "curl -H 'Authorization: Bearer abcdef123456' x",
        "postgres://user:HIDDEN@host/db",
        "https://u:HIDDEN@host/x?token=HIDDEN&q=1",
        "export API_KEY=HIDDEN; run",
        "key AKIAHIDDENHIDDEN1234",
        "sk-HIDDENHIDDENHIDDEN",
    ],
)
def test_what_looks_like_a_secret_is_left_out_of_previews(value):
    """Credentials in addresses, bearer tokens, keys of known form and assignments to secret names are not shown."""
    shown = argument_shapes({"command": value}, capture=True)["command"]
    assert "HIDDEN" not in shown
    assert "abcdef" not in shown
    assert "(redacted)" in shown


@pytest.mark.parametrize("text", [
    "password=hunter2hunter2!", "--password=hunter2hunter2!", "api_key=hunter2hunter2!", "X-Api-Key: hunter2hunter2!",
    '{"client_secret": "hunter2hunter2!"}', "Cookie: sid=hunter2hunter2!", "Authorization: Basic hunter2hunter2!",
    "export AWS_SECRET_ACCESS_KEY=hunter2hunter2!", "pwd = 'hunter2hunter2!'",
    "-----BEGIN RSA PRIVATE KEY-----\nhunter2hunter2!\n-----END RSA PRIVATE KEY-----", "https://u:hunter2hunter2!@h/x",
])  # fmt: skip
def test_what_has_the_form_of_a_secret_is_left_out_of_a_preview(text):
    """Assignments to secret names in whatever notation, headers and keys are redacted wherever they stand in a text."""
    for whole in (text, f"curl {text}", f"{text}\nnext"):
        assert "hunter2" not in argument_shapes({"text": whole}, capture=True)["text"]


def test_an_argument_called_pwd_is_left_out():
    """A name that is short for password is one."""
    assert argument_shapes({"pwd": "hunter2"}, capture=True)["pwd"] == "str(7) = (redacted)"


def test_plain_words_are_shown():
    """What only sounds like a secret in the middle of a sentence stays."""
    assert argument_shapes({"text": "the secret of success"}, capture=True)["text"].endswith("= the secret of success")
