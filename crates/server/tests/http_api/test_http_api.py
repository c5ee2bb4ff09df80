"""The HTTP API answers as its OpenAPI document says: requests that Schemathesis generates from the document."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import wrong
from service import MODEL, Service

HERE = Path(__file__).parent
SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"
EXAMPLES = int(os.environ.get("HTTP_API_EXAMPLES", "60"))
SEED = int(os.environ.get("HTTP_API_SEED", "1"))
RUN_S = 600
"""Longest time of a run."""

# These need a shared store.
WITHOUT_SUCCESS = {"/store GET"}


def run(service: Service, tmp_path: Path, *options: object, bodies: str = "json", entry: str = "") -> tuple[int, str]:
    """Runs Schemathesis with all checks. Returns its exit status and its report."""
    settings = {
        "bodies": bodies,
        "url": service.url,
        "token": service.token,
        "wrong": entry,
        "model": MODEL,
        "instance": service.instance,
        "request_id": service.request_id,
        "block_hashes": service.block_hashes,
        "prompt_hash": service.prompt_hash,
        "successes": str(tmp_path / "successes.json"),
    }
    environment = os.environ | {
        "HTTP_API_RUN": json.dumps(settings),
        "SCHEMATHESIS_HOOKS": "hooks",
        "PYTHONPATH": str(HERE),
    }
    command = [SCHEMATHESIS, "--config-file", HERE / "schemathesis.toml", "run", f"{service.url}/openapi.json"]
    command += ["--seed", SEED, "--generation-database", "none", "--no-color", *options]
    if service.token:
        command += ["--header", f"Authorization: Bearer {service.token}"]
    done = subprocess.run(
        [str(part) for part in command], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("bodies", ["json", "binary"])
def test_every_endpoint_answers_as_the_document_says(service: Service, tmp_path: Path, bodies: str) -> None:
    status, report = run(service, tmp_path, "--max-examples", EXAMPLES, bodies=bodies)
    assert status == 0, report
    successes = Counter(json.loads((tmp_path / "successes.json").read_text()))
    without = {operation for operation, count in successes.items() if count == 0}
    assert without <= WITHOUT_SUCCESS, f"no request succeeded, so no response was checked: {without}"
    service.check_unharmed()


def test_every_endpoint_needs_the_tokens_of_the_document(guarded: Service, tmp_path: Path) -> None:
    status, report = run(guarded, tmp_path, "--max-examples", EXAMPLES // 3)
    assert status == 0, report
    guarded.check_unharmed()


@pytest.mark.parametrize("entry", wrong.ENTRIES)
def test_a_wrong_entry_of_the_document_is_found(service: Service, guarded: Service, tmp_path: Path, entry: str) -> None:
    service = guarded if "token" in entry else service
    expected = wrong.ENTRIES[entry]
    options = ["--include-path", expected.path, "--phases", "coverage,fuzzing", "--max-examples", 30]
    status, report = run(service, tmp_path, *options, entry=entry)
    assert status == 1, report
    assert expected.finding in report, report
