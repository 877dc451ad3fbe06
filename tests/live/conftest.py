import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def jaeger():
    """A real Jaeger for the whole run; without one the tests fail in CI and are skipped, with advice, elsewhere."""
    from jaeger import CannotBuildError, Jaeger

    try:
        server = Jaeger()
    except CannotBuildError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    yield server
    server.stop()
