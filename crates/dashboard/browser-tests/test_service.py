"""Large fleets, hostile names, tokens, and the end of the service."""

import subprocess
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from conftest import BINARY, Page, Service
from test_views import columns, lines

MANY = 1500
LONG_MODEL = "meta-llama/Llama-3.1-405B-Instruct-FP8"
# Pods of one deployment.
PODS = [f"vllm-llama-3-8b-instruct-7d9f8b6c5d-{end}" for end in ["q7wmw", "x2x4z"]]
# Instances that are named by their addresses.
ADDRESSES = ["10.244.13.7:8000", "10.244.113.99:8000", "10.244.113.201:8000"]
# Placeholder of a figure that was not read.
NOT_READ = "\N{EN DASH}"
# Ends of names, which a cut in the middle keeps, and each end's distance beyond its cell.
NAME_ENDS = """return [...document.querySelectorAll('.line .name')].map((name) => {
    const range = document.createRange();
    range.selectNode(name.lastChild);
    const [end, cell] = [range, name.parentElement].map((it) => it.getBoundingClientRect());
    return [range.toString(), end.right - cell.right];
})"""


def test_names_of_users_are_shown_as_text(laptop: Page) -> None:
    service = Service()
    script = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
    service.register(script, model_name=f"{script}&amp;", tenant_id=script)
    service.register(18446744073709551615)
    laptop.open(service)
    laptop.until(lambda: len(lines(laptop)) == 2, "ranks")
    assert any(script in cells[0] for cells in lines(laptop))
    assert any("18446744073709551615" in cells[0] for cells in lines(laptop)), "a large id keeps its digits"
    laptop.run("[...document.querySelectorAll('.line')].find((it) => it.innerText.includes('<img')).click()")
    laptop.until(lambda: script in laptop.text("main dialog[open]"), "the name")
    laptop.press(Keys.ESCAPE)
    for view in ["query", "prefixes", "heat", "health", "live"]:
        laptop.view(view)
    laptop.until(lambda: "No hits were reported in these minutes" in laptop.text("main"), "the missing reports")
    assert laptop.run("return document.title") == "Flash Indexer"
    assert laptop.run("return document.querySelectorAll('main img, main script').length") == 0
    laptop.check()
    assert service.stop() == 0


def test_long_names_are_cut_in_their_places(page: Page) -> None:
    service = Service()
    for number in range(2):
        service.register(PODS[number], model_name=LONG_MODEL)
    page.open(service)
    page.until(lambda: sorted(cells[0] for cells in lines(page)) == PODS, "whole names")
    page.shoot("long-names")
    # The pods differ at the end, which is inside the cell.
    ends = page.run(NAME_ENDS)
    assert sorted(end for end, _ in ends) == ["q7wmw", "x2x4z"]
    assert all(beyond <= 0.5 for _, beyond in ends), ends
    assert page.run("return [...document.querySelectorAll('.line .name')].map((it) => it.title).sort()") == PODS
    for view, box in [("query", "form .row"), ("prefixes", "section > .row")]:
        page.view(view)
        page.until(lambda: page.texts("main select option:first-child")[0] == LONG_MODEL, "the model")
        page.shoot(f"long-names-{view}")
        beyond = page.run(
            """const right = (part) => document.querySelector(part).getBoundingClientRect().right;
            return right('main select') - right(arguments[0])""",
            f"main {box}",
        )
        assert beyond <= 0.5, f"the model is {beyond} pixels wider than its place"
    page.check()
    assert service.stop() == 0


def test_addresses_are_whole(page: Page) -> None:
    service = Service()
    for address in ADDRESSES:
        service.register(address)
    page.open(service)
    page.until(lambda: sorted(cells[0] for cells in lines(page)) == sorted(ADDRESSES), "ranks")
    page.shoot("addresses")
    cut = """return [...document.querySelectorAll('.line .name, .line .name span')]
        .filter((it) => it.scrollWidth > it.clientWidth && it.clientWidth > 0).map((it) => it.textContent)"""
    assert page.run(cut) == []
    page.run("""window.drawn = new Set();
        const real = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
            window.drawn.add(text);
            return real.call(this, text, ...rest);
        }""")
    page.view("heat")
    labels = {f"{address} / 0" for address in ADDRESSES}
    page.until(lambda: "3 ranks" in page.text("main") and page.run("return window.drawn.size") > 0, "the drawing")
    assert labels <= set(page.run("return [...window.drawn]"))
    page.shoot("heat-addresses")
    page.check()
    assert service.stop() == 0


@pytest.mark.parametrize(("width", "tiers"), [(768, 1), (950, 1), (800, 4), (1200, 4)])
def test_the_head_of_the_fleet_scrolls_sideways_with_its_rows(laptop: Page, width: int, tiers: int) -> None:
    service = Service()
    for address in ADDRESSES:
        service.register(address)
    laptop.driver.set_window_size(width, 860)
    laptop.open(service)
    # Each rank has blocks in the first tiers.
    laptop.run(
        """const real = fetch;
        window.fetch = async (path, ...rest) => {
            const response = await real(path, ...rest);
            if (path !== 'workers') return response;
            const workers = await response.json();
            const held = ['device', 'host_pinned', 'disk', 'external'].slice(0, arguments[0]);
            for (const { listeners } of workers) {
                for (const { blocks } of Object.values(listeners)) for (const tier of held) blocks[tier] = 1;
            }
            return Response.json(workers);
        }""",
        tiers,
    )
    tier_columns = {"Device", "Host", "Disk", "External"}
    shown = tiers if tiers > 1 else 0
    laptop.until(lambda: len(tier_columns.intersection(columns(laptop))) == shown, "the columns of the tiers")
    laptop.until(lambda: len(lines(laptop)) == len(ADDRESSES), "ranks")
    laptop.run("document.querySelector('.grid .scroll').scrollLeft = 1e6")
    box = """const boxOf = (it) => it.getBoundingClientRect();
        const [scroll, head, line] = ['.grid .scroll', '.grid .head', '.grid .line']
            .map((selector) => document.querySelector(selector));"""
    apart = f"{box} return [...head.children].map((cell, at) => boxOf(cell).left - boxOf(line.children[at]).left)"
    assert max(map(abs, laptop.run(apart))) <= 0.5, "cells of the head are above those of the rows"
    why = f"{box} return boxOf(head.lastElementChild).right - boxOf(scroll).right"
    assert columns(laptop)[-1] == "Why" and laptop.run(why) <= 0.5
    narrower = f"{box} return [head, line].map((it) => scroll.scrollWidth - boxOf(it).width)"
    assert max(laptop.run(narrower)) <= 0.5, "the head and the rows are as wide as what scrolls"
    assert laptop.run(f"{box} return document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    # A cut name keeps the text before the port: the port is the same for all.
    ends = laptop.run(NAME_ENDS)
    assert sorted(end for end, _ in ends) == sorted(address[-10:] for address in ADDRESSES)
    assert all(beyond <= 0.5 for _, beyond in ends), ends
    assert service.stop() == 0


def test_the_heat_map_names_models_and_tenants_of_which_there_are_several(page: Page) -> None:
    service = Service()
    service.register(1)
    page.open(service, "heat")
    page.click("summary")
    page.until(lambda: page.texts("tbody td:first-child") == ["1 / 0"], "the only rank")
    height = page.run("return document.querySelector('canvas').clientHeight")
    service.register(1, model_name=LONG_MODEL)
    names = ["1 / 0 · m", f"1 / 0 · {LONG_MODEL}"]
    page.until(lambda: sorted(page.texts("tbody td:first-child")) == sorted(names), "models")
    service.register(1, tenant_id="t")
    names = ["1 / 0 · m · default", "1 / 0 · m · t", f"1 / 0 · {LONG_MODEL} · default"]
    page.until(lambda: sorted(page.texts("tbody td:first-child")) == sorted(names), "tenants")
    assert page.run("return document.querySelector('canvas').clientHeight") > 3 * (height - 22), "lines for the models"
    # The tooltip of each row has the name of its line in the table.
    shown = page.run("""const canvas = document.querySelector('canvas');
        const { top, right, height } = canvas.getBoundingClientRect();
        return [0, 1, 2].map((row) => {
            const at = { clientX: right - 1, clientY: top + ((row + 0.5) * (height - 22)) / 3 };
            canvas.dispatchEvent(new PointerEvent('pointermove', at));
            return document.querySelector('.tip').textContent.split(/, \\d+ s ago|\\n/)[0];
        })""")
    assert shown == page.texts("tbody td:first-child")
    page.shoot("heat-models")
    page.check()
    assert service.stop() == 0


def test_a_service_without_engines_says_what_to_do(page: Page) -> None:
    service = Service()
    page.open(service)
    page.until(lambda: "POST /register" in page.text("main"), "the next step")
    page.shoot("empty-fleet")
    for view, button in [("query", "Query"), ("prefixes", "Read the index")]:
        page.view(view)
        if view == "query":
            page.find("textarea").send_keys("1")
        page.click_button(button)
        page.until(lambda: "POST /register" in page.text("main [role=status]"), "the next step")
        page.shoot(f"empty-{view}")
    page.check()
    assert service.stop() == 0


def test_each_trust_state_has_its_room(page: Page) -> None:
    service = Service()
    service.post("/register", {"instance_id": "pod", "model_name": "m", "block_size": 16, "events": "none"})
    page.open(service)
    page.until(lambda: page.texts(".line .pill") == ["approximate"], "the rank")
    page.shoot("approximate")
    cut = """return [...document.querySelectorAll('.line > *')]
        .filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.innerText)"""
    assert page.run(cut) == []
    # Rows reach the edge of the table, even without a scroll bar.
    widths = "return ['.line', '.grid .scroll'].map((it) => document.querySelector(it).getBoundingClientRect().width)"
    assert len(set(page.run(widths))) == 1
    page.check()
    assert service.stop() == 0


def test_a_large_fleet_draws_only_the_rows_in_sight(laptop: Page) -> None:
    service = Service()
    for number in range(MANY):
        service.register(f"engine-{number}", dp_rank=number % 4)
    laptop.open(service)
    laptop.until(lambda: f"{MANY:,} ranks" in laptop.text("main"), "all ranks")
    assert len(lines(laptop)) < 60
    laptop.click('[data-column="instance"]')
    laptop.until(lambda: lines(laptop)[0][0] == "engine-0", "order by instance")
    laptop.run("document.querySelector('.grid .line[tabindex=\"0\"]').focus()")
    laptop.press(Keys.END)
    laptop.until(lambda: lines(laptop)[-1][0] == f"engine-{MANY - 1}", "the last row")
    assert len(lines(laptop)) < 60
    # The row with the focus is whole, below the head and above the end of the table.
    hidden = """const [line, grid, head] = [document.activeElement, ...document.querySelectorAll('.grid, .grid .head')]
            .map((it) => it.getBoundingClientRect());
        return [head.bottom - line.top, line.bottom - grid.bottom]"""
    assert max(laptop.run(hidden)) <= 0.5
    laptop.press(Keys.PAGE_UP, Keys.PAGE_UP)
    assert max(laptop.run(hidden)) <= 0.5
    laptop.find("input[type=search]").send_keys("engine-1234")
    laptop.until(lambda: [cells[0] for cells in lines(laptop)] == ["engine-1234"], "one rank")
    laptop.check()
    assert service.stop() == 0


def test_a_token_is_asked_for_and_kept_for_the_tab_only(laptop: Page, tmp_path: Path) -> None:
    command = [str(BINARY), "token", "people", "--scope", "query,events,admin"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    file = tmp_path / "tokens.toml"
    file.write_text(made.stdout)
    secret = next(word for word in made.stderr.split() if len(word) > 30)
    service = Service("--token-file", str(file))
    service.register("pod", token=secret)
    laptop.open(service)
    laptop.until(lambda: "requires a bearer token" in laptop.text("#problem"), "the request for a token")
    # Data that was not read has no figures.
    laptop.find("input[type=search]").send_keys("pod")
    assert laptop.texts(".card b") == [NOT_READ] * 6
    assert laptop.texts("main [role=status]") == [NOT_READ] and not laptop.find(".grid").is_displayed()
    laptop.view("heat")
    assert laptop.texts("main [role=status]") == [NOT_READ]
    laptop.view("live")
    laptop.until(lambda: "token" in laptop.text("main .problem").lower(), "the refused stream")
    advice = "The service requires a bearer token: choose Token above"
    assert laptop.texts("#problem, main .problem") == [advice] * 2
    laptop.view("health")
    laptop.until(lambda: laptop.texts("main .panel p") == [advice] * 4, "the same advice in each panel")
    laptop.view("live")

    def give(token: str) -> None:
        laptop.click("#token-button")
        laptop.find("#token").send_keys(Keys.CONTROL, "a")
        laptop.find("#token").send_keys(token, Keys.ENTER)

    give("wrong")
    laptop.until(
        lambda: "token" in laptop.text("#problem") and "choose Token" not in laptop.text("#problem"), "a refusal"
    )
    give(secret)
    laptop.view("fleet")
    laptop.until(lambda: len(lines(laptop)) == 1, "the rank")
    assert laptop.run("return localStorage.length + document.cookie.length") == 0
    assert secret not in laptop.run("return document.documentElement.outerHTML + location.href")
    laptop.view("live")
    laptop.until(lambda: "0 events" not in laptop.text("main") and laptop.all(".chart"), "charts")
    laptop.click("#token-button")
    laptop.click("#token-form [value=forget]")
    laptop.until(lambda: "requires a bearer token" in laptop.text("#problem"), "the request for a token")
    assert laptop.run("return sessionStorage.getItem('flash-indexer-token')") is None
    laptop.check()
    assert service.stop() == 0


def test_a_page_survives_the_end_of_its_service(laptop: Page) -> None:
    service = Service()
    service.register("pod")
    laptop.open(service, "live")
    laptop.until(lambda: "0" in laptop.text(".chart h2 span"), "samples")
    figures = "return [...document.querySelectorAll('.chart canvas')].map((it) => it.ariaLabel)"
    # The stream of live figures does not prevent the service from stopping.
    assert service.stop() == 0
    laptop.until(lambda: laptop.text("#ready") == "no answer", "the loss")
    laptop.until(lambda: "trying again" in laptop.text("main .problem"), "the lost stream")
    assert "Events/s: 0" in laptop.run(figures), "the last figures stay"
