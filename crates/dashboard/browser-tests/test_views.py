"""Every view, by clicks and keys, on a laptop and a phone, light and dark."""

import re
from pathlib import Path

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from conftest import BLOCK_TOKENS, Engine, Page, Service, byte_tokenizer

ENGINES = 4


def luminance(page: Page) -> float:
    colour = page.run("return getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / (3 * 255)


def columns(page: Page) -> list[str]:
    return [text.strip(" ↑↓") for text in page.texts(".grid .head button")]


def lines(page: Page) -> list[list[str]]:
    """Cells of the visible rows, from the top."""
    script = """return [...document.querySelectorAll('.grid .line')]
        .sort((a, b) => a.dataset.at - b.dataset.at)
        .map((line) => [...line.children].map((cell) => cell.innerText))"""
    return page.run(script)


def column(page: Page, name: str) -> list[str]:
    at = columns(page).index(name)
    return [cells[at].strip() for cells in lines(page)]


def number(text: str) -> float:
    units = {"K": 1e3, "M": 1e6}
    return float(text.rstrip("KM").replace(",", "")) * units.get(text[-1:], 1)


def test_fleet(page: Page, demo: Service) -> None:
    page.open(demo)
    page.until(lambda: len(lines(page)) == ENGINES, "ranks")
    page.until(lambda: page.text("#ready") == "ready", "readiness")
    assert (luminance(page) < 0.3) == page.name.endswith("dark")
    page.until(lambda: number(page.texts(".card b")[4]) > 0, "events")
    page.until(lambda: column(page, "Trust") == ["exact"] * ENGINES, "exact ranks")
    page.shoot("fleet")

    page.click('[data-column="instance"]')
    page.until(lambda: column(page, "Instance") == ["1", "2", "3", "4"], "order by instance")
    page.click('[data-column="instance"]')
    page.until(lambda: column(page, "Instance") == ["4", "3", "2", "1"], "reverse order")
    assert page.find('.head [aria-sort="descending"]').text.startswith("Instance")

    endpoint = demo.get("/workers")[2]["endpoints"]["0"]
    page.find("input[type=search]").send_keys(f"demo exact {endpoint}")
    page.until(lambda: "1 of 4 ranks" in page.text("main"), "one rank")
    page.find("input[type=search]").send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    degraded = '[data-trust="degraded"]'
    page.click(degraded)
    page.until(lambda: lines(page) == [] and "0 of 4 ranks" in page.text("main"), "no degraded rank")
    page.click(degraded)
    page.until(lambda: len(lines(page)) == ENGINES, "all ranks")

    page.run("document.querySelector('.grid .line[tabindex=\"0\"]').focus()")
    page.press(Keys.ARROW_DOWN)
    page.press(Keys.ENTER)
    page.until(lambda: "tcp://127.0.0.1:" in page.text("main dialog[open]"), "the rank's details")
    assert "Instance 3, rank 0" in page.text("main dialog[open]")
    page.shoot("rank")
    page.press(Keys.ESCAPE)
    page.until(lambda: not page.all("main dialog[open]"), "closed details")
    page.check()


def test_live(page: Page, demo: Service) -> None:
    page.open(demo, "live")

    def shown(title: str) -> str:
        labels = page.run("return [...document.querySelectorAll('.chart canvas')].map((it) => it.ariaLabel)")
        return "".join(label for label in labels if label.startswith(title))

    for title in ["Events/s", "Queries/s"]:
        page.until(lambda title=title: re.search(r": [1-9]", shown(title)), title)
    page.until(lambda: re.search(r"p50 [\d.]+ (µs|ms).*p99 [\d.]+ (µs|ms|s)", shown("Query latency")), "latencies")

    def hit_rates() -> list[int]:
        found = re.search(r"predicted (\d+) %.*reported (\d+) %", shown("Hit rate"))
        return [int(rate) for rate in found.groups()] if found else [0, 100]

    page.until(lambda: min(hit_rates()) > 50 and abs(hit_rates()[0] - hit_rates()[1]) <= 5, "hit rates that agree")
    assert "No hits were reported" not in page.text("main")
    before = shown("Events/s")
    page.until(lambda: shown("Events/s") != before, "moving figures")
    assert not page.all("main .problem:not([hidden])")
    page.shoot("live")
    page.check()


def test_query(page: Page, demo: Service) -> None:
    page.open(demo, "query")
    page.until(lambda: page.texts("option") and "demo" in page.texts("option"), "the model")
    # Labels of one line are at one height, regardless of their fields.
    heights = page.run("return [...document.querySelectorAll('form .row label')].map((label) => label.offsetHeight)")
    assert len(heights) == 4 and len(set(heights)) == 1, heights
    prompt = page.find("textarea")
    prompt.send_keys("1, 2, three")
    page.click_button("Query")
    page.until(lambda: '"three" is not a whole number' in page.text("main .problem"), "the error")
    prompt.send_keys(Keys.CONTROL, "a")
    prompt.send_keys("1 99999999999")
    page.click_button("Query")
    refused = '"99999999999" is not between 0 and 4294967295'
    page.until(lambda: refused in page.text("main .problem"), "the number that is no token")
    assert "Device" not in page.text("main"), "a legend without bars"
    prompt.send_keys(Keys.CONTROL, "a")
    prompt.send_keys(" ".join(str(token) for token in range(40)))
    page.click_button("Query")
    answer = "40 tokens, 2 whole blocks of 16. No instance holds a prefix."
    page.until(lambda: answer in page.text("main"), "the answer")
    page.until(lambda: page.text("main").count("never seen") == ENGINES, "explanations")
    Select(page.all("select")[1]).select_by_value("text")
    page.click_button("Query")
    page.until(lambda: "tokenizer" in page.text("main .problem"), "a missing tokenizer")
    page.check()


def test_heat_map(page: Page, demo: Service) -> None:
    page.open(demo, "heat")
    page.click("summary")

    def counts() -> list[int]:
        rows = page.run("return [...document.querySelectorAll('tbody tr')].map((row) => row.innerText.split('\\t')[1])")
        return [int(count.replace(",", "")) for count in rows]

    page.until(lambda: len(counts()) == ENGINES and sum(counts()) > 0, "stores")
    colours = """const canvas = document.querySelector('canvas');
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const found = new Set();
        for (let at = 0; at < data.length; at += 4) found.add(`${data[at]},${data[at + 1]},${data[at + 2]}`);
        return found.size"""
    page.until(lambda: page.run(colours) > 4, "coloured cells")
    text = """const canvas = document.querySelector('canvas');
        const { top, right } = canvas.getBoundingClientRect();
        canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: right - 2, clientY: top + 5 }));
        return document.querySelector('.tip').textContent"""
    page.until(lambda: re.search(r"stored [\d,]+", page.run(text)), "the text of a cell")
    page.find("input[type=search]").send_keys("nothing")
    page.until(lambda: "0 ranks" in page.text("main"), "no rank")
    page.find("input[type=search]").send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    page.until(lambda: "4 ranks, page 1 of 1" in page.text("main"), "all ranks")
    page.click("summary")
    page.shoot("heat")
    page.check()


def test_the_heat_map_spreads_what_a_late_poll_found(laptop: Page, demo: Service) -> None:
    # In one window: the content of a column does not depend on the size or the colours, and nine columns take 20 s.
    laptop.open(demo, "heat")
    # Each poll takes longer than a column.
    laptop.run("""const real = fetch;
        window.fetch = async (path, ...rest) => {
            if (path === 'workers') await new Promise((done) => setTimeout(done, 700));
            return real(path, ...rest);
        }""")
    texts = """const canvas = document.querySelector('canvas');
        const { left, top, right } = canvas.getBoundingClientRect();
        const found = [];
        for (let x = right - 1; x > left; x -= 1) {
            canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: x, clientY: top + 5 }));
            const text = document.querySelector('.tip').textContent;
            if (text && text !== found.at(-1)) found.push(text);
        }
        return found"""

    def stored() -> list[int]:
        """Blocks of the first row in each column, from the newest to the column of the first poll."""
        columns = [re.search(r"stored ([\d,]+)", text) for text in laptop.run(texts)]
        return [int(column[1].replace(",", "")) for column in columns if column][:-1]

    columns = laptop.until(lambda: len(found := stored()) > 8 and found, "columns")
    # The load of the simulated engines is almost constant.
    assert min(columns[:-2]) > 0.4 * max(columns), columns


def test_prefixes_lead_to_their_query(page: Page, demo: Service) -> None:
    page.open(demo, "prefixes")
    page.until(lambda: "demo" in page.texts("option"), "the model")
    page.until(lambda: number(page.run("return String(flashIndexer.app.ranks.length)")) == ENGINES, "ranks")

    def shared() -> bool:
        page.click_button("Read the index")
        page.until(lambda: "blocks of 4 ranks" in page.text("[role=status]"), "the blocks")
        return bool(page.all("tbody button"))

    page.until(shared, "shared prefixes")
    # The table is sorted by this column, which the window never cuts off.
    seen = page.run("""const [cell, box] = ['.shared td:nth-child(2)', '.scroll-x']
            .map((it) => document.querySelector(it).getBoundingClientRect());
        return cell.right <= box.right""")
    assert seen and page.texts(".shared th")[1] == "Shared blocks"
    counts = [number(text) for text in page.texts(".shared td:nth-child(2)")]
    assert counts == sorted(counts, reverse=True)
    page.shoot("prefixes")
    frames = len(page.all("svg g"))
    assert frames > ENGINES
    page.click("tbody button")
    page.until(lambda: "Query this prefix" in page.text("main"), "the prefix")
    page.until(lambda: "No text: this service keeps no prompts" in page.text("main .panel p"), "why it has no text")
    assert not page.all("main .problem:not([hidden])")
    # A frame is a button for the keyboard too.
    page.click_button("All prefixes")
    page.until(lambda: len(page.all("svg g")) == frames, "all frames")
    page.run("document.querySelectorAll('svg g[tabindex=\"0\"]')[1].focus()")
    page.press(Keys.ENTER)
    page.until(lambda: "Up" in page.texts("main button"), "the frame")
    page.click_button("Query this prefix")
    page.until(lambda: "whole block" in page.text("main") and "The deepest match has" in page.text("main"), "matches")
    page.until(lambda: "whole prompt" in page.text("main"), "explanations")
    assert len(page.all(".match .track")) == ENGINES
    page.shoot("query")
    page.check("status of 409")


SYSTEM = (
    "You are a careful assistant.\n\n* Answer in <b>one</b> sentence.\n*\tSay so if you do not know.\n" + "Rule. " * 600
)
QUESTIONS = ["What is a prefix cache? 🙂", "<img src=x onerror=\"document.title='run'\">"]


def filled(question: str) -> str:
    """The question with whole blocks, enough of them for a frame on a phone."""
    return question + "." * (64 * BLOCK_TOKENS - len(question.encode()))


def test_prefixes_show_their_text(page: Page, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(tmp_path / "tokenizer.json")
    service = Service("--tokenizer", f"m={tokenizer}", "--prompt-text-bytes", "1MiB")
    system = SYSTEM[: len(SYSTEM) // BLOCK_TOKENS * BLOCK_TOKENS]
    prompts = [system + filled(question) for question in QUESTIONS]
    for number, prompt in enumerate(prompts):
        service.register(number, endpoint=Engine(prompt).endpoint)
        service.post("/score_completions", {"model_name": "m", "prompt": prompt})
    page.open(service, "prefixes")
    page.until(lambda: page.texts("option") == ["m"], "the model")
    page.until(lambda: page.run("return flashIndexer.app.ranks.map((it) => it.trust)") == ["exact"] * 2, "both engines")
    page.click_button("Read the index")
    page.click("tbody button")
    marked = "return document.querySelector('.prompt mark')?.textContent ?? ''"
    page.until(lambda: page.run(marked) == system, "the text of the shared prefix")
    assert not page.all(".prompt span")
    page.shoot("text")

    page.run("[...document.querySelectorAll('svg g')].at(-1).focus()")
    page.press(Keys.ENTER)
    page.until(lambda: page.run(marked) in map(filled, QUESTIONS), "the text of a question")
    assert page.run("return document.querySelector('.prompt span').textContent") == system
    # The marked text is visible, and the rest can be reached by the keyboard.
    page.run("document.querySelector('.prompt').focus()")
    scrolled = page.run("return document.querySelector('.prompt').scrollTop")
    visible = page.run("""const [box, mark] = ['.prompt', '.prompt mark']
            .map((it) => document.querySelector(it).getBoundingClientRect());
        return mark.top >= box.top && mark.top < box.bottom""")
    assert visible and scrolled > 0
    page.press(Keys.HOME)
    page.until(lambda: page.run("return document.querySelector('.prompt').scrollTop") == 0, "the beginning")
    page.run("document.querySelector('.prompt').scrollTop = 1e6")
    page.shoot("text-continued")
    assert page.run("return document.title") == "Flash Indexer"
    assert page.run("return document.querySelectorAll('main img, main b').length") == 0
    page.check()

    # Newer prompts have replaced the old one.
    for number in range(40):
        service.post("/score_completions", {"model_name": "m", "prompt": f"{number} " * 20_000})
    page.click_button("All prefixes")
    page.click("tbody button")
    page.until(lambda: "No text: no kept prompt" in page.text("main .panel p"), "that the prompt was dropped")
    page.check("status of 404")
    assert service.stop() == 0


def test_health(page: Page, demo: Service) -> None:
    page.open(demo, "health")
    titles = ["Readiness", "Streams", "Drops by reason", "Limits reached", "Service"]
    titles += ["Peers", "Shared store", "Discovery"]
    page.until(lambda: page.texts(".panel h2") == titles, "the panels")
    page.until(lambda: "No shared store is configured." in page.text("main"), "the shared store")
    received = r"messages received\s+([\d,]+)"
    first = page.until(lambda: re.search(received, page.text("main")), "figures")
    page.until(lambda: re.search(received, page.text("main"))[1] != first[1], "figures that follow the service")
    page.shoot("health")
    page.check()


def test_the_theme_and_the_keyboard(page: Page, demo: Service) -> None:
    page.open(demo)
    page.until(lambda: len(lines(page)) == ENGINES, "ranks")
    for theme, is_dark in [("light", False), ("dark", True), ("system", page.name.endswith("dark"))]:
        page.click("#theme")
        page.until(lambda theme=theme: page.find("#theme").accessible_name == f"Theme: {theme}", theme)
        assert (luminance(page) < 0.3) == is_dark
    page.open(demo)
    page.find("body").send_keys(Keys.TAB)
    assert page.driver.switch_to.active_element.text == "Skip to content"
    for _ in range(4):
        page.press(Keys.TAB)
    assert page.driver.switch_to.active_element.text == "Live"
    page.press(Keys.ENTER)
    page.until(lambda: page.all(".chart"), "the view")
    page.find(".skip").send_keys(Keys.ENTER)
    assert page.driver.switch_to.active_element.get_attribute("id") == "main"
    page.driver.back()
    page.until(lambda: page.all(".grid"), "the view before")
    page.view("live")
    page.run("location.hash = 'nothing'")
    page.until(lambda: page.driver.current_url.endswith("#live"), "the address of the view")
    assert page.all(".chart"), "the view stays"
    # Everything comes from the service itself.
    hosts = page.run("return performance.getEntriesByType('resource').map((it) => new URL(it.name).origin)")
    assert set(hosts) == {demo.url}
    page.check()
