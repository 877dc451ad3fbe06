"""What may be set, checked, and turned into a chain: by code, environment, file and profile, the first that speaks."""

from __future__ import annotations

import os
import stat
import tomllib
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from otel_toolguard.core.chain import Chain
from otel_toolguard.errors import SettingsError, SettingsWarning
from otel_toolguard.settings import foreign
from otel_toolguard.settings.own_limits import check_own_limits
from otel_toolguard.settings.places import line_of
from otel_toolguard.settings.plugins import PLUGINS, PluginSettings
from otel_toolguard.settings.profiles import DEFAULT_PROFILE, PROFILES
from otel_toolguard.settings.reach import hardly_reachable, unreachable
from otel_toolguard.settings.tools import POLLER_PATIENCE, ToolSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ENVIRONMENT", "PLUGINS", "POLLER_PATIENCE", "PROFILES", "Policy", "ToolSettings"]

Mode = Literal["enforce", "observe", "off"]
MODES: tuple[Mode, ...] = ("enforce", "observe", "off")
LATCHES = ("run", "session")
ON_WARN = ("none", "nudge")
ENVIRONMENT = (  # all that a policy asks the environment for
    "TOOLGUARD_CONFIG", "TOOLGUARD_PROFILE", "TOOLGUARD_MODE", "TOOLGUARD_STRICT", "TOOLGUARD_SIGNATURE_KEY",
    "TOOLGUARD_CAPTURE_ARGUMENTS",
)  # fmt: skip
FILE_VERSION = 1
_FILE_KEYS = ("version", "profile", "mode", "strict", "latch", "on_warn", "capture_arguments", "tool_plugins", "tools")
_NO_TOOL = ToolSettings()


_NEVER_TRIP = ("classify", "distinct_ratio", "tool_stats")


class Policy:
    """Which rules judge, with which limits; immutable.

    Each argument that is left out is looked up in the environment (``TOOLGUARD_*``), then in the TOML file named by
    ``TOOLGUARD_CONFIG``, then taken from the profile. The working directory is never searched: the agent writes there.

    Args:
        profile: conservative, balanced (default), strict, crucible, openhands, skill or cmdc. (On the class,
            ``Policy.profile(name)`` is the same in fewer words.)
        plugins: The chain, in order, as ``[{"plugin": "repeat_guard", "limit": 5}]``; [] for no rule at all.
        tools: Settings of single tools by glob, the first match counts: ``{"search_*": {"class": "network"}}``.
        mode: "enforce"; "observe" lets every call run and says what would have been stopped; "off" judges nothing.
        strict: True to raise ``SessionMissing`` for a guarded call outside any session.
        latch: "run": a stop ends with its run; "session": it outlasts the run, until ``session.reset``.
        on_warn: "nudge" has the model told, beside a result, when half and when three quarters of a limit are used.
        signature_key: Secret for signatures, at most 64 bytes, so that several processes write the same ones.
        capture_arguments: True to put redacted previews of argument values (at most 200 characters) on trips.

    Raises:
        SettingsError: An unknown profile, plugin, parameter or value, or a limit that can never be reached.
    """

    def __init__(
        self,
        profile: str | None = None,
        plugins: Sequence[Mapping[str, Any]] | None = None,
        tools: Mapping[str, Mapping[str, Any] | ToolSettings] | None = None,
        *,
        mode: Mode | None = None,
        strict: bool | None = None,
        latch: Literal["run", "session"] | None = None,
        on_warn: Literal["none", "nudge"] | None = None,
        signature_key: bytes | str | None = None,
        capture_arguments: bool | None = None,
    ) -> None:
        code = {
            "profile": profile, "tool_plugins": plugins, "tools": tools, "mode": mode, "strict": strict, "latch": latch,
            "on_warn": on_warn, "signature_key": signature_key, "capture_arguments": capture_arguments,
        }  # fmt: skip
        path = os.environ.get(ENVIRONMENT[0])
        self._set({name: value for name, value in code.items() if value is not None}, path)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Policy:
        """The policy of a TOML file; the environment still speaks before the file.

        Raises:
            SettingsError: The file cannot be read or says something that cannot be honoured; names file and line.
        """
        policy = cls.__new__(cls)
        policy._set({}, os.fspath(path))  # noqa: SLF001
        return policy

    @classmethod
    def profile(cls, name: str) -> Policy:
        """The policy with the chain of that profile."""
        return cls(profile=name)

    def _set(self, code: dict[str, Any], path: str | None) -> None:
        text, file = _read(path) if path else ("", {})
        sources = ((code, _Place()), (_environment(), _Place(variables=True)), (file, _Place(path, text)))

        def find(name: str, default: Any) -> tuple[Any, _Place]:
            return next(((source[name], place) for source, place in sources if name in source), (default, _Place()))

        # A profile that was named decides over a chain that a farther source spelled out, and the reverse.
        chain, place = next((s for s in sources if "profile" in s[0] or "tool_plugins" in s[0]), ({}, _Place()))
        named = chain.get("profile", DEFAULT_PROFILE)
        plugins = _choice(named, PROFILES, "profile", place.top("profile"))
        self.profile_name: str | None = None if "tool_plugins" in chain else named
        self.mode: Mode = _one_of(*find("mode", "enforce"), MODES, "mode")
        self.latch = _one_of(*find("latch", "run"), LATCHES, "latch")
        self.on_warn = _one_of(*find("on_warn", "none"), ON_WARN, "on_warn")
        self.strict = _truth(*find("strict", False), "strict")
        self.capture_arguments = _truth(*find("capture_arguments", False), "capture_arguments")
        self.signature_key = _key(*find("signature_key", None))
        tools, tools_place = find("tools", {})
        self.tools = _tools(tools, tools_place)
        self.plugins = _plugins(chain.get("tool_plugins", plugins), place)
        indices = {name: index for index, (name, _) in enumerate(self.plugins)}
        for name, parameter, sentence in unreachable(self.plugins):
            raise SettingsError(f"{place.plugin(indices[name], name, parameter)}{sentence}")
        if self.profile_name is None:
            for name, parameter, sentence in hardly_reachable(self.plugins):
                at = place.plugin(indices[name], name, parameter)
                warnings.warn(f"{at}{sentence}", SettingsWarning, stacklevel=3)
        check_own_limits(self.tools, self.plugins, lambda glob: tools_place.tool(glob, "limits"))
        self.chain = Chain(
            (settings.build() for _, settings in self.plugins),
            observe=self.mode == "observe", lasting_stop=self.latch == "session",
            nudge_on_warn=self.on_warn == "nudge",
        )  # fmt: skip
        judging = (name for name, _ in self.plugins if name not in _NEVER_TRIP)
        self.rules: tuple[str, ...] = (*judging, "forced_open", "session.stop")
        self.tool: Callable[[str], ToolSettings] = lru_cache(maxsize=1024)(self._tool)

    def _tool(self, name: str) -> ToolSettings:
        """The settings of a tool: those of the first glob that matches its name."""
        return self.tools.get(self.glob(name) or "", _NO_TOOL)

    def glob(self, name: str) -> str | None:
        """The first glob of ``tools`` that matches a tool's name; None if none does."""
        return next((glob for glob in self.tools if fnmatchcase(name, glob)), None)

    def to_dict(self) -> dict[str, Any]:
        """The effective policy as JSON values; the signature key is left out."""
        return {
            "profile": self.profile_name,
            "mode": self.mode,
            "strict": self.strict,
            "latch": self.latch,
            "on_warn": self.on_warn,
            "capture_arguments": self.capture_arguments,
            "tool_plugins": [{"plugin": name, **settings.model_dump()} for name, settings in self.plugins],
            "tools": {glob: _shown(settings) for glob, settings in self.tools.items()},
        }

    def __repr__(self) -> str:
        return f"<Policy {self.profile_name or [name for name, _ in self.plugins]} {self.mode}>"


class _Place:
    """Names the place of a setting for an error."""

    def __init__(self, path: str | None = None, text: str = "", *, variables: bool = False) -> None:
        self.path = path
        self.text = text
        self.variables = variables

    def top(self, key: str) -> str:
        if self.variables:
            return f"TOOLGUARD_{key.upper()}: "
        return f"{self.path}:{line_of(self.text, key=key)}: " if self.path else ""

    def plugin(self, index: int, name: str, key: str | None = None) -> str:
        if not self.path:
            return f"plugins[{index}] ({name}): "
        return f"{self.path}:{line_of(self.text, plugin=index, key=key)}: "

    def tool(self, glob: str, key: str | None = None) -> str:
        return f"{self.path}:{line_of(self.text, tool=glob, key=key)}: " if self.path else f'tools["{glob}"]: '


def _read(path: str) -> tuple[str, dict[str, Any]]:
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)  # noqa: PTH116
        # It may have no end, and a pipe is empty for all but its first reader.
        if kind not in (stat.S_IFREG, stat.S_IFDIR) and path != os.devnull:
            raise SettingsError(f"{path}: is no plain file")
        with open(path, encoding="utf-8") as file:  # noqa: PTH123  (pathlib costs start-up time)
            text = file.read()
        values = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is no UTF-8 text: {error.reason} at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is no TOML: {error}") from error
    place = _Place(path, text)
    for key in values:
        if key not in _FILE_KEYS:
            raise SettingsError(f"{place.top(key)}unknown key {key!r}; valid are {', '.join(_FILE_KEYS)}")
    if values.get("version", FILE_VERSION) != FILE_VERSION:
        raise SettingsError(f"{place.top('version')}version = {values['version']!r}; this library reads {FILE_VERSION}")
    return text, values


def _environment() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable in ENVIRONMENT[1:]:
        text = os.environ.get(variable)
        if text:
            values[variable.removeprefix("TOOLGUARD_").lower()] = text
    return values


def _plugins(plugins: Any, place: _Place) -> tuple[tuple[str, PluginSettings], ...]:
    if not isinstance(plugins, (list, tuple)):
        raise SettingsError(
            f"{place.top('tool_plugins')}tool_plugins must be a list of tables, not {type(plugins).__name__}"
        )
    chain: list[tuple[str, PluginSettings]] = []
    for index, given in enumerate(plugins):
        if not isinstance(given, Mapping) or not isinstance(given.get("plugin"), str):
            raise SettingsError(f'{place.plugin(index, "?")}each plugin is a table with a key "plugin"')
        parameters = dict(given)
        name = parameters.pop("plugin")
        strange = {} if name in PLUGINS else foreign.installed()
        _choice(name, PLUGINS | strange, "plugin", place.plugin(index, name, "plugin"))
        if any(name == earlier for earlier, _ in chain):
            raise SettingsError(f"{place.plugin(index, name)}{name} is listed twice; put its parameters into one table")
        if name in strange:
            try:
                chain.append((name, foreign.read(name, strange[name], parameters)))
            except ValueError as error:
                raise SettingsError(f"{place.plugin(index, name)}{name}: {error}") from error
            continue
        kind = PLUGINS[name]
        try:
            chain.append((name, kind.model_validate(parameters)))
        except ValidationError as error:
            first = _first(error)
            key = str(first["loc"][0]) if first["loc"] else None
            valid = ", ".join(kind.model_fields) or "none: it has no parameters"
            raise SettingsError(
                f"{place.plugin(index, name, key)}{name}: {_say(first)}; valid parameters are {valid}"
            ) from error
    return tuple(chain)


def _tools(tools: Any, place: _Place) -> dict[str, ToolSettings]:
    checked: dict[str, ToolSettings] = {}
    if not isinstance(tools, Mapping) or not all(isinstance(glob, str) for glob in tools):
        raise SettingsError(f"{place.top('tools')}tools must be a table of tables by the glob of a tool's name")
    for glob, settings in tools.items():
        try:
            checked[glob] = settings if isinstance(settings, ToolSettings) else ToolSettings.model_validate(settings)
        except ValidationError as error:
            first = _first(error)
            key = str(first["loc"][0]) if first["loc"] else None
            valid = ", ".join(field.alias or name for name, field in ToolSettings.model_fields.items())
            raise SettingsError(f"{place.tool(glob, key)}{_say(first)}; valid keys are {valid}") from error
    return checked


def _shown(settings: ToolSettings) -> dict[str, Any]:
    """The settings of a tool as JSON values: functions by name."""
    said = settings.model_dump(exclude_defaults=True)
    return {
        key: getattr(value, "__qualname__", repr(value)) if callable(value) else value for key, value in said.items()
    }


def _first(error: ValidationError) -> Any:
    """The fault to name: a misspelled parameter rather than the one that is missing because of it."""
    faults = error.errors()
    return next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])


def _say(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "value_error":  # one of our own sentences, which says it all
        return str(error["ctx"]["error"])
    if error["type"] == "extra_forbidden":
        return f"unknown parameter {path!r}"
    given = "" if error["type"] == "missing" else f" (given: {error['input']!r:.60})"
    return f"{path + ': ' if path else ''}{error['msg']}{given}"


def _choice(name: Any, choices: Mapping[str, Any], what: str, place: str) -> Any:
    if not isinstance(name, str) or name not in choices:
        raise SettingsError(f"{place}unknown {what} {name!r}; valid are {', '.join(sorted(choices))}")
    return choices[name]


def _one_of(value: Any, place: _Place, choices: Sequence[str], what: str) -> Any:
    return _choice(value, {choice: choice for choice in choices}, what, place.top(what))


def _truth(value: Any, place: _Place, what: str) -> bool:
    words = {"1": True, "true": True, "on": True, "yes": True, "0": False, "false": False, "off": False, "no": False}
    truth = value if isinstance(value, bool) else words.get(str(value).lower())
    if truth is None:
        raise SettingsError(f"{place.top(what)}{what} = {value!r}; valid are true and false")
    return truth


def _key(value: Any, place: _Place) -> bytes | None:
    if value is None:
        return None
    key = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    if not isinstance(key, bytes) or not 1 <= len(key) <= 64:
        raise SettingsError(f"{place.top('signature_key')}signature_key must be 1 to 64 bytes")
    return key
