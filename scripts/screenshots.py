"""Takes pictures of a report in Chromium, at two widths and in both themes.

Usage: screenshots.py REPORT.html FOLDER
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZES = {"": (1200, 1500), "-narrow": (390, 844)}


def main(report: Path, folder: Path) -> None:
    """Write report.png, report-dark.png, report-narrow.png and report-narrow-dark.png."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        # Inside a container Chromium's own sandbox often cannot start; the page is ours.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, (width, height) in SIZES.items():
            for theme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": width, "height": height},
                    color_scheme=theme,  # type: ignore[arg-type]
                )
                page.goto(report.absolute().as_uri())
                page.wait_for_selector(".plot .main-svg")
                suffix = "-dark" if theme == "dark" else ""
                page.screenshot(path=folder / f"report{name}{suffix}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
