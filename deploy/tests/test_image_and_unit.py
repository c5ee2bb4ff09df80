"""The Dockerfile without a daemon, and the systemd unit and the Debian package without a booted system."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import tomllib
import urllib.request
from pathlib import Path

import pytest

from cluster import Secrets
from support import BINARY, ROOT, check, free_port, run, running, wait_for

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
UNIT = DEPLOY / "systemd/flash-indexer.service"


def settings() -> dict[str, str]:
    """The settings of the unit's service; the values of a repeated one are joined."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        found[name] = f"{found[name]} {value}" if name in found else value
    return found


def variables() -> set[str]:
    """The environment variables that `serve --help` names."""
    return set(re.findall(r"\[env: (\w+)", check(BINARY, "serve", "--help"))) | {"FLASH_INDEXER_LOG"}


def is_ready(port: int) -> bool:
    """Whether the service at a port is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_the_linter_has_no_complaints() -> None:
    check("hadolint", DEPLOY / "Dockerfile")


def test_the_context_has_what_cargo_needs(tmp_path: Path) -> None:
    patterns = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    admitted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    assert "*" in patterns
    for file in check("git", "ls-files", cwd=ROOT).splitlines():
        if any(file == name or file.startswith(f"{name}/") for name in admitted) and "/target/" not in file:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tmp_path / file)
    metadata = check("cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version=1", cwd=tmp_path)
    (package,) = re.findall(r"--package (\S+)", DOCKERFILE)
    assert f'"name":"{package}"' in metadata and '"name":"flash-indexer"' in metadata
    included = run("grep", "-rnoE", r'include_(str|bytes)!\("[^"]+"', "crates", "--include=*.rs", cwd=tmp_path).stdout
    for file, path in re.findall(r'^(\S+?):\d+:include_\w+!\("(.+)"$', included, re.MULTILINE):
        assert (tmp_path / file).parent.joinpath(path).exists(), f"{file} includes {path}"


def test_the_image_has_the_libraries_of_the_program() -> None:
    # The libraries of distroless/cc-debian12.
    image = {"linux-vdso", "ld-linux-x86-64", "libc", "libm", "libgcc_s", "libstdc++", "libdl", "libpthread", "librt"}
    needed = {Path(name).name.split(".so")[0] for name in re.findall(r"(\S+\.so\.\d+)", check("ldd", BINARY))}
    assert needed <= image


def test_the_command_of_the_image_asks_for_access(tmp_path: Path) -> None:
    environment = dict(re.findall(r"^ENV (FLASH_\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))
    assert environment.keys() <= variables()
    assert 'CMD ["serve"]' in DOCKERFILE and re.search(r"^USER 65532:65532$", DOCKERFILE, re.MULTILINE)
    refused = run(BINARY, "serve", env=environment)
    assert refused.returncode != 0 and "--token-file" in refused.stderr
    port = free_port()
    with running(tmp_path / "log", BINARY, "serve", "--insecure", "--port", port, env=environment):
        wait_for("readiness", lambda: is_ready(port))


def test_the_unit_is_valid(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/flash-indexer", str(BINARY.resolve())))
    verified = run("systemd-analyze", "verify", unit)
    # Other units of the machine may have faults.
    assert verified.returncode == 0 and UNIT.name not in verified.stderr, verified.stderr
    check("systemd-analyze", "security", "--offline=true", "--threshold=15", UNIT)
    users = run("systemd-sysusers", "--dry-run", DEPLOY / "systemd/flash-indexer.sysusers.conf")
    assert users.returncode == 0 and settings()["User"] in users.stdout + users.stderr, users.stderr


def test_the_debian_package_creates_its_user_and_stops_its_service(tmp_path: Path) -> None:
    """Its scripts run as dpkg runs them for another root, with stand-ins for the programs that call systemd."""
    crate = ROOT / "crates/cli"
    package = tomllib.loads((crate / "Cargo.toml").read_text())["package"]["metadata"]["deb"]
    root, calls, programs = tmp_path / "root", tmp_path / "calls", tmp_path / "bin"
    for source, target, _ in package["assets"]:
        if target.startswith("usr/lib/sysusers.d/"):
            (root / target).parent.mkdir(parents=True)
            shutil.copy(crate / source, root / target)
    (root / "etc").mkdir()
    programs.mkdir()
    for program in ("systemctl", "deb-systemd-invoke"):
        (programs / program).write_text(f'#!/bin/sh\necho {program} "$@" >> {calls}\n')
        (programs / program).chmod(0o755)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "DPKG_ROOT": str(root)}

    def called(script: str, *arguments: str) -> list[str]:
        calls.write_text("")
        check("sh", crate / package["maintainer-scripts"] / script, *arguments, env=env)
        return calls.read_text().splitlines()

    reload = "systemctl daemon-reload"
    steps = [
        (("postinst", "configure", ""), [reload]),
        (("prerm", "upgrade", "2"), []),
        (("postinst", "configure", "1"), [reload, f"deb-systemd-invoke try-restart {UNIT.name}"]),
        (("prerm", "remove"), [f"deb-systemd-invoke stop {UNIT.name}"]),
        (("postrm", "remove"), [reload]),
    ]
    assert [called(*step) for step, _ in steps] == [[] for _ in steps], "systemd does not run"
    assert re.search(rf"^{settings()['User']}:", (root / "etc/passwd").read_text(), re.MULTILINE)
    (root / "run/systemd/system").mkdir(parents=True)
    assert [called(*step) for step, _ in steps] == [expected for _, expected in steps]


def allowed_calls() -> set[str]:
    """The system calls that the unit admits."""

    def members(name: str) -> set[str]:
        if not name.startswith("@"):
            return {name}
        lines = check("systemd-analyze", "syscall-filter", name).splitlines()[1:]
        inner = [line.strip() for line in lines if line.startswith("    ") and not line.strip().startswith("#")]
        return set().union(*map(members, inner))

    admitted, denied = settings()["SystemCallFilter"].split(" ~")
    return members(admitted) - members(denied)


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_the_service_runs_with_what_the_unit_admits(tmp_path: Path) -> None:
    """The command line and the example of variables get ready, and need no other system call or kind of address."""
    lines = (DEPLOY / "systemd/flash-indexer.env").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert example.keys() <= variables()
    (tmp_path / "etc").mkdir()
    secrets = Secrets(tmp_path / "secrets")
    shutil.copy(secrets.folder / "tokens.toml", tmp_path / "etc")
    (tmp_path / "etc/engines.json").write_text('[{"instance_id": 1, "endpoint": "tcp://localhost:1"}]')
    port, trace = free_port(), tmp_path / "calls"
    command = [
        part.replace("/usr/local/bin/flash-indexer", str(BINARY)).replace("/var/lib", str(tmp_path))
        for part in shlex.split(settings()["ExecStart"])
    ]
    env = {name: value.replace("/etc/flash-indexer", str(tmp_path / "etc")) for name, value in example.items()}
    env |= {"FLASH_INDEXER_PORT": str(port), "PATH": os.environ["PATH"]}
    with (tmp_path / "log").open("w") as log:
        traced = subprocess.Popen(["strace", "-fqqo", trace, *command], env=env, stderr=log)
        wait_for("readiness", lambda: is_ready(port))
        # strace passes no signal on. The id of the service is the first of the trace.
        os.kill(int(trace.read_text().split(maxsplit=1)[0]), signal.SIGTERM)
        assert traced.wait(60) == 0, (tmp_path / "log").read_text()
    assert list(tmp_path.glob("flash-indexer/snapshot-*"))
    text = trace.read_text()
    # Before the program starts there is nothing to filter but its own execve.
    called = set(re.findall(r"^\d+ +(\w+)\(", text, re.MULTILINE))
    assert len(called) > 30 and called <= allowed_calls(), called - allowed_calls()
    families = set(re.findall(r"\bsocket\((AF_\w+)", text))
    assert families <= set(settings()["RestrictAddressFamilies"].split())
    assert not re.search(r"PROT_WRITE\|PROT_EXEC", text), "MemoryDenyWriteExecute"
