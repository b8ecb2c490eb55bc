// Keeps the pool's page current: the server says that something changed, and sends those parts anew.

import "./details.js";
import { find, fromAddress, lead } from "./find.js";
import { byId, part, prefix } from "./frame.js";
import { age } from "./times.js";

const REST_MS = 1000; // a class that starts at once changes much
const AGE_MS = 15000;
const REFRESH_MS = 30000; // who idles is no change of the pool, and is not told
const POLL_MS = 5000; // where a proxy holds the events back or refuses them
const SILENT_MS = 15000;
const AGAIN_MS = 30000; // at least, until a stream that was refused is asked for again
let answeredAt = Date.now();
let refreshedAt = Date.now();
let isStreaming = false;
let announced = ownStatus();
let isOutdated = false;
let busy = false;
const notifiedLeases = new Set();

function ownStatus() {
  return document.querySelector("[data-own]").dataset.own;
}

// Whoever looks elsewhere hears that a slice of theirs goes back.
function news() {
  const warned = [...document.querySelectorAll("[data-news]")].map((item) => item.dataset.news);
  for (const lease of notifiedLeases) if (!warned.includes(lease)) notifiedLeases.delete(lease);
  for (const lease of warned.filter((lease) => !notifiedLeases.has(lease))) {
    notifiedLeases.add(lease);
    if (window.Notification?.permission !== "granted") continue;
    new Notification("Your GPU goes back to the pool soon", { tag: "miglab-warned" });
  }
}

// Replacing a part must not lose the keyboard's place, nor how far a list was scrolled.
function replace(html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  for (const next of [...fresh.content.querySelectorAll(".part")]) {
    const old = byId(next.id);
    const focus = old.contains(document.activeElement) ? document.activeElement.id : "";
    const scrolled = old.querySelector(".scroll")?.scrollTop || 0;
    old.replaceWith(next);
    if (scrolled && next.querySelector(".scroll")) next.querySelector(".scroll").scrollTop = scrolled;
    if (focus) (byId(focus) || byId("main")).focus({ preventScroll: true });
  }
  age(document);
  find();
  if (ownStatus() !== announced) byId("said").textContent = announced = ownStatus();
  news();
}

async function once() {
  const parts = [...document.querySelectorAll(".part")];
  const names = parts.map((item) => item.id.slice("part-".length));
  const have = parts.map((item, n) => `${names[n]}.${item.dataset.version}`).join(",");
  const answer = await part(`fragment?have=${encodeURIComponent(have)}`);
  if (!answer.ok) throw new Error(answer.statusText);
  const currentParts = answer.headers.get("X-Parts").split(" ");
  if (currentParts.slice().sort().join() !== names.sort().join()) return location.reload();
  replace(await answer.text());
}

// One request at a time.
async function refresh() {
  isOutdated = true;
  refreshedAt = Date.now();
  if (busy) return;
  busy = true;
  while (isOutdated) {
    isOutdated = false;
    await once().then(() => (answeredAt = Date.now()), () => {}); // said below, if it lasts
    tellSilence();
    await new Promise((resolve) => setTimeout(resolve, REST_MS));
  }
  busy = false;
}

function tellSilence() {
  const isSilent = Date.now() - answeredAt > SILENT_MS;
  if (isSilent) byId("link-since").textContent = new Date(answeredAt).toLocaleTimeString();
  byId("link").hidden = !isSilent;
}

// A proxy's refusal, as while the pool restarts, ends a stream for good; then a new one is opened.
function stream() {
  const events = new EventSource(`${prefix}/live`);
  events.addEventListener("pool", () => {
    isStreaming = true;
    refresh();
  });
  events.addEventListener("error", () => {
    isStreaming = false;
    if (events.readyState === EventSource.CLOSED) setTimeout(stream, AGAIN_MS * (1 + Math.random()));
  });
}
stream();
document.addEventListener("miglab:acted", refresh);
setInterval(() => age(document), AGE_MS);
setInterval(() => {
  if (Date.now() - refreshedAt >= (isStreaming ? REFRESH_MS : POLL_MS)) refresh();
  tellSilence();
}, REST_MS);

// Arrow keys walk over the drawing, as the eye does.
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
byId("main").addEventListener("keydown", (event) => {
  const step = STEPS[event.key];
  const cell = event.target.closest(".cell-in");
  if (!step || !cell) return;
  const next = step[0] ? across(cell, step[0]) : along(cell, step[1]);
  if (next) {
    event.preventDefault();
    next.focus();
  }
});

function along(cell, step) {
  const all = [...cell.closest(".bar").querySelectorAll("button.cell-in")];
  return all[all.indexOf(cell) + step];
}

function across(cell, step) {
  const bars = [...document.querySelectorAll(".bar")].filter((bar) => bar.querySelector("button.cell-in"));
  const bar = bars[bars.indexOf(cell.closest(".bar")) + step];
  if (!bar) return undefined;
  const middle = (item) => item.getBoundingClientRect().left + item.offsetWidth / 2;
  const away = (item) => Math.abs(middle(item) - middle(cell));
  return [...bar.querySelectorAll("button.cell-in")].sort((a, b) => away(a) - away(b))[0];
}

byId("find").addEventListener("input", lead);
fromAddress();
news();
