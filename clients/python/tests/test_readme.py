"""The Python code of the READMEs."""

import re
import subprocess
import sys
from pathlib import Path

from conftest import BINARY, PATIENCE_S, ROOT, wait_for

EXAMPLE = ROOT / "clients/python/examples/first_score.py"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_first_score_of_the_readme() -> None:
    (code,) = blocks(ROOT / "README.md", "python")
    assert EXAMPLE.read_text().endswith(f"\n\n{code}")
    expected = next(text for text in blocks(ROOT / "README.md", "text") if text.startswith("engine"))
    demo = subprocess.Popen(
        [BINARY, "serve", "--demo", "--port", "0"], stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    try:
        address = next(found for line in demo.stdout if (found := re.search(r"http://[\d.:]+", line)))
        script = EXAMPLE.read_text().replace("http://127.0.0.1:8090", address.group())

        def is_answered() -> bool:
            answer = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
            return answer.stdout == expected

        wait_for("the documented answer", is_answered)
    finally:
        demo.terminate()
        demo.communicate(timeout=PATIENCE_S)


def test_the_other_code_is_python() -> None:
    for page in ROOT.glob("clients/*/README.md"):
        for code in blocks(page, "python"):
            compile(code, str(page), "exec")
