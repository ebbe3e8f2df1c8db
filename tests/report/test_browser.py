"""The page in a real browser: nothing overflows, nothing is missing, nothing is fetched, at phone and desktop widths."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from privet.privacy import Ledger
from privet.report import RunRecord, write_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH (Debian: apt install chromium)")

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --allow-file-access-from-files"
).split()

# A window cannot be as narrow as a phone, a frame within it can; the frame's page is asked what it looks like.
FRAME = """<!doctype html><iframe id="frame" src="{page}" width="{width}" height="900"></iframe><pre id="said"></pre><script>
addEventListener("load", () => {{
  const page = document.getElementById("frame").contentDocument, root = page.documentElement;
  const seen = (e) => {{ const box = e.getBoundingClientRect(); return box.width > 100 && box.height > 100; }};
  document.getElementById("said").textContent = JSON.stringify({{
    overflow: root.scrollWidth - root.clientWidth,
    wide: [...page.querySelectorAll("p, li, h1, h2, dd, svg")].filter(
      (e) => !e.closest(".scroll, svg g") && e.getBoundingClientRect().right > root.clientWidth + 1
    ).map((e) => e.outerHTML.slice(0, 80)),
    figures: [...page.querySelectorAll("svg.figure")].filter(seen).map((e) => e.id),
    outside: [...page.querySelectorAll("svg.drawing text")].filter((e) => {{
      const box = e.getBoundingClientRect(), frame = e.closest("svg").getBoundingClientRect();
      return box.left < frame.left + 2 || box.right > frame.right - 2;
    }}).map((e) => e.textContent),
    pictures: [...page.querySelectorAll("img")].filter((e) => e.naturalWidth > 0).map((e) => e.id),
    small: [...page.querySelectorAll("svg.figure text")].filter((e) => e.getBoundingClientRect().height < 10).length,
    statement: page.getElementById("statement").textContent,
    requests: performance.getEntriesByType("resource").concat(page.defaultView.performance.getEntriesByType("resource"))
      .map((r) => r.name).filter((name) => !name.startsWith("file:") && !name.startsWith("data:")),
  }});
}});
</script>"""


def look(page: Path, width: int, folder: Path) -> tuple[dict, str]:
    frame = folder / f"frame-{width}.html"
    frame.write_text(FRAME.format(page=page.as_uri(), width=width))
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / f'profile-{width}'}", "--window-size=1500,1000"]
    logged = ["--enable-logging=stderr", "--v=0", "--virtual-time-budget=5000", "--dump-dom", frame.as_uri()]
    ended = subprocess.run([*command, *logged], capture_output=True, text=True, timeout=180, check=True)
    said = re.search(r'<pre id="said">(.*?)</pre>', ended.stdout, re.DOTALL)
    assert said, ended.stderr
    return json.loads(html.unescape(said[1])), ended.stderr


ALWAYS = ["noise", "roc", "roc-log", "budget", "loss"]
EVERYTHING = ["noise", "roc", "roc-log", "audits", "budget", "accuracy", "loss"]


@pytest.mark.parametrize(("run", "width"), [("whole_run", 320), ("finished_run", 390), ("whole_run", 1280)])
def test_the_page_fits_and_is_whole(run, width, tmp_path, request):
    folder = request.getfixturevalue(run)
    page = write_page(folder)
    seen, log = look(page, width, tmp_path)
    assert seen["overflow"] <= 0
    assert seen["wide"] == []
    assert seen["figures"] == (EVERYTHING if run == "whole_run" else ALWAYS)
    assert seen["pictures"] == (["samples"] if run == "whole_run" else [])
    assert seen["outside"] == []
    assert seen["small"] == 0
    assert seen["requests"] == []
    assert ":CONSOLE" not in log
    record = RunRecord.read(folder)
    ledger = Ledger.open(folder / record.ledger, read_only=True)
    assert seen["statement"] == str(ledger.spent(record.delta))
