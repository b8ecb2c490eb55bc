"""One walk in Debian's Firefox: sign in, wait, predict, run, release."""

from pathlib import Path

import pytest
from tests.students import served

from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab

from .firefox import ENTER, FIREFOX, Firefox

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.skipif(not FIREFOX.exists(), reason="no firefox-esr: apt-get install firefox-esr"),
]
PANEL = (
    "[...document.querySelectorAll('.labkit-card')]"
    ".find(card => card.querySelector('h3')?.textContent === 'The same function against itself')"
)

PROMPTS = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]"
RAN_ALL = (
    f"{PROMPTS}.at(-1)?.textContent.match(/[0-9]/)"
    f" && !{PROMPTS}.some(prompt => prompt.textContent.includes('*'))"
)


def one(selector: str) -> str:
    """The first element that a selector finds."""
    return f"document.querySelector({selector!r})"


STATUS = one(".miglab-status")


def named(text: str, within: str = "document") -> str:
    """The button, or the item of a menu, that says exactly this."""
    kinds = "'button, .lm-MenuBar-item'"
    condition = f"item.textContent.trim() === {text!r} && item.offsetParent"
    return f"[...({within})?.querySelectorAll({kinds}) ?? []].find(item => {condition})"


def field(label: str) -> str:
    """A field of the panel, by its label."""
    condition = f"row.querySelector('label')?.textContent === {label!r}"
    row = f"[...({PANEL})?.querySelectorAll('.widget-text') ?? []].find(row => {condition})"
    return f"{row}?.querySelector('input')"


def line(text: str, part: str = "title") -> str:
    """Whether the line says this, on a page of hub or pool."""
    begins = f"element => element.textContent.startsWith({text!r})"
    return f"[...document.querySelectorAll('.line-{part}')].some({begins})"


def test_a_walk_in_firefox(lab: TemporaryLab, tmp_path: Path) -> None:
    """A full GPU, the line on each page, work on CPU meanwhile, the offer, a measurement, the end.

    Afterwards the hub's home says what became of the slice.
    """
    early = [served(lab, f"early{n}", "1g.5gb") for n in range(7)]
    try:
        with Firefox(tmp_path) as firefox:
            walk(firefox, lab, early.pop())
    finally:
        for student in early:
            student.leave()
            student.close()


def walk(firefox: Firefox, lab: TemporaryLab, holder: Student) -> None:
    """The student's way, from the login form to a slice that is given back."""
    firefox.go_to(lab.settings.public_url)
    firefox.click(one("#username_input"))
    firefox.type("fox")
    firefox.click(one("#password_input"))
    firefox.type(lab.password + ENTER)

    # A click before the page's script has run would be lost; the button says when it has.
    submit = "#spawn_form .feedback-container [type=submit]"
    firefox.click(one("[name=shape][value='1g.5gb']"))
    firefox.seen(f"{one(submit)}.textContent.startsWith('Join the queue')")
    firefox.click(one(submit))
    firefox.seen("location.pathname.startsWith('/hub/spawn-pending')")
    firefox.seen(line("1st of 1 in line"))
    for path in ("hub/home", "services/pool/"):
        firefox.go_to(f"{lab.settings.public_url}{path}")
        firefox.seen(line("1st of 1 in line"))
    firefox.go_to(f"{lab.settings.public_url}hub/spawn/fox")
    firefox.click(named("Start on CPU now"))
    firefox.seen("location.pathname.startsWith('/user/fox/lab')")
    firefox.seen(f"{STATUS}?.textContent.includes('1st in line')")
    holder.leave()
    holder.close()
    firefox.click(named("Save all and restart with it"))
    firefox.seen(f"{STATUS}?.textContent.startsWith('1g.5gb, guaranteed until')")

    opens = "button => button.textContent.includes('1. Your slice')"
    firefox.click(f"[...document.querySelectorAll('.miglab-start button')].find({opens})")
    idle = "textContent.includes('Python 3 (ipykernel) | Idle')"
    firefox.seen(
        f"{one('#jp-main-statusbar')}?.{idle}"
    )  # until then, what is run asks for a kernel
    firefox.click(named("Run"))
    firefox.click(one("[data-command='runmenu:run-all']"))
    firefox.seen(RAN_ALL)  # until then, new output moves the page under the hand

    for label, text in (("Your prediction (x)", "1.5"), ("because", "it is noisy")):
        firefox.click(field(label))
        firefox.type(text)
        firefox.seen(f"{field(label)}.value === '{text}'")
    firefox.click(named("Lock in prediction", PANEL))
    firefox.click(named("Run", PANEL))
    firefox.seen(f"({PANEL}).querySelector('[role=status]').textContent.includes('Done:')")

    firefox.click(STATUS)
    firefox.click(named("Release…"))
    firefox.click(named("Save all and release"))
    wait_for(lambda: "fox" not in lab.leases(), "the slice to be given back")
    firefox.seen("document.body.textContent.includes('You released your GPU slice')")
    firefox.go_to(f"{lab.settings.public_url}hub/home")
    firefox.seen(line("You released 1g.5gb at", "detail"))
