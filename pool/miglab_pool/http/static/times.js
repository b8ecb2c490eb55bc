// Durations that age on the page, in the words that the server uses (pages/frame.py).
//
// By the service's clock: the page says what it was when it was made, and it goes on by the browser's
// monotonic clock, so that a clock that is set changes nothing.

import { serviceClock } from "./line.js";

const time = serviceClock();

/** The service's moment, in seconds since the epoch. */
export const serviceNow = time.now;

/** Take in the service's moment, as an answer says it. */
export const setServiceTime = time.set;

/** Take in the moment at which a page was made. */
export const setPageTime = (page) => time.set(Number(page.querySelector('meta[name="miglab-now"]').content));

setPageTime(document);

export function short(seconds) {
  const minutes = Math.max(0, Math.round(seconds / 60));
  const hours = Math.floor(minutes / 60);
  if (!hours) return minutes ? `${minutes} min` : "<1 min";
  const days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  return `${hours} h ${String(minutes % 60).padStart(2, "0")}`;
}

function guaranteed(until) {
  const clock = until.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return `guaranteed until ${clock}, then as long as nobody needs it`;
}

export function age(root) {
  for (const element of root.querySelectorAll("time[data-left]")) {
    const left_s = -age_s(element);
    const long = element.dataset.left !== "short";
    const before = element.dataset.before ?? "";
    say(element, left_s > 0 ? before + short(left_s) + (long ? " left" : "") : element.dataset.over || "time is up");
  }
  for (const element of root.querySelectorAll("time[data-guaranteed]")) {
    const isGuaranteed = age_s(element) < 0;
    say(element, isGuaranteed ? guaranteed(new Date(element.dateTime)) : "open: yours as long as nobody needs it");
  }
  for (const element of root.querySelectorAll("time[data-since]")) {
    say(element, short(age_s(element)));
  }
}

/** How long ago the moment of a `<time>` is, seconds; negative while it is to come. */
export const age_s = ({ dateTime }) => serviceNow() - Date.parse(dateTime) / 1000;

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
