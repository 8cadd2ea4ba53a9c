"""The page of traces and the report in Chromium, opened from disk: they show the tables, whatever models write."""

import shutil
from urllib.parse import quote

import polars as pl
import pytest
from conftest import ROOT
from made import HOSTILE, MANY, backtracking, results, tree

from mrt.core.artifacts import ANSWER_GRADES, GRADES, PROBLEMS, PROGRESS, ROLLOUTS
from mrt.episodes.parameterization import Backtracking
from mrt.figures.report import Report
from mrt.figures.tables import Layout, write_layout
from mrt.traces.page import Traces

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (on Debian: apt-get install chromium)"),
]
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = results(tmp_path_factory.mktemp("results") / "made", problems=50)
    tree(folder)
    backtracking(folder)
    Traces(results=folder, backtracking=Backtracking()).cli_cmd()
    return folder


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """The same with forced answers at every second prefix."""
    folder = results(tmp_path_factory.mktemp("sparse") / "made", problems=50, every=2)
    Traces(results=folder).cli_cmd()
    return folder


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, folder):
    """Opens the page at an address, in a window of a width; the test fails if the page says anything is wrong."""
    wrong, pages = [], []

    def open_page(address="", width=1300, of=folder, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
        page.goto(f"file://{of}/traces.html{address}")
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for page in pages:
        assert page.evaluate("document.body.dataset.broken") is None
        page.close()
    assert wrong == []


def listed(page):
    return [item.get_attribute("data-id") for item in page.query_selector_all("#problems li")]


@pytest.mark.parametrize("made", ["folder", "sparse"])
def test_fifty_traces_show_the_numbers_of_the_tables(opened, made, request):
    folder = request.getfixturevalue(made)
    progress = PROGRESS.read(folder / "progress/base/toy.parquet")
    rollouts = ROLLOUTS.read(folder / "rollouts/base/toy.parquet")
    answers = ANSWER_GRADES.read(folder / "grades/base/toy.prover.parquet")
    grades = GRADES.read(folder / "grades/base/toy.rollouts.parquet")
    page = opened(of=folder)
    assert len(listed(page)) == 50
    for i in range(50):
        page.evaluate(f"location.hash = '#{quote(f'p/{i}?#', safe='')}/base/0/0'")
        page.get_by_role("heading", name=f"p/{i}?#", exact=True).wait_for()
        mine = (pl.col("problem_id") == f"p/{i}?#") & (pl.col("sample") == 0)
        rows, rollout = progress.filter(mine).sort("prefix"), rollouts.filter(mine)
        shown = page.eval_on_selector_all(
            "section[data-j]", "them => them.map(one => [+one.dataset.j, +one.dataset.progress, +one.dataset.tokens])"
        )
        assert shown == [list(row) for row in rows.select("J", "progress", "prefix_tokens").rows()[1:]]
        assert int(page.get_attribute("[data-tokens]", "data-tokens")) == rollout["tokens"].item()
        assert (page.get_attribute(".facts b", "class") == "right") == grades.filter(mine)["correct"].item()
        for prefix in range(rows["episodes"][0] + 1):
            if prefix:
                page.keyboard.press("ArrowRight")
            said, here = page.inner_text(".forced > summary"), answers.filter(mine, prefix=prefix)
            at = rows.filter(prefix=prefix)
            assert (f"J {at['J'].item():.2f}" if at.height else f"prefix {prefix} of") in said
            assert ("not asked" in said) == at.is_empty()
            given = page.eval_on_selector_all(
                "tr[data-times]", "them => them.map(one => [one.dataset.right === 'true', +one.dataset.times])"
            )
            assert sum(times for right, times in given if right) == here["correct"].sum()
            assert sum(times for _, times in given) == here.height


def test_filter_sort_and_search(opened):
    page = opened()
    page.select_option("#first", "base")
    page.select_option("#second", "other")
    numbers = "them => them.map(one => one.querySelector('.numbers').textContent)"
    page.select_option("#sort", "accuracy, lowest first")
    accuracies = [float(text.split()[1]) for text in page.eval_on_selector_all("#problems li", numbers)]
    assert accuracies == sorted(accuracies) and len(set(accuracies)) > 1
    page.select_option("#filter", "first right more often")
    rows = [text.replace("·", "").split() for text in page.eval_on_selector_all("#problems li", numbers)]
    assert 0 < len(rows) < 50 and all(float(row[1]) > float(row[3]) for row in rows)
    page.select_option("#filter", "all")
    page.keyboard.press("Escape")
    page.click("#problem")
    page.keyboard.press("/")
    page.keyboard.type("problem 17")
    assert listed(page) == ["p/17?#"]
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="p/17?#", exact=True).wait_for()
    assert page.evaluate("document.activeElement.id") != "search"


def test_escape_leaves_a_menu_so_that_arrows_choose_problems_again(opened):
    page = opened("#p%2F2%3F%23/base/0/1")
    page.focus("#sort")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    page.get_by_role("heading", name="p/3?#", exact=True).wait_for()
    assert page.input_value("#sort") == page.evaluate("document.getElementById('sort').options[0].value")


def test_prefixes_samples_and_problems_by_keys(opened):
    page = opened("#p%2F2%3F%23/base/0/1")
    column = page.locator("#columns article").first
    assert "mu at prefix 1" in column.locator(".forced > summary").inner_text()
    page.keyboard.press("ArrowLeft")
    assert "mu at prefix 0" in column.locator(".forced > summary").inner_text()
    assert column.locator("section.beyond").count() == column.locator("section").count() > 0
    page.keyboard.press("]")
    assert column.locator("button[aria-pressed=true]").inner_text().startswith("1")
    page.keyboard.press("ArrowDown")
    page.get_by_role("heading", name="p/3?#", exact=True).wait_for()
    column.locator("section").first.click()
    assert page.url.endswith("#p%2F3%3F%23/base/0/1")


@pytest.mark.parametrize("at_once", [True, False])
def test_each_of_twenty_quick_keys_counts(opened, at_once):
    """Also those that come before the chunk of the problem before is unpacked, and others between them."""
    page = opened()
    ids, shown = listed(page), page.locator("#problem h2")
    first = ids.index(shown.inner_text())
    if at_once:
        page.evaluate(f"for (const key of {['ArrowDown'] * 20}) ({PRESS})(key)")
    else:
        for _ in range(20):
            page.keyboard.press("ArrowDown")
    assert page.locator("#problems [aria-current]").get_attribute("data-id") == ids[first + 20]
    page.get_by_role("heading", name=ids[first + 20], exact=True).wait_for()
    keys = ["ArrowUp", "]", "ArrowRight", "ArrowUp", "x", "[", "ArrowLeft"] * 5
    page.evaluate(f"for (const key of {keys}) ({PRESS})(key)")
    page.get_by_role("heading", name=ids[first + 10], exact=True).wait_for()
    page.wait_for_timeout(200)
    assert shown.inner_text() == ids[first + 10]


def test_the_page_opens_on_a_thought(opened, tmp_path):
    """Also where the first model says nothing of the first problems, or none of the chosen ones."""
    page = opened()
    assert page.locator("section[data-j]").count() > 0 and page.locator("#columns article").count() == 2
    folder = results(tmp_path / "gaps", problems=6)
    for model, least in (("base", 3), ("other", 1)):
        for kind in ("rollouts", "progress"):
            path = folder / kind / model / "toy.parquet"
            table = pl.read_parquet(path)
            (ROLLOUTS if kind == "rollouts" else PROGRESS).write(
                table.filter(pl.col("problem_id").str.slice(2, 1).cast(pl.Int64) >= least), path
            )
    Traces(results=folder).cli_cmd()
    page = opened(of=folder)
    assert page.locator("#problem h2").inner_text() == "p/3?#" and page.locator("section[data-j]").count() > 0
    page.select_option("#second", "")
    page.click("#problems li")  # of which the chosen model says nothing
    page.get_by_role("heading", name="p/1?#", exact=True).wait_for()
    assert page.locator("#columns h2").all_inner_texts() == ["other"] and page.locator("section[data-j]").count() > 0


def test_two_models_side_by_side_and_a_link_to_them(opened):
    page = opened("#p%2F13%3F%23/other/1//base/0/1/base/1/0")
    titles = page.locator("#columns h2").all_inner_texts()
    assert (
        titles == ["other", "base"] and page.input_value("#first") == "other" and page.input_value("#second") == "base"
    )
    pressed = page.locator("button[aria-pressed=true]").all_inner_texts()
    assert [text[0] for text in pressed] == ["1", "0"]
    left, right = (page.locator("#columns article").nth(i).bounding_box() for i in (0, 1))
    assert left["y"] == right["y"] and left["x"] < right["x"]
    page.keyboard.press("x")
    page.keyboard.press("ArrowRight")
    assert page.locator("#columns article").nth(1).locator("section").count() > 1
    assert page.url.endswith("/base/0/2")


def test_text_of_models_is_never_markup(opened):
    for i, text in enumerate(HOSTILE[:MANY]):
        page = opened(f"#p%2F{i}%3F%23/base/0/0")
        shown = page.inner_text("#problem .prose")
        assert page.locator("#problem img, #problem script, #columns img, #columns script").count() == 0
        if "<" in text:
            assert text in shown
        if i == 2:
            assert "U+202E" in shown and "U+0007" in shown and "\u202e" not in shown
        if i == 3:
            page.wait_for_selector("#problem .katex")
            assert page.locator("a[href^=javascript]").count() == 0
        if i == 5:  # KaTeX gives up on this paragraph alone
            page.click("#problem button.more")
            page.wait_for_timeout(500)
            assert "{" * 20_000 in page.inner_text("#problem .prose")
            assert {"U+061C", "U+00AD", "U+E0041"} <= set(page.locator(".hidden-character").all_inner_texts())
    page = opened("#p%2F0%3F%23/base/0/0")
    more = page.locator("button.more").first
    assert "1,000,0" in more.inner_text()
    more.click()
    assert page.locator("button.more").count() == 0 and "x" * 1000 in page.locator("section").last.inner_text()


def test_trees_and_intervals(opened):
    page = opened("#p%2F0%3F%23/base/0/0")
    assert "3 nodes" in page.inner_text(".solution-tree summary")
    page.click(".solution-tree > summary")
    assert "Step 1: <b>add</b>" in page.inner_text(".solution-tree")
    page.wait_for_selector(".curve canvas")
    assert page.get_attribute(".curve", "aria-label").startswith("J of mu along the thought: ")
    assert "[" in page.inner_text(".forced > summary")


@pytest.mark.parametrize("width", [390, 800, 1500])
def test_nothing_runs_out_of_the_window(opened, width):
    for scheme in ("light", "dark"):
        page = opened("#p%2F3%3F%23/base/0/1/other/0/1", width=width, color_scheme=scheme)
        assert page.locator("#columns article").count() == 2
        sections = page.locator("section").all()
        assert sections
        for section in sections:
            section.scroll_into_view_if_needed()  # draws its LaTeX
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(
            "document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth + 1"
        )


NOTHING = ("base/0/-5", "base/0/1.5", "base/0/99", "__proto__/0/1", "constructor")


@pytest.mark.parametrize("address", ["#%E0%A4%A", "#nothing/here", *(f"#p%2F3%3F%23/{rest}" for rest in NOTHING)])
def test_a_link_that_names_nothing_opens_what_there_is(opened, address):
    page = opened(address)
    assert page.locator("#problem h2").count() == 1 and page.locator("#columns article").count() >= 1


def test_the_page_stays_where_one_reads(opened, folder):
    """Another prefix keeps unfolded parts open, a selection chooses nothing, and another problem starts at its top."""
    page = opened("#p%2F0%3F%23/base/0/0")
    page.locator("button.more").first.click()
    page.click(".solution-tree > summary")
    page.keyboard.press("ArrowRight")
    assert page.locator("button.more").count() == 0 and page.locator(".solution-tree[open]").count() == 1
    page.evaluate("getSelection().selectAllChildren(document.querySelector('section p'))")
    page.evaluate("document.querySelectorAll('section')[0].click()")
    assert page.url.endswith("/base/0/1") and page.evaluate("String(getSelection()).length") > 3
    page.evaluate("document.querySelector('main').scrollTop = 500")
    page.keyboard.press("ArrowDown")
    page.get_by_role("heading", name="p/1?#", exact=True).wait_for()
    assert page.evaluate("document.querySelector('main').scrollTop") == 0


def test_backtracking_search_names_its_episodes_and_shows_its_line(opened):
    page = opened("#p%2F1%3F%23/search/0/")
    labels = page.locator("section .label").all_inner_texts()
    assert labels == ["z0 · attempt", "z1 · backtrack to Step 1", "z2 · revision from Step 1"]
    assert page.locator("section mark").all_inner_texts() == ["Wait, this seems off. Let's try something else."[:4]]
    page.click(".linearized > summary")
    assert "attempt 2: " in page.inner_text(".linearized") and page.locator(".linearized .right").inner_text() == "2"


def test_latex_is_drawn_and_prices_are_not(browser, tmp_path):
    folder = results(tmp_path / "made", problems=1, samples=1, models=("base",))
    path = folder / "problems/toy.parquet"
    text = "It costs $5 and then $6. Let $x^2$ be \\(\\text{less than nine}\\) and $$y$$."
    PROBLEMS.write(PROBLEMS.read(path).with_columns(problem=pl.lit(text)), path)
    Traces(results=folder).cli_cmd()
    page = browser.new_page()
    page.goto(f"file://{folder}/traces.html")
    page.wait_for_selector("#problem .prose .katex")
    assert "It costs $5 and then $6. Let" in page.inner_text("#problem .prose")
    assert page.locator("#problem .prose .katex-html").count() == 3
    assert page.locator("#problem .prose .katex .text").bounding_box()["height"] < 30  # in one line
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_read_in_any_window(browser, tmp_path, scheme):
    """Its figures are shown and none runs out of the window, which follows the screen's colours."""
    figure, table = tmp_path / "figures" / "regret.png", tmp_path / "tables" / "pass1.html"
    for folder in (figure.parent, table.parent):
        folder.mkdir()
    shutil.copy(ROOT / "docs" / "images" / "laptop_scaling.png", figure)
    write_layout(Layout("pass1", ["model"] * 30, [["0.5 [0.1, 0.9]"] * 30], set(), "n"), table.with_suffix(""))
    each = {"section": "1", "caption": "<p>It is " + "so " * 200 + "</p>"}
    shown = [{**each, "opens": path == table, "file": path} for path in (figure, table)]
    Report(title="made", shown=shown, out=tmp_path / "index.html").cli_cmd()
    for width in (390, 1500):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto(f"file://{tmp_path}/index.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.images[0].naturalWidth") > 1000
        assert page.locator("figcaption").last.bounding_box()["y"] > page.locator("img").bounding_box()["y"]
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        page.close()


def test_colours_can_be_read(opened):
    """Contrast of all text of episodes against its background is at least 4.5, in light and dark (WCAG 2.1, AA)."""
    for scheme in ("light", "dark"):
        page = opened("#p%2F4%3F%23/base/0/1/other/0/1", color_scheme=scheme)
        assert page.evaluate(CONTRAST) >= 4.5


PRESS = "key => document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))"
CONTRAST = """() => {
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a));
  const light = (rgb) => rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = parse(getComputedStyle(document.body).backgroundColor);
  const nodes = [...document.querySelectorAll("section .label, section p")];
  return nodes.length && Math.min(...nodes.map((node) => {
    const under = over(parse(getComputedStyle(node.closest("section")).backgroundColor), paper);
    const [a, b] = [light(over(parse(getComputedStyle(node).color), under)), light(under)].sort((x, y) => x - y);
    return (b + 0.05) / (a + 0.05);
  }));
}"""
