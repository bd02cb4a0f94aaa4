"""Opens a page in headless Chromium and asks it questions from the inside."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_WATCH = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(String(event.message)));
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => problems.push(event.blockedURI));
console.error = (...words) => problems.push(words.join(" "));
console.warn = (...words) => problems.push(words.join(" "));
window.alert = () => problems.push("alert");
</script>"""
_ASK = """<script>
(async () => {
  for (let n = 0; n < 400 && !document.documentElement.dataset.ready; n++)
    await new Promise((resolve) => setTimeout(resolve, 50));
  let answer = null;
  try { answer = await (async () => { %s })(); } catch (error) { problems.push(String(error)); }
  const place = document.createElement("pre");
  place.id = "answer";
  const ready = document.documentElement.dataset.ready;
  place.textContent = JSON.stringify({ answer, problems, ready });
  document.body.append(place);
})();
</script></body>"""


def chromium() -> str:
    """Path of the browser; without one the test is skipped, which CI does not allow."""
    for name in _NAMES:
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("needs Chromium: apt-get install -y chromium, or make test")


def flags(profile: Path) -> list[str]:
    """What every run of the browser needs here: no sandbox for root, nothing kept."""
    return [
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
        f"--user-data-dir={profile}",
    ]


def ask(page: Path, script: str, folder: Path, *more: str) -> dict[str, Any]:
    """Return the ``answer`` of a script that runs in the page once its charts are drawn, the
    ``problems`` that the console saw meanwhile, and whether it was ``ready``.
    """
    text = page.read_text(encoding="utf-8")
    assert text.count("<head>") == 1 and text.count("</body>") == 1
    head, tail = text.split("<head>", 1)
    copy = folder / f"asked-{page.name}"
    copy.write_text(f"{head}<head>{_WATCH}{tail.replace('</body>', _ASK % script)}", "utf-8")
    done = subprocess.run(
        [
            *(chromium(), *flags(folder / "profile"), *more),
            *("--virtual-time-budget=60000", "--dump-dom", copy.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the page did not answer: {done.stderr[-2000:]}"
    plain = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    result: dict[str, Any] = json.loads(plain)
    return result
