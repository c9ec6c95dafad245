"""The report in a real browser: Chromium, headless, with no network.

Skipped where there is no Chromium (Debian: `apt-get install chromium`). Pictures of the pages are
kept in $PREPARE_TEST_ARTEFACTS, or else in pytest's temporary folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun
from reported_run import Texts, reported_run

from artifacts.report.page import run_page
from artifacts.report.reported_run import ReportedRun
from pipeline.cli.report import write_page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
    pytest.mark.timeout(300),
]
HOSTILE = (
    "</script></pre><img src=x onerror=document.title='broken'>"
    "<script>document.title='broken'</script><a href='https://x.example'>x</a>"
)
DRAWN = """() => Object.fromEntries([...document.querySelectorAll('.plot')].map(plot => [plot.id, {
    marks: plot.querySelectorAll(
        '.scatterlayer path, .barlayer path, .heatmaplayer image, .errorbars path').length,
    width: plot.querySelector('.main-svg').getBoundingClientRect().width,
    ink: plot.querySelector('text').style.fill,
}]))"""


@dataclass
class Opened:
    """A page in the browser, and all that it did."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def drawn(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page.evaluate(DRAWN)
        return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # Inside a container Chromium's own sandbox often cannot start; the pages are ours.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(kept_run: FakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_page(file, run_page(ReportedRun(kept_run.report, kept_run.store)))
    return file


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Opened]]:
    contexts = []

    def open_(file: Path, width: int = 1200, scheme: str = "light") -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        found = Opened(context.new_page())
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.goto(file.as_uri())
        return found

    yield open_
    for context in contexts:
        context.close()


def keep(found: Opened, name: str, tmp_path: Path) -> Path:
    folder = Path(os.environ.get("PREPARE_TEST_ARTEFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    found.page.screenshot(path=folder / f"{name}.png", full_page=True)
    return folder / f"{name}.png"


@pytest.mark.parametrize(
    ("width", "scheme"), [(1200, "light"), (1200, "dark"), (390, "light"), (390, "dark")]
)
def test_it_opens_anywhere(
    opened: Callable[..., Opened], report: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    found = opened(report, width, scheme)
    drawn = found.drawn()
    assert len(drawn) == 4
    assert all(plot["marks"] > 0 and 250 < plot["width"] <= width for plot in drawn.values())
    assert found.requests == [report.as_uri()]
    assert found.complaints == []
    overflow = found.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0
    verdicts = found.page.locator("#gates tbody .badge").all()
    assert verdicts
    for verdict in verdicts:
        box = verdict.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
    ground = found.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 19, 24)")
    assert keep(found, f"report-{width}-{scheme}", tmp_path).stat().st_size > 10_000


def test_what_a_model_says_stays_text(opened: Callable[..., Opened], tmp_path: Path) -> None:
    texts = Texts(
        question=HOSTILE,
        answer=HOSTILE,
        subject=HOSTILE,
        module="model.layers.{layer}." + HOSTILE.replace("{", ""),
    )
    made = reported_run(tmp_path / "store", texts, lost=0.5)
    write_page(tmp_path / "report.html", run_page(ReportedRun(made.report, made.store)))
    found = opened(tmp_path / "report.html")
    for details in found.page.locator("details.example").all()[:3]:
        details.locator("summary").click()
    assert found.page.title() == "demo:smollm2-135m: promoted"
    assert found.page.locator("img").count() == 0
    assert found.page.locator("a[href^=http]").count() == 0
    assert found.page.evaluate("document.querySelectorAll('svg a').length") == 0
    assert all(plot["marks"] > 0 for plot in found.drawn().values())
    assert found.requests == [(tmp_path / "report.html").as_uri()]
    assert found.complaints == []


def test_the_policy_stops_what_escaping_would_let_through(
    opened: Callable[..., Opened], report: Path, tmp_path: Path
) -> None:
    """A page into which markup was put by force: the second line of defence holds."""
    attack = "<img src='https://x.example/a.png' onerror=document.title='broken'>" + (
        "<script>document.title='broken'</script>"
    )
    html = report.read_text(encoding="utf-8").replace("<h1>", f"{attack}<h1>", 1)
    (tmp_path / "attacked.html").write_text(html, encoding="utf-8")
    found = opened(tmp_path / "attacked.html")
    assert found.page.title() == "demo:smollm2-135m: promoted"
    assert any("Content Security Policy" in complaint for complaint in found.complaints)
    assert all(plot["marks"] > 0 for plot in found.drawn().values())
