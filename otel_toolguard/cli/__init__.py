"""The command ``otel-toolguard``; needs the extra ``cli``."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_NEEDED = ("typer", "rich")


def main() -> None:
    """Runs the command and exits: 0 done, 1 bad input lines, 2 usage or settings, 3 with ``--fail-on-trip``."""
    if sys.argv[1:2] == ["hook"]:  # runs at every tool call of an agent, which waits for it: no typer, no rich
        from otel_toolguard.cli.hook import plain_options
        from otel_toolguard.cli.hook import run as answer

        on_error = plain_options(sys.argv[2:])
        if on_error is not None:
            answer(on_error)
    if any(find_spec(name) is None for name in _NEEDED):
        sys.stderr.write('The command otel-toolguard needs typer and rich: pip install "otel-toolguard[cli]"\n')
        sys.exit(2)
    from otel_toolguard.cli.app import run

    run()
