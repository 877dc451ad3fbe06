"""Refusals in a row: what lies between two of them."""

import pytest

from otel_toolguard import Policy
from otel_toolguard.core.call import Outcome
from otel_toolguard.core.canonical import Signer
from otel_toolguard.core.decision import Refuse
from otel_toolguard.core.state import SessionState
from otel_toolguard.tool import Tool

BETWEEN = {
    "nothing": (None, True),
    "a thought": (("think", {"thought": "once more"}), True),
    "a comment": (("bash", {"command": "# once more"}), True),
    "a pause": (("bash", {"command": "sleep 1"}), True),
    "other work": (("bash", {"command": "ls"}), False),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_only_work_ends_a_row_of_refusals(name):
    """Between two refusals a neutral call changes nothing, and an admitted call that does something starts afresh."""
    between, stops = BETWEEN[name]
    policy = Policy(mode="enforce", plugins=[{"plugin": "call_ceiling", "tools": {"closed": 1}},
                                             {"plugin": "max_refusals", "limit": 2}])  # fmt: skip
    state, signer, stop = SessionState("s"), Signer(b"k"), None
    asked = ("closed", dict[str, str]())
    for tool, arguments in [asked, *[asked, *([between] if between else [])] * 2]:
        call = Tool(tool).call(arguments, policy, signer, world=None)
        admission = policy.chain.admit(state, "r", call)
        if isinstance(admission, Refuse):
            stop = admission.opened or stop
        else:
            policy.chain.settle(state, "r", admission.number, call, Outcome("ok"))
    assert (stop is not None) is stops
