"""The services that the tests share."""

from collections.abc import Iterator

import pytest

from service import BINARY, Service, new_token, running


@pytest.fixture(scope="session", autouse=True)
def _binary() -> None:
    if not BINARY.exists():
        pytest.fail(f"{BINARY} is missing; run scripts/test-http-api, or set FLASH_INDEXER_BINARY")


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """A service without tokens."""
    with running() as service:
        yield service


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a token file."""
    token, entry = new_token()
    file = tmp_path_factory.mktemp("guarded") / "tokens.toml"
    file.write_text(entry)
    with running("--token-file", file, token=token) as service:
        yield service
