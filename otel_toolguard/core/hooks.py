"""What a rule looks like to the chain, and how its hooks are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from otel_toolguard.core.overrides import OFF

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_toolguard.core.call import Outcome, ToolCall
    from otel_toolguard.core.decision import Finding
    from otel_toolguard.core.overrides import Overrides
    from otel_toolguard.core.state import RunState

    BoundHook = tuple[Any, Any, "Hook"]


class Plugin(Protocol):
    """One rule. It may leave out each of these hooks; ``mine`` is its own plain state (JSON values), made by ``start``.

    Attributes a plugin may set: ``lasting = True`` keeps ``mine`` per session rather than per run;
    ``observes = True`` lets it see results that arrive after a trip; ``needs`` names the fingerprints that it compares;
    ``timed = True`` has ``run.session.now`` told; ``ceiling = True`` keeps ``mine`` over a reset that keeps ceilings;
    ``advice`` is the sentence for the model where the policy nudges on warnings.
    """

    name: str

    def start(self) -> Any:
        """Fresh state."""

    def admit(self, mine: Any, run: RunState, call: ToolCall) -> Finding | None:
        """Judges a call before its body; a finding of share 1 and more refuses it."""

    def settle(self, mine: Any, run: RunState, call: ToolCall, outcome: Outcome) -> Finding | None:
        """Judges a result, in commit order; a finding of share 1 and more opens the circuit for the next call."""

    def refused(self, mine: Any, run: RunState, call: ToolCall, counted: bool) -> Finding | None:
        """Judges a refusal; ``counted`` is False if another refusal of the same batch was counted."""

    def on_cost(self, mine: Any, run: RunState, amount: float) -> Finding | None:
        """Judges a cost that the caller reports."""

    def on_retry(self, mine: Any, kind: str, attempt: int) -> None:
        """Notes a retry that the host reports."""

    def report(self, states: Sequence[Any]) -> dict[str, Any]:
        """Its part of the session's report, from its state of each run (of the session, if ``lasting``)."""


class Hook:
    """One hook of one plugin, looked up once: the hot path asks for no attribute of a stranger."""

    __slots__ = ("_lasting", "_start", "advice", "call", "name", "observes")

    def __init__(self, plugin: Any, call: Any) -> None:
        self.call = call
        self.observes = bool(getattr(plugin, "observes", False))
        self._lasting = bool(getattr(plugin, "lasting", False))
        self.name: str = plugin.name
        self._start = getattr(plugin, "start", dict)
        self.advice: str = getattr(plugin, "advice", "") or (
            f"The limit of {plugin.name} is near: change the approach, or report what is missing."
        )

    def mine(self, run: RunState) -> Any:
        """The plugin's own state in this run (in this session, if it is lasting)."""
        rules = run.session.rules if self._lasting else run.rules
        mine = rules.get(self.name)
        if mine is None:
            mine = rules[self.name] = self._start()
        return mine


class Bound:
    """The hooks of one chain, each with the state that it works on in one run; made once, for a run has many calls.

    Attributes:
        chain: Whose hooks they are: another policy on the same session has others.
        admits: For each hook of admission what is called, the state and the hook.
        settles: Those of settlement likewise; None until a result is judged.
    """

    __slots__ = ("admits", "chain", "settles")

    def __init__(self, chain: object, admits: Iterable[Hook], run: RunState) -> None:
        self.chain = chain
        self.admits = bound_to(run, admits)
        self.settles: list[BoundHook] | None = None


def bound_to(run: RunState, hooks: Iterable[Hook]) -> list[BoundHook]:
    """The hooks with what they work on in a run."""
    return [(hook.call, hook.mine(run), hook) for hook in hooks]


def judging(hooks: list[BoundHook], overrides: Overrides) -> list[BoundHook]:
    """The hooks that judge the calls of a tool with settings of its own: all but those that it is spared."""
    limits = overrides.limits
    return [bound for bound in hooks if limits.get(bound[2].name) != OFF]


def hooks_of(plugins: Iterable[Any], name: str) -> list[Hook]:
    """The hooks of that name, in the order of their plugins."""
    return [Hook(plugin, getattr(plugin, name)) for plugin in plugins if hasattr(plugin, name)]
