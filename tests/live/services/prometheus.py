"""A real Prometheus that scrapes given addresses, with the rules of collector-config/prometheus/."""

from __future__ import annotations

import json
import urllib.parse
from typing import TYPE_CHECKING, Any

from services import binaries
from services.places import CONFIG, WAIT_S, addresses, json_of, until
from services.process import Service

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

RULES = CONFIG / "prometheus"


def rule_files() -> list[Path]:
    """The recording and alert rules that users load."""
    return [path for path in (RULES / "rules.yaml", RULES / "alerts.yaml") if path.exists()]


class Prometheus(Service):
    """Prometheus that looks each second.

    Its configuration has no variables, so one of the same shape as prometheus.yaml is written for the addresses at
    hand; the rules are the very files.

    Attributes:
        url: Address of its pages and API.
    """

    def __init__(
        self, targets: Mapping[str, str], *, rules: Sequence[Path] | None = None, interval: str = "1s"
    ) -> None:
        """``targets`` maps a job's name to the ``host:port`` that it scrapes; ``rules`` replaces the project's."""
        at = addresses("web")["web"]
        argv = ["--config.file=prometheus.json", "--storage.tsdb.path=data", f"--web.listen-address={at}"]
        super().__init__(binaries.prometheus(), argv, env={}, health=f"http://{at}/-/ready")
        self.url = f"http://{at}"
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval, "scrape_timeout": interval},
            "rule_files": [str(path) for path in (rule_files() if rules is None else rules)],
            "scrape_configs": [
                # honor_labels: job and instance are those of the agents, not of the Collector that tells of them.
                {"job_name": job, "honor_labels": True, "static_configs": [{"targets": [target]}]}
                for job, target in targets.items()
            ],
        }
        (self.folder / "prometheus.json").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML too

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now: each has ``metric`` (its labels) and ``value`` (time and text)."""
        answer = self._api("query", query=expression)
        return answer["result"] if answer else []

    def value(self, expression: str, *, at_least: float, wait_s: float = WAIT_S) -> float:
        """The sum of an expression's series, once it is as high or time is over."""

        def look() -> float:
            return sum(float(series["value"][1]) for series in self.query(expression))

        return until(look, enough=lambda total: total >= at_least, wait_s=wait_s)

    def series(self, expression: str, *, wait_s: float = WAIT_S) -> list[dict[str, Any]]:
        """Like ``query``, once there is any or time is over."""
        return until(lambda: self.query(expression), wait_s=wait_s)

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are pending or firing now: ``labels``, ``annotations``, ``state``."""
        answer = self._api("alerts")
        return answer["alerts"] if answer else []

    def firing(self, name: str, *, wait_s: float = WAIT_S) -> list[dict[str, Any]]:
        """The alerts of this name that are firing, once there are any or time is over."""

        def look() -> list[dict[str, Any]]:
            return [one for one in self.alerts() if one["labels"]["alertname"] == name and one["state"] == "firing"]

        return until(look, wait_s=wait_s)

    def rule_health(self) -> dict[str, str]:
        """Each rule's name, and ``ok`` or what is wrong with it."""
        groups = (self._api("rules") or {}).get("groups", [])
        return {rule["name"]: rule.get("lastError") or rule["health"] for group in groups for rule in group["rules"]}

    def _api(self, path: str, **asked: str) -> Any:
        answer = json_of(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(asked)}")
        return answer["data"] if answer else None
