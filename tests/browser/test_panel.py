"""A panel in a real JupyterLab in Chromium: predict, run, watch, by mouse and by keyboard."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.browser.people import KERNEL_MS, serious_problems, wait_for_kernel
from tests.needs import needs

from labkit.evidence import evidence as store
from miglab_bench.harness.processes import free_ports

pytestmark = [pytest.mark.browser, pytest.mark.long]
needs("torch", "panels measure with torch")
needs("jupyterlab", "the panel is shown in JupyterLab")

CELL = """
from labkit.notebook.steps import timed_step
from labkit.panel.experiment import Experiment
from labkit.panel.panel import Panel

def sleeper(ms=5, until=""):
    import os, time
    def work():
        time.sleep(ms / 1000)
        while until and not os.path.exists(until):
            time.sleep(ms / 1000)
    return work

steps = tuple(
    timed_step(f"{ms} ms", ms, sleeper, value=lambda m: m.median_s * 1e3, seconds=SECONDS,
               ms=ms, until=until, samples=SAMPLES)
    for ms, until in ((20, ""), (40, UNTIL))
)
panel = Panel(Experiment("T-9", "Sleeping longer", "How long does it sleep?",
                         "asked (ms)", "took (ms)", steps, unit="ms"))
panel
"""
KEY_MS = 50  # a person's speed: each field has reached the kernel before the next is left
QUICK, LONGER = (60, 6), (100, 60)  # seconds and samples of each step


class PanelLab:
    """A JupyterLab over one folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url

    def write(self, name: str, seconds: int, samples: int, until: str = "") -> str:
        """Put a notebook with the panel there; answers its address.

        Args:
            name: of its folder.
            seconds: what each step may take.
            samples: of each step.
            until: a file; the second step takes its first sample once it exists.
        """
        text = CELL.replace("SECONDS", str(seconds)).replace("SAMPLES", str(samples)).strip()
        text = text.replace("UNTIL", repr(until))
        cell = {"cell_type": "code", "id": "one", "source": text, "metadata": {}}
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = {
            "cells": [cell | {"outputs": [], "execution_count": None}],
            "metadata": {"kernelspec": kernel},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        folder = self.folder / name
        folder.mkdir()
        (folder / "panel.ipynb").write_text(json.dumps(notebook))
        return f"{self.url}/doc/workspaces/{name}/tree/{name}/panel.ipynb"


def set_up(
    home: Path, plugin: str, settings: dict[str, object], extension: str = "apputils-extension"
) -> None:
    """Write one of JupyterLab's settings."""
    folder = home / ".jupyter/lab/user-settings/@jupyterlab" / extension
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{plugin}.jupyterlab-settings").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PanelLab]:
    """JupyterLab from this environment, in a home of its own, without a token on loopback."""
    home = tmp_path_factory.mktemp("home")
    port = free_ports(1)
    work = home / "work"
    work.mkdir()
    set_up(home, "notification", {"fetchNews": "false", "checkForUpdates": False})
    options = ["--no-browser", f"--port={port}", "--ip=127.0.0.1", f"--ServerApp.root_dir={work}"]
    options += ["--IdentityProvider.token=", "--ServerApp.port_retries=0", "--allow-root"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("LAB_")}
    env |= {"HOME": str(home), "JUPYTER_PREFER_ENV_PATH": "1"}
    with (home / "jupyter.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], env=env, stdout=log, stderr=log
        )
        try:
            wait_until_it_answers(process, f"http://127.0.0.1:{port}/api", home / "jupyter.log")
            yield PanelLab(work, f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(30)


def wait_until_it_answers(process: subprocess.Popen, url: str, log: Path) -> None:
    """Ask until there is an answer; a server that ended instead shows its log."""
    while True:
        try:
            with urlopen(url, timeout=5):
                return
        except OSError:
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(log.read_text())


def show(page: Page, url: str) -> Locator:
    """Open the notebook and run its cell; answers the panel's output."""
    page.goto(url)
    wait_for_kernel(page)
    page.locator(".jp-CodeCell .cm-content").first.click()
    # The button is there once the shortcuts are, too; a key pressed before would be lost.
    page.get_by_role("button", name="Run this cell and advance").click()
    output = page.locator(".jp-OutputArea-output").first
    expect(output.get_by_role("heading", name="Sleeping longer")).to_be_visible(timeout=KERNEL_MS)
    return output


def finish(output: Locator) -> None:
    """Wait for the end of a run, as the live region says it."""
    expect(output.get_by_role("status")).to_contain_text("Done", timeout=KERNEL_MS)


SAMPLES = ".mark-rect path[aria-hidden], .mark-rect path"


def drawn(output: Locator) -> Locator:
    """The plot of what has been measured, as JupyterLab drew it."""
    return output.locator(".vega-embed svg").last


def predict(output: Locator, prediction: str, because: str) -> None:
    output.get_by_label("Your prediction (ms)").fill(prediction)
    output.get_by_label("because").fill(because)
    output.get_by_role("button", name="Lock in prediction").click()


def test_predict_run_and_watch_the_plot_move(jupyter, page):
    """Run is locked until a prediction; then the plot moves with every reading, to the end."""
    go = jupyter.folder / "go"
    output = show(page, jupyter.write("watch", *LONGER, until=str(go)))
    run = output.get_by_role("button", name="Run", exact=True)
    expect(run).to_be_hidden()
    predict(output, "no idea", "it sleeps")
    expect(output.get_by_role("status")).to_contain_text("is not a number")
    expect(run).to_be_hidden()
    predict(output, "30", "it sleeps")
    run.click()
    plot = drawn(output)
    expect(plot).to_be_visible()
    ticks = plot.locator(SAMPLES)
    expect(ticks).not_to_have_count(0)
    first = ticks.count()
    go.touch()
    expect(ticks.nth(first)).to_be_attached()  # a later redraw has a sample more
    finish(output)
    expect(plot).to_contain_text("you predicted 30 ms")
    expect(output.get_by_role("status")).to_contain_text("You said 30 ms; it is ")
    assert first < ticks.count()
    expect(output.locator(".vega-actions")).to_have_count(0)
    plot.locator(".mark-symbol path").first.hover(force=True)  # its interval lies over it
    expect(page.locator("#vg-tooltip-element")).to_contain_text("interval")
    output.get_by_role("button", name="Data table").click()
    expect(output.get_by_role("table")).to_contain_text("40 ms")
    evidence = store.load(jupyter.folder / "watch" / "evidence" / "T-9.json")
    assert evidence.is_students
    assert [len(point.records[0].samples_s) for point in evidence.points] == [60, 60]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_keyboard_alone_is_enough(jupyter, page, theme):
    """Tab and Space do it all, the focus survives the redraws; axe, in both themes."""
    set_up(jupyter.folder.parent, "themes", {"theme": f"JupyterLab {theme.title()}"})
    go = jupyter.folder / f"{theme}-stop-was-seen"
    output = show(page, jupyter.write(theme, *QUICK, until=str(go)))
    output.get_by_label("Your prediction (ms)").focus()
    page.keyboard.type("30", delay=KEY_MS)
    page.keyboard.press("Tab")
    expect(output.get_by_role("slider")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("it sleeps", delay=KEY_MS)
    page.keyboard.press("Tab")
    expect(output.get_by_role("button", name="Lock in prediction")).to_be_focused()
    page.keyboard.press("Space")
    run = output.get_by_role("button", name="Run", exact=True)
    expect(run).to_be_enabled()
    expect(run).to_be_focused()  # the step with the button before has been folded
    page.keyboard.press("Space")
    expect(output.get_by_role("button", name="Stop", exact=True)).to_be_enabled()
    go.touch()
    table = output.get_by_role("button", name="Data table")
    table.focus()
    finish(output)
    expect(table).to_be_focused()
    page.keyboard.press("Space")
    expect(output.get_by_role("table")).to_be_visible()
    assert serious_problems(page, ".jp-OutputArea-output") == []


def add_report(page: Page) -> None:
    """Write and run the cell under the panel."""
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    page.keyboard.press("Enter")
    page.keyboard.insert_text("await panel.report()")
    page.keyboard.press("Shift+Enter")
    expect(page.get_by_text("T-9: measure first")).to_be_visible(timeout=KERNEL_MS)


def test_a_page_loaded_anew_is_as_alive_and_a_restart_is_said(jupyter, page):
    """The cell under a panel refreshes after a reload; a panel without its kernel says so."""
    show(page, jupyter.write("again", *QUICK))
    add_report(page)
    with page.expect_response(
        lambda response: response.request.method == "PUT" and "panel.ipynb" in response.url
    ):
        page.keyboard.press("Control+s")
    page.reload()
    wait_for_kernel(page)
    output = page.locator(".jp-OutputArea-output").first
    predict(output, "30", "it sleeps")
    output.get_by_role("button", name="Run", exact=True).click()
    finish(output)
    below = page.locator(".jp-CodeCell").filter(has_text="await panel.report()")
    report = below.locator(".jp-OutputArea-output").first
    expect(report).to_contain_text("You said 30 ms; it is ")
    page.get_by_role("button", name="Restart the kernel", exact=True).click()
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    notice = page.get_by_text("This is only a picture of the panel.")
    expect(notice).to_be_visible(timeout=KERNEL_MS)
    expect(report).to_contain_text("You said 30 ms; it is ")
    expect(page.get_by_role("button", name="Lock in prediction")).to_have_count(0)
