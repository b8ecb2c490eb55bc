"""What pages said and when, and what their student pressed, noted by the pages themselves."""

import re
import time
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import BrowserContext, Page

PATIENCE_S = 90.0
POLL_MS = 20
SAID = (
    ".line-title",
    ".line-time",
    ".line-detail",
    ".miglab-status",
    ".miglab-title",
    "#miglab-news",
)
SCRIPT = """(() => {
  if (window !== top) return;
  const texts = (selector) => [...document.querySelectorAll(selector)]
    .filter((element) => element.checkVisibility())
    .map((element) => element.innerText.trim()).filter(Boolean);
  let last = "";
  const note = () => {
    const line = texts("SAID").join(" · ");
    const notice = texts(".line-silence, .miglab-offline").join(" ");
    const now = JSON.stringify([line.replace(/[0-9]+:[0-9]{2}/g, "0:00"), notice]);
    if (now !== last) miglabSaid(Date.now() / 1000, line, notice);
    last = now;
  };
  new MutationObserver(note).observe(document, {
    subtree: true, childList: true, characterData: true,
    attributeFilter: ["hidden", "class", "style"],
  });
  const press = (kind) => (event) => event.isTrusted && miglabPressed(kind(event));
  const field = "input:not([type=radio], [type=checkbox]), textarea";
  const isText = (element) => element.matches?.(field);
  addEventListener("click", press(() => "click"), true);
  addEventListener("keydown", press(({ target, key }) => (isText(target) ? "text" : key)), true);
})()""".replace("SAID", ", ".join(SAID))


@dataclass
class Heard:
    """One state of a page: since when, what its line said, and what it said of the connection."""

    at: float
    line: str
    notice: str


@dataclass
class Presses:
    """What a student has pressed so far."""

    clicks: int = 0
    keys: int = 0


@dataclass
class Recorder:
    """Notes what the pages of a context say; to be made before its first page."""

    context: BrowserContext
    presses: Presses = field(default_factory=Presses)
    _heard: dict[Page, list[Heard]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.context.expose_binding("miglabSaid", self._note)
        self.context.expose_binding("miglabPressed", self._count)
        self.context.add_init_script(SCRIPT)

    def _note(self, source: dict[str, Any], at: float, line: str, notice: str) -> None:
        self._heard.setdefault(source["page"], []).append(Heard(at, line, notice))

    def _count(self, _: dict[str, Any], key: str) -> None:
        self.presses.clicks += key == "click"
        self.presses.keys += key not in ("click", "text", "Shift", "Control", "Alt")

    def first(
        self, page: Page, since: float, *, line: str = "", notice: str | None = None
    ) -> Heard:
        """Wait until a page says something, and return when it began to.

        Args:
            page: of this context.
            since: seconds since the epoch; what was said before and no longer is does not count.
            line: a pattern of its line.
            notice: a pattern of what it says of the connection; None: whatever it says.

        Raises:
            TimeoutError: it never does.
        """
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            heard = self._heard.get(page, [])
            old = [state for state in heard if state.at < since][-1:]
            for state in [*old, *(state for state in heard if state.at >= since)]:
                is_it = notice is None or re.search(notice, state.notice)
                if is_it and re.search(line, state.line):
                    return state
            page.wait_for_timeout(POLL_MS)
        raise TimeoutError(f"{page.url} never said {line!r} and {notice!r}, but {heard[-3:]}")
