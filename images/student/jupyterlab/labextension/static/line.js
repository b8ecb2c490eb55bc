// The line: where one person stands, what they hold, what they can do now.  The same on every page of
// hub, pool and JupyterLab, from `miglab_api.line.Line`, in the words below.
//
// All times are moments of the service, and go on by this browser's monotonic clock.

const MINUTE_S = 60;
const HOUR_S = 3600;
const plain = { __: (text, ...values) => text.replace(/%(\d)/g, (_, number) => values[number - 1]) };

// -- words: every state in one place ---------------------------------------------------------------

/** "4:31" below an hour, "3 h 50 min" above. */
export function countdown(seconds, trans = plain) {
  const left_s = Math.max(0, Math.ceil(seconds));
  if (left_s < HOUR_S) {
    return `${Math.floor(left_s / MINUTE_S)}:${String(left_s % MINUTE_S).padStart(2, "0")}`;
  }
  return trans.__("%1 h %2 min", Math.floor(left_s / HOUR_S), Math.floor((left_s % HOUR_S) / MINUTE_S));
}

/** "about 10–25 min": rounded outwards, so that it still holds; as `wording.estimated_wait` has it in full words. */
export function expected({ low_s, high_s, is_late, is_longest }, trans = plain) {
  if (is_longest) return trans.__("at most %1, likely sooner", inTens(high_s, trans));
  if (high_s < MINUTE_S) return trans.__("less than a minute");
  const inHours = high_s > 90 * MINUTE_S;
  const unit_s = inHours ? HOUR_S : MINUTE_S;
  const step = inHours ? (high_s > 4 * HOUR_S ? 1 : 0.5) : high_s > 10 * MINUTE_S ? 5 : 1;
  const lowest = Math.floor(low_s / unit_s / step) * step;
  const highest = Math.ceil(high_s / unit_s / step) * step;
  const range = lowest === 0 || lowest === highest ? `${highest}` : `${lowest}–${highest}`;
  const length = inHours ? trans.__("%1 h", range) : trans.__("%1 min", range);
  const phrase = lowest === 0 ? trans.__("at most %1", length) : trans.__("about %1", length);
  return is_late ? trans.__("%1, longer than first estimated", phrase) : phrase;
}

/** "3 h 50 min": up to the next ten minutes, in the two largest units. */
function inTens(seconds, trans) {
  const minutes = Math.max(1, Math.ceil(seconds / MINUTE_S / 10)) * 10;
  const days = Math.floor(minutes / 1440);
  const parts = [[days, days === 1 ? "%1 day" : "%1 days"], [Math.floor(minutes / 60) % 24, "%1 h"], [minutes % 60, "%1 min"]];
  const shown = parts.filter(([count]) => count).slice(0, 2);
  return shown.map(([count, text]) => trans.__(text, count)).join(" ");
}

/** "1st", "2nd", "13th". */
export function ordinal(number) {
  const isTeen = number % 100 > 10 && number % 100 < 14;
  return `${number}${(!isTeen && { 1: "st", 2: "nd", 3: "rd" }[number % 10]) || "th"}`;
}

/** "16:00": a moment of the service, in this browser's time zone. */
export const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

function waiting({ shape, position, message, waiting: all, estimate }, _, trans) {
  if (!position) {
    return message
      ? { title: trans.__("In line for %1", shape), detail: message }
      : { title: trans.__("It is your turn"), detail: trans.__("%1 is being made for you.", shape) };
  }
  const wait = estimate ? expected(estimate, trans) : trans.__("the wait cannot be estimated yet");
  return {
    title: trans.__("%1 of %2 in line for %3", ordinal(position), all, shape),
    detail: message || `${wait[0].toUpperCase()}${wait.slice(1)}.`,
  };
}

function lasts({ until, guaranteed_until, others_wait }, now, trans) {
  const lent = until ? trans.__("Until %1.", clock(until)) : "";
  const isGuaranteed = guaranteed_until > now;
  const guaranteed = trans.__("Guaranteed until %1, then yours as long as nobody needs it.", clock(guaranteed_until));
  const open = guaranteed_until && !isGuaranteed ? trans.__("Yours as long as nobody needs it.") : "";
  const queue = others_wait && !isGuaranteed ? trans.__("In line for it: %1.", others_wait) : "";
  return [lent || (isGuaranteed ? guaranteed : open), queue].filter(Boolean).join(" ");
}

const WORDS = {
  waiting,
  asked: ({ shape }, _, trans) => ({
    title: trans.__("Are you still waiting for %1?", shape),
    detail: trans.__("Without an answer you step aside: you keep your position, and are offered nothing until you return."),
    inTime: (time) => trans.__("%1 left to answer", time),
  }),
  aside: ({ message, shape }, _, trans) => ({
    title: trans.__("You have stepped aside"),
    detail: message || trans.__("Your position for %1 is kept; you are offered nothing until you return.", shape),
  }),
  offered: ({ shape, message }, _, trans) => ({
    title: trans.__("%1 is ready for you", shape),
    detail: message || trans.__("It goes to the next in line if you do not take it."),
    inTime: (time) => trans.__("held for %1", time),
  }),
  starting: ({ shape }, _, trans) => ({
    title: trans.__("%1 is held for your server, which starts with it", shape),
    detail: "",
  }),
  holding: (standing, now, trans) => ({
    title: trans.__("You hold %1", standing.shape),
    detail: lasts(standing, now, trans),
  }),
  warned: ({ shape, message }, _, trans) => ({
    title: trans.__("%1 goes back to the pool soon", shape),
    detail: message,
    inTime: (time) => trans.__("%1 left", time),
  }),
  releasing: ({ shape }, _, trans) => ({
    title: trans.__("%1 is being released", shape),
    detail: trans.__("All files are kept."),
  }),
};

// Who gave it back knows why; who did not reads the reason.
function ended({ shape, ended_at, is_given_back, reason }, trans) {
  if (is_given_back) return trans.__("You released %1 at %2.", shape, clock(ended_at));
  return trans.__("%1 went back to the pool at %2: %3", shape, clock(ended_at), reason);
}

/**
 * What a standing says: `title`, `detail`, `time` ("held for 4:31", or empty), `share` of the time that is
 * left (null where nothing runs out), `sentence` for a screen reader, which does not count seconds, and
 * `isUrgent`.
 *
 * @param standing of `Line.standings`; undefined for a person who neither holds nor waits.
 * @param now the service's moment, as `moment` gives it.
 * @param lastEnd `Line.last_end`: what that person held last; null or undefined if nothing.
 */
export function inWords(standing, now, trans = plain, lastEnd = null) {
  if (!standing) {
    const title = trans.__("You hold no slice, and wait for none");
    const detail = lastEnd ? ended(lastEnd, trans) : "";
    return { title, detail, time: "", share: null, sentence: `${title}. ${detail}`.trim(), isUrgent: false };
  }
  const { state, since, until } = standing;
  const { title, detail, inTime } = WORDS[state](standing, now, trans);
  const left_s = inTime && until ? Math.max(0, until - now) : null;
  return {
    title,
    detail,
    time: left_s === null ? "" : inTime(countdown(left_s, trans)),
    share: left_s === null || !since || until <= since ? null : Math.min(1, left_s / (until - since)),
    sentence: `${title}${title.endsWith("?") ? "" : "."} ${detail}`.trim(),
    isUrgent: ["warned", "offered", "asked"].includes(state),
  };
}

/** "offered, 4:31 left" in the fewest words, for a status bar. */
export function inShort(standing, now, trans = plain) {
  if (!standing) return trans.__("no slice");
  const { state, shape, position, estimate, until, guaranteed_until } = standing;
  const timeLeft = until ? countdown(until - now, trans) : "";
  const wait = estimate ? `, ${expected(estimate, trans)}` : "";
  const guaranteed = guaranteed_until > now ? trans.__("%1, guaranteed until %2", shape, clock(guaranteed_until)) : shape;
  return {
    waiting: position ? trans.__("%1 in line", ordinal(position)) + wait : trans.__("%1 in line", shape),
    asked: trans.__("still waiting? %1 left", timeLeft),
    aside: trans.__("stepped aside"),
    offered: trans.__("%1 ready, %2 left", shape, timeLeft),
    starting: trans.__("%1 starts", shape),
    holding: until ? trans.__("%1 until %2", shape, clock(until)) : guaranteed,
    warned: trans.__("%1 goes back, %2 left", shape, timeLeft),
    releasing: trans.__("%1 is released", shape),
  }[state];
}

/** The labels of the acts; a place may have its own for some. */
export function labels({ extension_s = 0 } = {}, trans = plain) {
  const minutes = Math.round(extension_s / MINUTE_S);
  const length = minutes % 60 ? trans.__("%1 min", minutes) : trans.__("%1 h", minutes / 60);
  return {
    choose: trans.__("Choose a slice"),
    resume: trans.__("Go on"),
    stay: trans.__("Yes, keep my position"),
    return: trans.__("Return to the queue"),
    leave: trans.__("Leave the queue"),
    take: trans.__("Start with it"),
    decline: trans.__("Leave it to the next student"),
    open: trans.__("Open JupyterLab"),
    keepalive: trans.__("I am still here"),
    extend: trans.__("Extend by %1", length),
    release: trans.__("Release"),
  };
}

/** What is said of the connection: `{ text, link }`, both empty while all is well. */
export function connectionInWords({ status, since }, trans = plain) {
  const link = trans.__("Sign in, and come back here");
  return {
    fine: { text: "", link: "" },
    silent: {
      text: trans.__("The lab has not answered since %1, so this may be out of date. It keeps trying.", since?.toLocaleTimeString()),
      link: "",
    },
    "signed-out": { text: trans.__("You are signed out, so this no longer changes."), link },
    "no-cookies": {
      text: trans.__("This browser keeps no cookies for this site, so nobody can stay signed in. Allow them, then load this page again."),
      link: "",
    },
  }[status];
}

// -- time: the service's, by a clock that runs one way ---------------------------------------------

const STEADY_S = 5; // an answer that was longer under way does not turn the clock back

/** A clock of the service: `set(line.now)` at each answer, then `now()`. */
export function serviceClock(monotonic = () => performance.now() / 1000) {
  let offset_s = null;
  return {
    set: (now) => {
      const fresh_s = now - monotonic();
      const isDelayed = offset_s !== null && fresh_s < offset_s && offset_s - fresh_s < STEADY_S;
      if (!isDelayed) offset_s = fresh_s;
    },
    now: () => (offset_s === null ? null : monotonic() + offset_s),
  };
}

// -- following: events where they arrive, else a question every few seconds -------------------------

export const ASK_MS = 5000;
const REST_MS = 30000; // while a stream brings what is new
const HIDDEN_MS = 20000; // while nobody looks
const AGAIN_MS = 30000; // until a stream that was refused is opened again
const PATIENCE_MS = 8000;
const SILENT_MS = 15000; // a question without an answer
const SIGNED_OUT = [401, 403];

/** Whether this browser keeps cookies for this page's site: Chromium's `cookieEnabled` is true even where it does not. */
export function keepsCookies() {
  const probe = "miglab-cookies=kept";
  document.cookie = `${probe}; Max-Age=5`;
  return navigator.cookieEnabled && document.cookie.includes(probe);
}

/**
 * Ask `url` until the page goes, and say how that goes.
 *
 * @param url answers JSON; an error of a proxy (5xx) is no answer.
 * @param events a stream of events, each of which is a reason to ask; none: it is asked alone.
 * @param eventName the events' name.
 * @param hear takes each answer; if it rejects, since the page could not have more of it, that is no answer.
 * @param pauseMs between two questions, where no stream brings what is new.
 * @param tell takes the connection, `{ status, since }`, when it changes: `fine`, `silent`, `signed-out` or
 *     `no-cookies`.
 * @returns `{ ask, noteStatus, stop }`: ask at once; take in the HTTP status of an answer that came some other way.
 */
export function follow({ url, events, eventName = "message", hear = () => {}, tell = () => {}, headers = {}, pauseMs: askMs = ASK_MS }) {
  let answeredAt = new Date();
  let unansweredTick = null; // when the first question was put that has no answer yet
  let status = "fine";
  let isAsking = false;
  let isAgain = false;
  let source = null;
  let isStreaming = false;
  let askedAt = -Infinity;
  let isStopped = false;

  const draw = () => {
    const isSilent = unansweredTick !== null && performance.now() - unansweredTick > SILENT_MS;
    const next = status !== "fine" ? status : isSilent ? "silent" : "fine";
    tell({ status: next, since: answeredAt });
  };
  const noteStatus = (code) => {
    if (!(code > 0 && code < 500)) return draw();
    answeredAt = new Date();
    unansweredTick = null;
    status = !SIGNED_OUT.includes(code) ? "fine" : keepsCookies() ? "signed-out" : "no-cookies";
    draw();
  };
  const question = async () => {
    const response = await fetch(url, { headers, signal: AbortSignal.timeout(PATIENCE_MS) }).catch(() => null);
    // Who is signed out is led to a page for it, which is no answer to this.
    const isLed = response?.redirected && !response.headers.get("Content-Type")?.includes("json");
    const answer = response?.ok && !isLed ? await response.json().catch(() => undefined) : undefined;
    const isTaken = answer === undefined || isStopped || (await Promise.resolve(hear(answer)).then(() => true, () => false));
    noteStatus(isLed ? 401 : !isTaken || (response?.ok && answer === undefined) ? 0 : (response?.status ?? 0));
  };
  const ask = async () => {
    isAgain = true;
    if (isAsking) return;
    isAsking = true;
    while (isAgain && !isStopped) {
      isAgain = false;
      askedAt = performance.now();
      unansweredTick ??= askedAt;
      await question();
    }
    isAsking = false;
  };
  const stream = () => {
    if (isStopped) return;
    source = new EventSource(events);
    source.addEventListener(eventName, () => {
      isStreaming = true;
      ask();
    });
    source.addEventListener("error", () => {
      isStreaming = false;
      if (source.readyState === EventSource.CLOSED) setTimeout(stream, AGAIN_MS * (1 + Math.random()));
    });
  };

  if (!keepsCookies()) {
    tell({ status: "no-cookies", since: answeredAt });
    return { ask: () => {}, noteStatus: () => {}, stop: () => {} };
  }
  const timer = setInterval(() => {
    const restMs = document.hidden ? HIDDEN_MS : isStreaming ? REST_MS : askMs;
    const pauseMs = unansweredTick === null ? restMs : askMs;
    if (!isAsking && performance.now() - askedAt >= pauseMs) ask();
    draw();
  }, 1000);
  document.addEventListener("visibilitychange", ask);
  addEventListener("online", ask);
  if (events) stream();
  ask();
  return {
    ask,
    noteStatus,
    stop: () => {
      isStopped = true;
      source?.close();
      clearInterval(timer);
      document.removeEventListener("visibilitychange", ask);
      removeEventListener("online", ask);
    },
  };
}

// -- drawing ------------------------------------------------------------------------------------------

const make = (name, className = "", text = "") => Object.assign(document.createElement(name), { className, textContent: text });

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Draw the line in an element, and keep its times going.
 *
 * @param root an element of the page; its classes are line.css's.
 * @param acts by name, what a button does with its standing and itself: an async function, whose `Error` is shown.
 * @param links by name, the address to which an act leads, `standing => href`.  An act with neither, or
 *     with an empty address, is not shown.  `choose` is offered to whoever has no standing.
 * @param show which standings are shown; all, if left out.
 * @param signIn the address that leads through the sign-in to this page.
 * @param heading the element of a title, where the line is what the page is about.
 * @param nothing what the title says of whoever has no standing here; empty for the usual words.
 * @param onDraw takes the standings and the moment, after each drawing.
 * @returns `{ hear, tell, fail, now }`: `hear` and `tell` take what `follow` brings, `fail` shows a problem.
 */
export function drawLine(root, { acts = {}, links = {}, show = () => true, signIn = (address) => address, heading = "strong", nothing = () => "", trans = plain, onDraw = () => {} } = {}) {
  const time = serviceClock();
  const announcement = make("p", "unseen");
  const list = make("ul", "line-standings");
  const problem = make("p", "line-problem");
  const notice = make("p", "line-silence");
  let line = null;
  root.classList.add("line");
  announcement.setAttribute("role", "status");
  problem.setAttribute("role", "alert");
  notice.setAttribute("role", "status");
  problem.hidden = notice.hidden = true;
  root.replaceChildren(announcement, list, problem, notice);

  const fail = (text) => {
    problem.hidden = !text;
    setText(problem, text);
  };
  const button = (act, label, standing) => {
    const href = links[act]?.(standing);
    const element = make(href ? "a" : "button", `line-act line-act-${act}`, label);
    element.id = `line-${act}-${standing?.lease ?? standing?.ticket ?? ""}`;
    if (href) element.href = href;
    else {
      element.type = "button";
      element.addEventListener("click", async () => {
        if (element.getAttribute("aria-disabled") === "true") return;
        element.setAttribute("aria-disabled", "true"); // `disabled` would drop the keyboard's focus
        fail("");
        await Promise.resolve(acts[act](standing, element)).catch((error) => fail(error.message));
        element.removeAttribute("aria-disabled");
      });
    }
    return element;
  };
  const buttons = (standing) => {
    const names = standing ? standing.acts : ["choose"];
    const actLabels = labels(standing, trans);
    return names.filter((act) => acts[act] || links[act]?.(standing)).map((act) => button(act, actLabels[act], standing));
  };
  const item = (standing) => {
    const place = make("li", `line-standing line-${standing?.state ?? "none"}`);
    const head = make("div", "line-head");
    const bar = make("div", "line-bar");
    const row = make("div", "line-acts");
    bar.setAttribute("aria-hidden", "true");
    bar.append(make("div"));
    head.append(make("span", "line-time"));
    row.append(...buttons(standing));
    row.hidden = !row.children.length;
    const name = standing?.server;
    head.prepend(make(heading, "line-title"), " ");
    if (name) head.append(" ", make("span", "line-server", serverInWords(name, trans)));
    place.append(head, make("p", "line-detail"), bar, row);
    return place;
  };
  // What can be pressed is made anew only when it is something else: the keyboard's place is kept.
  const signature = () => JSON.stringify(visibleStandings().map((standing) => standing && [standing.state, standing.server, standing.ticket, standing.lease, standing.acts, standing.extension_s]));
  const visibleStandings = () => {
    const standings = line.standings.filter(show);
    return standings.length ? standings : [undefined];
  };
  let drawnSignature = "";
  const draw = () => {
    if (!line) return;
    const standings = visibleStandings();
    if (signature() !== drawnSignature) {
      drawnSignature = signature();
      const focus = list.contains(document.activeElement) ? document.activeElement.id : "";
      list.replaceChildren(...standings.map(item));
      if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
    }
    const sentences = standings.map((standing, number) => {
      const emptyTitle = standing ? "" : nothing();
      const texts = {
        ...inWords(standing, time.now(), trans, line.last_end),
        ...(emptyTitle && { title: emptyTitle, detail: "", sentence: `${emptyTitle}.` }),
      };
      fill(list.children[number], texts);
      return texts.sentence;
    });
    setText(announcement, sentences.join(" "));
    onDraw(standings, time.now());
  };
  setInterval(draw, 1000);
  return {
    hear: (answer) => {
      line = answer;
      time.set(answer.now);
      draw();
    },
    tell: (connection) => {
      const { text, link } = connectionInWords(connection, trans);
      notice.hidden = !text;
      if (notice.dataset.text === text) return;
      notice.dataset.text = text;
      notice.replaceChildren(text);
      const address = location.pathname + location.search;
      if (link) notice.append(" ", Object.assign(make("a", "", link), { href: signIn(address) }), ".");
    },
    now: time.now,
    fail,
  };
}

function fill(place, { title, detail, time, share, isUrgent }) {
  setText(place.querySelector(".line-title"), title);
  setText(place.querySelector(".line-time"), time);
  setText(place.querySelector(".line-detail"), detail);
  place.querySelector(".line-detail").hidden = !detail;
  const bar = place.querySelector(".line-bar");
  bar.hidden = share === null;
  if (share !== null) bar.firstChild.style.width = `${100 * share}%`;
  place.classList.toggle("line-urgent", isUrgent);
}

const BORROWER = "~run/";

/** "server “vision”", "borrowed"; empty for the default server. */
export function serverInWords(server, trans = plain) {
  if (server === BORROWER) return trans.__("borrowed");
  if (server.startsWith(BORROWER)) return trans.__("borrowed by server “%1”", server.slice(BORROWER.length));
  return server ? trans.__("server “%1”", server) : "";
}
