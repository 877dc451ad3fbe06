"""Tables about the adapters: ``readme`` makes README.md of their pyprojects, ``contract LOG...`` sums up test runs."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
INTRODUCTION = """# Integrations

One small distribution for each framework: it maps the framework's calls to the guard's, and the guard's decisions to
what the framework understands. Each has a README and an example that runs offline; from a checkout
`pip install . ./integrations/<folder>` installs it. `make adapters` holds each to the same contract on the newest
release, `make adapters-oldest` on the oldest. This page is made by `make tables` from the pyprojects.

"""
FIGURES = {
    "model_calls_after": "model calls after the trip",
    "over": "bodies over the ceiling",
    "unanswered": "ids unanswered",
    "exception": "exception",
    "spans_per_attempt": "spans per attempt",
}
WANTED = {"model_calls_after": "0", "over": "0", "unanswered": "0", "spans_per_attempt": "1"}
RESULT = re.compile(
    "^CONTRACT (?P<adapter>\\S+) (?P<release>\\S+)" + "".join(f" {each}=(?P<{each}>\\S+)" for each in FIGURES),
    re.MULTILINE,
)


def readme() -> str:
    """The page of this folder."""
    rows = [("framework", "distribution", "releases", "put on by", "zero-code name")]
    for path in sorted(HERE.glob("*/pyproject.toml")):
        told = tomllib.loads(path.read_text())
        project, (entry,) = told["project"], told["project"]["entry-points"]["opentelemetry_instrumentor"]
        name = (
            project["description"]
            .removeprefix("otel-toolguard for ")
            .partition(":")[0]
            .removeprefix("the ")
            .removesuffix(" agents")
        )
        releases = ", ".join(f"`{each}`" for each in project["optional-dependencies"]["instruments"])
        line = told["tool"]["otel-toolguard"]["line"]
        rows.append((f"[{name}]({path.parent.name}/)", f"`{project['name']}`", releases, line, f"`{entry}`"))
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return INTRODUCTION + "\n".join((head, "|---" * len(rows[0]) + "|", *body)) + "\n"


def contract(logs: list[str]) -> int:
    """Prints what each run's contract came to, as a table and as it was said; 1 if one said nothing, or not this."""
    found = [RESULT.search(Path(log).read_text()) for log in logs]
    rows = [("adapter", "release", *FIGURES.values()), *(each.groups() for each in found if each is not None)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for each in found:
        print("no CONTRACT line" if each is None else each[0])
    good = [each is not None and each.groupdict() | WANTED == each.groupdict() for each in found]
    return 0 if all(good) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["readme"]:
        (HERE / "README.md").write_text(readme())
    else:
        sys.exit(contract(sys.argv[2:]))
