"""The page in a real browser: renders, asks for nothing, fits every width, can be searched, sorted, read."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_browser
from synthetic_runs import write_run

from flameche.report import write_report

pytestmark = pytest.mark.skipif(find_browser() is None, reason="needs Chromium")

WIDTHS = (360, 768, 1440)
# Elements wider than the window that do not scroll within themselves.
OVERFLOW = """(() => {
  const wide = [...document.querySelectorAll('main:not([hidden]) *, .bar *')].filter(e => {
    const box = e.getBoundingClientRect();
    const own = e.closest('.scroll, pre, svg, .wide, nav, .sr, .skip');
    return box.width && box.right > innerWidth + 0.5 && !own;
  });
  return [document.documentElement.scrollWidth - innerWidth, wide.map(e => e.tagName + '.' + e.className)];
})()"""
# The contrast of every text with what is behind it (WCAG 2), the worst first.
CONTRAST = """(() => {
  const light = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const parts = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const over = (top, below) => {
    const a = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(i => a * top[i] + (1 - a) * below[i]);
  };
  const ground = e => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(parts(getComputedStyle(at).backgroundColor));
    const known = layers.reverse().filter(c => c.length >= 3);
    return known.reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const luminance = c => 0.2126 * light(c[0]) + 0.7152 * light(c[1]) + 0.0722 * light(c[2]);
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('svg, script, style, .sr, .skip') || !e.getClientRects().length) continue;
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    const back = ground(e), ink = over(parts(getComputedStyle(e).color), back);
    const [a, b] = [luminance(back), luminance(ink)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), e.tagName + '.' + e.className, e.textContent.trim().slice(0, 30)]);
  }
  return found.sort((x, y) => x[0] - y[0]).slice(0, 5);
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    assert program is not None
    try:
        started = Browser(program, tmp_path_factory.mktemp("profile"))
    except (OSError, TimeoutError) as problem:  # some systems have a stub that only tells how to install it
        print(f"{program} does not start: {problem}")
        pytest.skip("needs Chromium")
    with started:
        yield started


@pytest.fixture(scope="module")
def opened(browser: Browser, whole_page: Path) -> Browser:
    browser.size(1440)
    browser.open(whole_page)
    return browser


@pytest.fixture
def page(opened: Browser) -> Browser:
    """The page as it is at first, whatever was done to it before."""
    opened.size(1440)
    opened.scheme("light")
    goto(opened, "overview")
    return opened


def column(page: Browser, number: int) -> list[str]:
    text = page.run(
        "JSON.stringify([...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden)"
        f".map(r => r.cells[{number}].textContent))"
    )
    return list(json.loads(text))


def goto(page: Browser, fragment: str) -> None:
    page.run(
        f"new Promise(done => {{ if (location.hash === '#{fragment}') return done();"
        " addEventListener('hashchange', () => setTimeout(done), { once: true });"
        f" location.hash = '{fragment}'; }})"
    )


def test_it_renders_without_a_complaint_and_without_a_request(page: Browser, whole_page: Path) -> None:
    assert page.run("document.title") == "flameche report"
    assert page.run("document.documentElement.lang") == "en"
    assert page.run("document.querySelectorAll('main:not([hidden]) table').length") > 10
    assert page.run(
        "[...document.querySelectorAll('figure svg')].every(s => s.getBoundingClientRect().height > 50)"
    )
    assert page.problems() == []
    assert page.requests() == [whole_page.resolve().as_uri()]


def test_without_scripts_tables_and_figures_are_there_and_no_dead_controls(
    page: Browser, whole_page: Path
) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(whole_page, "#r-flameche0a1b2c-0")
        assert page.run("[...document.querySelectorAll('main table')].every(t => t.offsetHeight > 50)")
        assert page.run("[...document.querySelectorAll('main svg')].every(s => s.clientHeight > 50)")
        shown = "[...document.querySelectorAll('.js, th button')].filter(e => e.offsetHeight).length"
        assert page.run(shown) == 0
        assert "turned off" in page.run("document.querySelector('noscript').textContent")
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
        page.open(whole_page)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_hangs_over_the_edge(page: Browser, width: int) -> None:
    page.size(width)
    for fragment in ("overview", "r-flameche0a1b2c-0", "r-flameche0a1b2c-0-2", "overview"):
        goto(page, fragment)
        assert page.run(OVERFLOW) == [0, []], fragment


def test_long_names_stay_in_their_cells_and_figures(page: Browser, whole_page: Path, tmp_path: Path) -> None:
    for name in "abc":
        folder = write_run(tmp_path / "runs", "flameche", 0, name=name)
        keys = "\n".join(f'{key} = "{name}-of-several-readings"' for key in ("empty", "init", "m_step"))
        (folder / "config.toml").write_text(f'name = "{name}"\n[method]\n{keys}\n')
    named = write_report(tmp_path / "runs", tmp_path / "out")
    heads = "[...document.querySelectorAll('main:not([hidden]) tr > :first-child')]"
    texts = "[...document.querySelectorAll('figure svg text')]"
    outside = (
        "const b = t.getBoundingClientRect(), s = t.ownerSVGElement.getBoundingClientRect();"
        " return b.left < s.left - 1 || b.right > s.right + 1 || b.top < s.top - 1 || b.bottom > s.bottom + 1"
    )
    try:
        page.open(named)
        assert page.run(f"{texts}.filter(t => t.textContent.includes('c-of-several-readings')).length") > 1
        for width in WIDTHS:
            page.size(width)
            assert page.run(OVERFLOW) == [0, []]
            wide = f"{heads}.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
            assert page.run(wide) == []
            assert page.run(f"{texts}.filter(t => {{ {outside} }}).map(t => t.textContent)") == []
    finally:
        page.open(whole_page)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_can_be_read(page: Browser, theme: str) -> None:
    page.scheme(theme)
    for fragment in ("overview", "r-flameche0a1b2c-0"):
        goto(page, fragment)
        page.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        worst = page.run(CONTRAST)
        assert worst and worst[0][0] >= 4.5, worst


def test_the_switch_changes_the_colours(page: Browser) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    system = page.run(ground)
    seen = []
    for _ in range(3):
        page.run("document.getElementById('theme').click()")
        seen.append(
            (page.run("document.getElementById('theme').textContent.split(' ')[1]"), page.run(ground))
        )
    assert [name for name, _ in seen] == ["light", "dark", "auto"]
    assert seen[0][1] == seen[2][1] == system != seen[1][1]


def test_print_is_dark_on_white_and_without_what_needs_a_screen(page: Browser) -> None:
    page.scheme("dark", "print")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("getComputedStyle(document.querySelector('.bar')).display") == "none"
    assert page.run(CONTRAST)[0][0] >= 4.5


def test_rows_can_be_searched(page: Browser) -> None:
    everything = column(page, 0)
    page.run(
        "(() => { const i = document.querySelector('#runs input'); i.value = 'k-fed MNIST'; "
        "i.dispatchEvent(new Event('input')); })()"
    )
    assert column(page, 0) == ["K-Fed"] * 3
    assert page.run("document.querySelector('#runs output').textContent") == f"3 of {len(everything)}"
    page.run(
        "(() => { const i = document.querySelector('#runs input'); i.value = ''; "
        "i.dispatchEvent(new Event('input')); })()"
    )
    assert column(page, 0) == everything


def test_rows_can_be_sorted_by_keyboard(page: Browser) -> None:
    heads = json.loads(
        page.run("JSON.stringify([...document.querySelectorAll('#runs thead th')].map(h => h.textContent))")
    )
    place = heads.index("Accuracy, %")
    before = column(page, place)
    numbers = sorted((float(text) for text in before if text != "–"), reverse=True)
    missing = ["–"] * (len(before) - len(numbers))
    page.run(f"document.querySelectorAll('#runs thead button')[{place}].focus()")
    for wanted, state in ((numbers, "descending"), (numbers[::-1], "ascending")):
        page.key("Enter", 13, "\r")
        assert column(page, place) == [f"{value:.2f}" for value in wanted] + missing
        assert page.run("document.activeElement.closest('th').getAttribute('aria-sort')") == state
    page.key("Enter", 13, "\r")
    assert column(page, place) == before


def test_a_click_on_a_row_opens_its_run_and_the_address_names_it(page: Browser, whole_page: Path) -> None:
    page.run("document.querySelector('#runs tbody tr td').click()")
    page.run("new Promise(done => setTimeout(done, 50))")
    address = page.run("location.hash")
    assert address.startswith("#r-") and page.run("document.getElementById('report').hidden")
    title = page.run("document.querySelector('#run h1').textContent")
    page.open(whole_page, address)  # as a bookmark would
    assert page.run("document.querySelector('#run h1').textContent") == title
    assert title in page.run("document.title")
    page.run("document.querySelector('#run .back').click()")
    page.run("new Promise(done => setTimeout(done, 50))")
    assert page.run("document.getElementById('run').hidden && !document.getElementById('report').hidden")


def test_a_run_opened_by_key_has_no_frame_around_it(page: Browser) -> None:
    page.run("document.querySelector('#runs tbody a').focus()")
    page.key("Enter", 13, "\r")
    page.run("new Promise(done => setTimeout(done, 50))")
    assert page.run("document.activeElement.id") == "run"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "none"


def test_a_run_is_drawn_whole(page: Browser) -> None:
    goto(page, "r-flameche0a1b2c-0")
    titles = json.loads(
        page.run("JSON.stringify([...document.querySelectorAll('#run figure b')].map(b => b.textContent))")
    )
    assert titles[:4] == ["Accuracy", "ARI", "Clients by their metadata", "Clusters over the rounds"]
    assert page.run("document.querySelectorAll('#run .map path').length") == 20
    colours = (
        "new Set([...document.querySelectorAll('#run .map path')].map(p => p.getAttribute('fill'))).size"
    )
    assert page.run(colours) == 4
    page.run(
        "(() => { const s = document.querySelector('#run input'); s.value = 0;"
        " s.dispatchEvent(new Event('input')); })()"
    )
    assert page.run("document.querySelector('#run output').textContent") == "round 1"
    assert page.run(colours) == 3  # two groups and a half were seen by then, the others are grey
    table = page.run("[...document.querySelectorAll('.confusion tbody td')].map(c => Number(c.textContent))")
    assert sum(table) == 20 and sorted(table)[-4:] == [4, 4, 5, 5]


def test_a_networks_run_shows_who_was_lost_and_no_groups(page: Browser) -> None:
    goto(page, "r-flameche0a1b2c-0-2")
    assert "no answer in 30 s" in page.run("document.querySelector('#run .notes').textContent")
    text = page.run("document.querySelector('#run').textContent")
    assert "clients by last cluster" in text and "true group" not in text and "NaN" not in text
    assert page.problems() == []
