"""What the tests of the packages need."""

import pytest

from support import BINARY


@pytest.fixture(scope="session", autouse=True)
def _binary() -> None:
    if not BINARY.exists():
        pytest.fail(f"{BINARY} is missing; run scripts/test-packages, or set FLASH_INDEXER_BINARY")
