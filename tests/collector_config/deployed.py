"""What the deployments say, with the variables filled in as each program will see them."""

import re
from pathlib import Path

import yaml

CONFIG = Path(__file__).parents[2] / "collector-config"
VARIABLE = re.compile(r"\$\{env:(\w+)(?::-([^}]*))?\}")
PINNED = re.compile(r"[\w/-]+:v?\d+\.\d+\.\d+(-[a-z]+)?")
NOT_OURS = {"GOMEMLIMIT"}  # the Go runtime reads it, not a file


def parsed(name):
    """The one document of a file in collector-config/."""
    return yaml.safe_load((CONFIG / name).read_text(encoding="utf-8"))


def documents(name):
    """All documents of a file in collector-config/."""
    return list(yaml.safe_load_all((CONFIG / name).read_text(encoding="utf-8")))


def variables(name):
    """The variables that a configuration reads."""
    return {variable for variable, _default in VARIABLE.findall((CONFIG / name).read_text(encoding="utf-8"))}


def filled(name, environment):
    """A configuration as its program reads it in that environment."""
    text = (CONFIG / name).read_text(encoding="utf-8")
    return yaml.safe_load(VARIABLE.sub(lambda found: environment.get(found[1]) or found[2] or "", text))


def ports(name, environment, *, here=False):
    """The ports that other containers, or with ``here`` this one too, can reach."""
    read = filled(name, environment)
    offered = {part: value for part, value in read["exporters"].items() if part == "prometheus"}
    readers = read["service"]["telemetry"]["metrics"].get("readers", [])
    own = [reader["pull"]["exporter"]["prometheus"] for reader in readers]
    listened = {
        *texts([read["receivers"], read["extensions"], offered]),
        *(f"{reader['host']}:{reader['port']}" for reader in own),
    }
    hosts = r"0\.0\.0\.0|127\.0\.0\.1" if here else r"0\.0\.0\.0"
    return {int(found[1]) for text in listened if (found := re.fullmatch(rf"(?:{hosts}):(\d+)", text))}


def texts(node):
    """Every text in a part of a configuration."""
    if isinstance(node, dict | list):
        yield from (text for child in (node.values() if isinstance(node, dict) else node) for text in texts(child))
    elif isinstance(node, str):
        yield node


def in_use_at_most(memory):
    """How much of a container's memory the Collector has in use before it refuses."""
    limiter = parsed("collector.yaml")["processors"]["memory_limiter"]
    return memory * (limiter["limit_percentage"] - limiter["spike_limit_percentage"]) / 100


def size(text):
    """The bytes of ``560MiB``, ``1Gi`` or ``1g``."""
    number, unit = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", str(text)).groups()
    return int(number) * {"": 1, "m": 2**20, "g": 2**30}[unit[:1].lower()]
