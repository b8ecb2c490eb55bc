// The class: rows stay current, in the order and of the kind that was chosen; whoever is selected
// stays selected, and a message says whom it reaches before it goes.  A message to the selected
// never becomes one to all, even if none of them is listed any more.

import "./details.js";
import { ask, byId, say, showRefusal } from "./frame.js";
import { renew } from "./refresh.js";
import { age, age_s } from "./times.js";

const AGAIN_MS = 10000;
const SILENT_MS = 15000;
const STOPS = ["[type=checkbox]", "button"]; // of each of these in the table, one is a Tab stop
const selectedUsers = new Set();
const lastStops = new Map();
const form = byId("tell");
let shownOnly = "";
let sortedBy = "sort-student";
let isDescending = false;
let answeredAt = new Date(); // as this browser's clock says it, for the sentence
let answeredTick = performance.now();

const rows = () => [...document.querySelectorAll("#part-class tbody tr[data-user]")];
const shownRows = () => rows().filter((row) => !row.hidden);
const courseRows = () => rows().filter((row) => !("outside" in row.dataset)); // whom a message to all reaches
const selectedRows = () => rows().filter((row) => selectedUsers.has(row.dataset.user));
const boxOf = (row) => row.querySelector("[type=checkbox]");

function sortKey(cell) {
  const time = cell.querySelector("time[data-since]");
  if (time) return String(Math.round(age_s(time)));
  return cell.dataset.key ?? cell.textContent.trim();
}

// What is not known comes last, whichever way the rows are sorted.
function sortRows() {
  const header = byId(sortedBy)?.closest("th");
  if (!header) return;
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
  const key = (row) => sortKey(row.cells[header.cellIndex]);
  const compare = (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true }) * (isDescending ? -1 : 1);
  const before = rows();
  const sorted = before.toSorted((a, b) => !key(a) - !key(b) || compare(a, b));
  if (sorted.every((row, index) => row === before[index])) return;
  const focus = document.activeElement.id; // which it loses when its row moves
  before[0].parentElement.append(...sorted);
  if (focus) byId(focus)?.focus({ preventScroll: true });
}

function filterRows() {
  const filters = [...document.querySelectorAll("[data-only]")];
  if (!filters.some((button) => button.dataset.only === shownOnly)) shownOnly = ""; // nobody is of that kind now
  const query = byId("find")?.value.trim().toLowerCase() ?? "";
  for (const row of rows()) {
    const isOfKind = !shownOnly || row.dataset.is === shownOnly || (shownOnly === "handed in" && "handedIn" in row.dataset);
    row.hidden = !isOfKind || !row.textContent.toLowerCase().includes(query);
  }
  for (const button of filters) {
    button.setAttribute("aria-pressed", button.dataset.only === shownOnly);
  }
  if (byId("found")) byId("found").textContent = query || shownOnly ? `${shownRows().length} of ${rows().length} shown` : "";
}

function limitTabStops() {
  for (const kind of STOPS) {
    const stops = shownRows().map((row) => row.querySelector(kind)).filter(Boolean);
    const current = stops.find((stop) => stop.id === lastStops.get(kind)) ?? stops[0];
    for (const stop of stops) stop.tabIndex = stop === current ? 0 : -1;
  }
}

function count() {
  for (const row of rows()) if (boxOf(row)) boxOf(row).checked = selectedUsers.has(row.dataset.user);
  if (byId("pick-all")) checkPickAll();
  if (!form) return;
  const selected = selectedRows();
  const isToAll = selectedUsers.size === 0;
  const addressees = isToAll ? courseRows() : selected;
  const withServer = addressees.filter((row) => "there" in row.dataset).length;
  const unknown = addressees.filter((row) => row.dataset.is === "not known").length;
  const hidden = selected.filter((row) => row.hidden).length;
  const gone = selectedUsers.size - selected.length;
  const all = byId("incomplete") ? `Send to all, at least ${addressees.length}` : `Send to all ${addressees.length}`;
  byId("send").textContent = isToAll ? all : `Send to the ${selected.length} selected`;
  byId("send").disabled = addressees.length === 0 && !(isToAll && byId("incomplete"));
  byId("unselect").hidden = isToAll;
  const reach = `${withServer} of ${addressees.length} have a server now`
    + (unknown ? `, and of ${unknown} it is not known` : "")
    + (withServer < addressees.length ? "; the others see it if they start one in time." : ".")
    + (hidden ? ` ${hidden} of those selected are not shown now.` : "");
  byId("reach").textContent = (addressees.length ? reach : "")
    + (gone ? ` Selected, but no longer in this class: ${gone}. They do not get the message.` : "");
}

function checkPickAll() {
  const shown = shownRows();
  const selected = shown.filter((row) => selectedUsers.has(row.dataset.user)).length;
  byId("pick-all").checked = selected > 0 && selected === shown.length;
  byId("pick-all").indeterminate = selected > 0 && selected < shown.length;
}

function show() {
  sortRows();
  filterRows();
  limitTabStops();
  count();
  age(document);
}

function select(row, isSelected) {
  if (isSelected) selectedUsers.add(row.dataset.user);
  else selectedUsers.delete(row.dataset.user);
}

function unselect() {
  selectedUsers.clear();
  byId("text").focus(); // the button is about to be hidden
}

const main = byId("main");
main.addEventListener("change", ({ target }) => {
  if (target.id === "course") return target.form.requestSubmit();
  if (target.id === "pick-all") for (const row of shownRows()) select(row, target.checked);
  else if (target.type === "checkbox") select(target.closest("tr"), target.checked);
  else return undefined;
  return count();
});

main.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (!button) return;
  if (button.id === "unselect") unselect();
  else if (button.dataset.only !== undefined) shownOnly = button.dataset.only;
  else if (button.id.startsWith("sort-")) {
    isDescending = button.id === sortedBy ? !isDescending : "largestFirst" in button.dataset;
    sortedBy = button.id;
  } else return;
  show();
});

// Arrow keys go from row to row; with Shift, the next row is selected as this one is.
main.addEventListener("keydown", (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  const row = event.target.closest("tbody tr[data-user]");
  const kind = row && STOPS.find((selector) => event.target.matches(selector));
  if (!step || !kind) return;
  const reachable = shownRows().filter((other) => other.querySelector(kind));
  const next = reachable[reachable.indexOf(row) + step];
  event.preventDefault();
  if (!next) return;
  if (event.shiftKey && boxOf(row)) {
    select(next, selectedUsers.has(row.dataset.user));
    count();
  }
  next.querySelector(kind).focus();
});

main.addEventListener("focusin", ({ target }) => {
  const kind = target.closest("tbody tr[data-user]") && STOPS.find((selector) => target.matches(selector));
  if (!kind) return;
  lastStops.set(kind, target.id);
  limitTabStops();
});

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const message = { text: form.elements.text.value, minutes: Number(form.elements.minutes.value) };
  const { course } = form.dataset;
  const isToAll = selectedUsers.size === 0;
  const users = selectedRows().map((row) => row.dataset.user);
  if (byId("send").disabled) return;
  form.querySelector("[role=alert]").textContent = "";
  try {
    if (isToAll) await ask("POST", "messages", { to_course: course, ...message });
    else await ask("POST", `classes/${encodeURIComponent(course)}/messages`, { users, ...message });
    const all = courseRows().length;
    say(isToAll ? `Message sent to all ${all}.` : `Message sent: ${users.length} of ${rows().length} students.`);
    form.elements.text.value = "";
    selectedUsers.clear();
    count();
  } catch (refusal) {
    showRefusal(form, refusal);
  }
});

async function refresh() {
  await renew().then(() => {
    answeredAt = new Date();
    answeredTick = performance.now();
    show();
  }, () => {}); // said below, if it lasts
  const isSilent = performance.now() - answeredTick > SILENT_MS;
  if (isSilent) byId("link-since").textContent = answeredAt.toLocaleTimeString();
  byId("link").hidden = !isSilent;
}

// The pool's page leads here to somebody.
if (byId("find") && location.hash.startsWith("#find=")) {
  byId("find").value = decodeURIComponent(location.hash.slice("#find=".length));
}
byId("find")?.addEventListener("input", show);
document.addEventListener("miglab:acted", refresh);
show();
setInterval(refresh, AGAIN_MS);
