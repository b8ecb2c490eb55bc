// The spawn page: the button says what it does, and the counts stay true: the page, asked again, in place.

import { isOfThisServer, showLine } from "./hub_line.js";

const PATIENCE_MS = 6000;
const cards = () => [...document.querySelectorAll(".miglab-card")];
const submit = () => document.querySelector("#spawn_form .feedback-container [type=submit]");
let isQueued = false;

function label() {
  const card = cards().find((candidate) => candidate.querySelector("input").checked);
  if (card && submit()) submit().textContent = isQueued && "preselected" in card.dataset ? "Start" : card.dataset.action;
}

// What stands already is chosen again: by the shape, with its course where several are offered.
async function start({ shape, course }) {
  const choice = cards().map((card) => card.querySelector("input"));
  const input = choice.find(({ value }) => value === shape || value === `${shape}@${course}`);
  if (!input) throw new Error(`${shape} is not among the choices of this page. Load it again.`);
  input.checked = true;
  submit().closest("form").requestSubmit(submit());
}

function renew(page) {
  for (const card of cards()) {
    const value = CSS.escape(card.querySelector("input").value);
    const fresh = page.querySelector(`.miglab-card:has([value="${value}"])`);
    if (!fresh) continue;
    Object.assign(card.dataset, { ...fresh.dataset });
    card.querySelector(".miglab-now").textContent = fresh.querySelector(".miglab-now").textContent;
  }
  for (const id of ["miglab-unknown-wait", "miglab-people"]) {
    const fresh = page.getElementById(id);
    if (fresh) document.getElementById(id)?.replaceWith(fresh);
  }
  label();
}

// No answer is said by the line; a page that leads elsewhere is not this one.
async function renewCounts() {
  const answer = await fetch(location.pathname, { signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.status >= 500) throw new Error(answer.statusText);
  if (answer.ok && !answer.redirected) renew(new DOMParser().parseFromString(await answer.text(), "text/html"));
}

showLine({
  show: isOfThisServer,
  acts: { resume: start, return: start, stay: start, take: start },
  hear: async (line) => {
    isQueued = line.standings.some(isOfThisServer);
    label();
    if (!document.hidden) await renewCounts();
    return line;
  },
});
document.addEventListener("change", label);
document.getElementById("miglab-again")?.addEventListener("click", label);
label();
