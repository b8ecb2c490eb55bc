// Keeps the pool's page current: the server says that something changed, and sends those parts anew.

import { open } from "./details.js";
import { find, fromAddress, lead } from "./find.js";
import { ask, byId, part, prefix, say } from "./frame.js";
import { drawLine, follow, labels } from "./line.js";
import { age, setServiceTime } from "./times.js";

const REST_MS = 1000; // a class that starts at once changes much
const AGE_MS = 15000;
const root = byId("line");
const notifiedLeases = new Set();

// Whoever looks elsewhere hears that a slice of theirs goes back.
function notify(standings) {
  const warned = standings.filter((standing) => standing?.state === "warned").map(({ lease }) => lease);
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
}

async function refresh() {
  const parts = [...document.querySelectorAll(".part")];
  const names = parts.map((item) => item.id.slice("part-".length));
  const have = parts.map((item, n) => `${names[n]}.${item.dataset.version}`).join(",");
  const answer = await part(`fragment?have=${encodeURIComponent(have)}`);
  if (!answer.ok) throw new Error(answer.statusText);
  const currentParts = answer.headers.get("X-Parts").split(" ");
  if (currentParts.slice().sort().join() !== names.sort().join()) return location.reload();
  replace(await answer.text());
  await new Promise((resolve) => setTimeout(resolve, REST_MS));
}

// -- the line: what ends something is looked at first, in the dialog in which everything is acted on --

const toServer = ({ server = "" } = {}) => `${root.dataset.spawn}${encodeURIComponent(server)}`;
const ofServer = (standing) => (standing?.server.startsWith("~run/") ? "" : toServer(standing));
const onTicket = ({ ticket }, button) => open({ details: `ticket/${ticket}` }, button.id);
const onLease = ({ lease }, button) => open({ details: `lease/${lease}` }, button.id);

async function act(confirmation, path, body) {
  await ask("POST", path, body);
  say(confirmation);
  follower.ask();
}

const line = drawLine(root, {
  links: { choose: toServer, resume: ofServer, return: ofServer, stay: ofServer, take: ofServer, open: ofServer },
  acts: {
    leave: onTicket,
    decline: onTicket,
    release: onLease,
    extend: (standing) => act(`${labels(standing).extend}: done.`, `leases/${standing.lease}/extend`, { by_s: standing.extension_s }),
    keepalive: ({ lease }) => act("You keep your slice.", `leases/${lease}/keepalive`),
  },
  onDraw: (standings) => {
    root.hidden = root.dataset.staff !== undefined && !standings[0]; // staff watch; they need none
    notify(standings);
  },
});
const follower = follow({
  url: `${prefix}/api/line`,
  events: `${prefix}/live`,
  eventName: "pool",
  tell: (connection) => {
    line.tell(connection);
    if (connection.status !== "fine") root.hidden = false;
  },
  hear: (answer) => {
    line.hear(answer);
    setServiceTime(answer.now);
    return refresh();
  },
});
document.addEventListener("miglab:acted", follower.ask);
setInterval(() => age(document), AGE_MS);

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
