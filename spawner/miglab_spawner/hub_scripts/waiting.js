// The page of a start: the line, what can be done while it waits, and JupyterHub's bar once it does not.

import { ordinal } from "./api/line.js";
import { headers, isOfThisServer, lineUrl, showLine } from "./hub_line.js";
import { call, offerToTell, showTab, tellable } from "./calling.js";

const EVENT_MS = 3000; // between two questions for the last event, while no stream brings it
const QUIET_MS = 10000; // a stream that brings nothing for so long may be held back
const PATIENCE_MS = 6000;
const MOST_DRAWN = 24;
const KEPT = {
  true: "You work without a GPU and keep your position: JupyterLab tells you when your slice is ready.",
  false: "You work without a GPU, and leave the queue.",
};
const page = document.getElementById("miglab-page");
const find = (id) => document.getElementById(`miglab-${id}`);
const start = window.miglabStart;
let wait = null; // the last wait that the hub told of; null while it does not wait
let hasWaited = false;
const filesAhead = JSON.parse(find("ahead").textContent); // of JupyterLab; names are those still to be fetched
let isFetching = false;
let position = null;

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const isFailed = () => document.getElementById("progress-bar").classList.contains("bg-danger");

// -- what is asked, and done --------------------------------------------------------------------------

async function question(url) {
  const answer = await fetch(url, { headers, signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.json();
}

async function choose(shape) {
  const jsonHeaders = { ...headers, "Content-Type": "application/json" };
  const answer = await fetch(page.dataset.url, { method: "POST", headers: jsonHeaders, body: JSON.stringify({ shape }) }).catch(() => null);
  if (!answer?.ok) {
    const problem = await answer?.json().catch(() => null);
    throw new Error(problem?.message ?? "The hub does not answer. Try again.");
  }
  if (shape === "") location.assign(page.dataset.spawn);
  else line.ask();
}

const goOn = ({ shape }) => choose(shape);

async function press({ currentTarget: { dataset } }) {
  find("error").textContent = "";
  await choose(dataset.shape).catch((error) => (find("error").textContent = error.message));
}

// JupyterLab's files, one after the other while the start waits; what is left once it is the student's turn, their
// own server sends, or the next wait if the start waits again.
async function fetchAhead() {
  if (isFetching || !document.createElement("link").relList.supports("prefetch")) return;
  const { folder, names } = filesAhead;
  isFetching = true;
  while (wait !== null && names.length) {
    const link = Object.assign(document.createElement("link"), { rel: "prefetch", as: "script", href: folder + names.shift() });
    const end = new Promise((resolve) => (link.onload = link.onerror = resolve));
    document.head.append(link);
    await end;
  }
  isFetching = false;
  document.body.classList.toggle("miglab-is-fetched", !names.length);
}

// -- what is shown --------------------------------------------------------------------------------------

function strip(standing) {
  const isQueue = Boolean(standing?.position) && standing.waiting > 1; // who waits alone needs no picture of it
  find("strip").hidden = !isQueue;
  if (!isQueue) return;
  const from = Math.max(0, standing.position - MOST_DRAWN + 2);
  const numbers = Array.from({ length: Math.min(standing.waiting - from, MOST_DRAWN) }, (_, place) => from + place + 1);
  const kind = (number) => (number === standing.position ? "own" : number > standing.position ? "behind" : "");
  const places = find("strip").children;
  while (places.length > numbers.length) places[places.length - 1].remove();
  numbers.forEach((number, place) => {
    (places[place] ?? find("strip").appendChild(document.createElement("li"))).className = kind(number);
  });
}

function wentBack(standing) {
  const next = standing?.position ?? null;
  if (position && next && next > position) {
    setText(find("back"), `You moved from ${ordinal(position)} to ${ordinal(next)}: who has used less lately goes first (fair share), and staff can put somebody in front.`);
  } else if (!next || (position && next < position)) {
    setText(find("back"), "");
  }
  position = next;
}

function drawing(svg) {
  const span = document.createElement("span");
  span.className = "miglab-picture";
  span.innerHTML = svg; // from the hub, made of numbers alone
  return span;
}

function alternative({ shape, size, title, picture }) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "btn btn-secondary" });
  button.dataset.shape = shape;
  button.append(drawing(picture), ` ${title === shape ? `${shape} (${size})` : title}`);
  button.addEventListener("click", press);
  const place = document.createElement("li");
  place.append(button);
  return place;
}

function showWays() {
  find("waiting").hidden = find("what").hidden = wait === null;
  document.body.classList.toggle("miglab-is-waiting", wait !== null);
  find("failed").hidden = !isFailed();
  if (wait === null) return;
  if (find("what").dataset.shape !== wait.shape) {
    find("what").dataset.shape = wait.shape;
    find("what").replaceChildren(drawing(wait.picture), wait.title);
  }
  setText(find("kept"), wait.meanwhile || KEPT[wait.keeps_ticket]);
  setText(find("wanted"), wait.title);
  find("alternatives").hidden = wait.alternatives.length === 0;
  const shapes = wait.alternatives.map(({ shape }) => shape).join();
  if (find("free").dataset.shapes !== shapes) {
    find("free").dataset.shapes = shapes;
    find("free").replaceChildren(...wait.alternatives.map(alternative));
  }
  tellable();
}

// Whoever looks elsewhere reads it in the title of the tab; only what needs them is called out.
const CALLS = { asked: "Are you still waiting?", aside: "You have stepped aside" };

function showStanding([standing]) {
  const queued = wait === null ? undefined : standing;
  strip(queued);
  wentBack(queued);
  const course = wait?.course || page.dataset.lab;
  if (queued) {
    const text = CALLS[queued.state] ?? "";
    showTab(text || (queued.position ? ordinal(queued.position) : "Waiting"), text ? "?" : String(queued.position ?? "…"), course);
    call(text);
    hasWaited = true;
  } else {
    showTab(isFailed() ? "Not started" : "Starting", isFailed() ? "!" : "…", course);
    call(isFailed() ? "Your server did not start." : hasWaited ? "It is your turn: your server is starting." : "");
  }
}

const line = showLine({
  url: page.dataset.url,
  show: isOfThisServer,
  heading: "h1",
  nothing: () => (isFailed() ? "Your server did not start" : "Your server is starting"),
  acts: { stay: goOn, return: goOn, leave: () => choose("") },
  onDraw: showStanding,
  hear: async (answer) => {
    wait = answer;
    if (wait) fetchAhead();
    showWays();
    return wait?.line ?? question(lineUrl);
  },
});

// -- the start ------------------------------------------------------------------------------------------

const isStreaming = () => performance.now() - start.streamedAt < QUIET_MS;
// The stream's first event has words of JupyterHub's, where an answer may have none.
const isNew = (event) => ["progress", "message", "ready", "failed"].some((name) => event[name] !== undefined && event[name] !== start.last[name]);

async function askForEvent() {
  const event = isStreaming() ? undefined : await question(page.dataset.start).catch(() => undefined);
  if (event && !isStreaming()) {
    if (isNew(event)) {
      start.streamedAt = -Infinity; // held back: from now on it is asked every time
      start.hear({ data: JSON.stringify(event) });
    } else if (start.streamedAt > -Infinity) {
      start.streamedAt = performance.now(); // quiet because there is no news
    }
  }
  if (!event?.failed) setTimeout(askForEvent, EVENT_MS);
}

start.noteStatus = line.noteStatus; // an event is an answer, too: the line may wait longer for its own
page.querySelectorAll("[data-shape]").forEach((button) => button.addEventListener("click", press));
offerToTell();
// Each line of the start is a change: ask then, and now and then for what others gave back.
new MutationObserver(line.ask).observe(document.getElementById("progress-message"), { childList: true });
new MutationObserver(line.ask).observe(document.getElementById("progress-bar"), { attributeFilter: ["class"] });
setTimeout(askForEvent, EVENT_MS);
