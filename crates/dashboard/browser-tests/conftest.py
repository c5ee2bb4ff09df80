"""A real service with simulated engines, and a headless browser."""

import json
import os
import subprocess
import threading
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

BINARY = Path(os.environ["FLASH_INDEXER_BINARY"])
SCREENSHOTS = os.environ.get("DASHBOARD_SCREENSHOTS")
# Tokens of a block of the engines that a test registers.
BLOCK_TOKENS = 16
# Longest wait for the content of a page, in seconds.
PATIENCE = 60
# Exceptions of a condition while the page is not yet, or no longer, in the expected state.
NOT_YET = (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    IndexError,
    NoSuchElementException,
    StaleElementReferenceException,
)
SIZES = {"laptop": (1366, 860), "phone": (390, 844), "smallphone": (360, 640)}


def byte_tokenizer(path: Path) -> Path:
    """Writes a tokenizer whose tokens are the bytes of a text."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    steps = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocabulary = {letter: byte for byte, letter in letters.items()}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": steps, "decoder": steps, "model": model}
    path.write_text(json.dumps(tokenizer))
    return path


class Service:
    """A running `flash-indexer serve` at a port of its choice."""

    def __init__(self, *arguments: str) -> None:
        command = [str(BINARY), "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}
        )
        for line in self.process.stderr:
            if "listening on http" in line:
                self.url = "http" + line.split("listening on http")[1].split()[0]
                break
        else:
            raise AssertionError(f"the service ended: {self.process.wait()}")
        # The log is not read further; a full pipe drops lines and blocks nothing.

    def post(self, path: str, body: object, token: str | None = None) -> object:
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def get(self, path: str) -> object:
        with urllib.request.urlopen(self.url + path) as response:
            return json.load(response)

    def register(self, instance: object, token: str | None = None, **more: object) -> None:
        """Registers a rank whose engine never answers."""
        body = {"instance_id": instance, "endpoint": "tcp://127.0.0.1:9", "model_name": "m", "block_size": BLOCK_TOKENS}
        self.post("/register", {**body, **more}, token)

    def stop(self) -> int:
        self.process.terminate()
        self.process.stderr.close()
        return self.process.wait(timeout=PATIENCE)


class Engine:
    """An engine whose events are pulled, as TensorRT-LLM publishes them. It holds a prompt, whose tokens are bytes."""

    def __init__(self, prompt: str) -> None:
        tokens = list(prompt.encode())
        ends = range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)
        blocks = [
            {
                "type": "stored_block",
                "block_hash": zlib.crc32(bytes(tokens[:end])),
                "tokens": [
                    {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                    for token in tokens[end - BLOCK_TOKENS : end]
                ],
                "cache_level": 0,
                "priority": 35,
            }
            for end in ends
        ]
        data = [
            {"type": "created", "num_blocks_per_cache_level": [4096]},
            {"type": "stored", "parent_hash": None, "blocks": blocks},
        ]
        events = [{"event_id": number, "window_size": 65536, "data": event} for number, event in enumerate(data)]
        answers = [json.dumps(events).encode()]

        class Handler(BaseHTTPRequestHandler):
            # A closed connection would make the engine's events unreliable.
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                body = answers.pop() if answers else b"[]"
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture(scope="session")
def demo() -> Iterator[Service]:
    service = Service("--demo")
    yield service
    assert service.stop() == 0


@dataclass
class Page:
    """The dashboard in a browser."""

    driver: webdriver.Chrome
    name: str

    def open(self, service: Service, view: str | None = None) -> None:
        self.driver.get(service.url + "/ui")
        if view:
            self.view(view)

    def view(self, view: str) -> None:
        self.click(f'nav a[href="#{view}"]')
        self.until(lambda: self.find(f'nav a[href="#{view}"]').get_attribute("aria-current") == "page", view)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        """Clicks an element once it is there; the page may replace it at any time."""
        self.until(lambda: self.find(selector).click() is None, selector)

    def click_button(self, text: str) -> None:
        path = f"//main//button[normalize-space()='{text}']"
        self.until(lambda: self.driver.find_element(By.XPATH, path).click() is None, text)

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements at one moment; the page may replace them at any time."""
        script = "return [...document.querySelectorAll(arguments[0])].map((it) => it.innerText)"
        return self.driver.execute_script(script, selector)

    def text(self, selector: str) -> str:
        return "\n".join(self.texts(selector))

    def run(self, script: str, *arguments: object) -> object:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition, what: str):
        waiting = WebDriverWait(self.driver, PATIENCE, poll_frequency=0.1, ignored_exceptions=NOT_YET)
        return waiting.until(lambda _: condition(), f"no {what}: {self.text('main')[:2000]}")

    def press(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def shoot(self, view: str) -> None:
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(Path(SCREENSHOTS) / f"{self.name}-{view}.png"))

    def check(self, *refused: str) -> None:
        """Nothing is wider than the window, and the browser reported no fault but responses with these statuses."""
        wide = self.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"the page is {wide} pixels too wide"
        cut = self.run(
            "return [...document.querySelectorAll('nav, .grid .scroll')]"
            ".filter((part) => part.scrollWidth > part.clientWidth).map((part) => part.textContent)"
        )
        assert cut == [], f"the window cuts off: {cut}"
        # A button of a table that has no room wraps between its letters.
        heights = self.run("return [...document.querySelectorAll('td button')].map((button) => button.offsetHeight)")
        assert all(height <= 48 for height in heights), f"buttons are squeezed: {heights}"
        # Requests without a token are refused.
        expected = ("status of 401", "status of 403", "status of 501", *refused)
        faults = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        faults = [fault for fault in faults if not any(text in fault for text in expected)]
        assert faults == []


def browser(size: str, scheme: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    width, height = SIZES[size]
    for argument in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={width},{height}"]:
        options.add_argument(argument)
    if size.endswith("phone"):
        metrics = {"width": width, "height": height, "pixelRatio": 2, "touch": True}
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(os.environ.get("CHROMEDRIVER", "/usr/bin/chromedriver")))
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    return driver


@pytest.fixture(scope="session", params=["laptop-light", "phone-dark", "laptop-dark", "smallphone-light"])
def window(request: pytest.FixtureRequest) -> Iterator[Page]:
    """A browser of each size in each colour scheme. Its start takes longer than most tests."""
    driver = browser(*request.param.split("-"))
    yield Page(driver, request.param)
    driver.quit()


@pytest.fixture
def page(window: Page) -> Page:
    """A page of each size in each colour scheme, without the faults of the test before."""
    window.driver.get("about:blank")
    window.driver.get_log("browser")
    return window


@pytest.fixture
def laptop() -> Iterator[Page]:
    driver = browser("laptop", "light")
    yield Page(driver, "laptop-light")
    driver.quit()
