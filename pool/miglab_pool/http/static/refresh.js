// Fetches the page anew, and replaces those of its parts that are others now.

import { byId } from "./frame.js";
import { setPageTime } from "./times.js";

const PATIENCE_MS = 10000;
const had = new Map([...document.querySelectorAll(".part")].map((part) => [part.id, part.outerHTML]));

// Throws if the page cannot be had now; begins again if it is not the reader's any more.
export async function renew() {
  const answer = await fetch(location.href, { signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.redirected || answer.status === 403) return location.reload();
  if (!answer.ok) throw new Error(answer.statusText);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  setPageTime(fresh);
  for (const part of fresh.querySelectorAll(".part")) {
    const html = part.outerHTML;
    if (html !== had.get(part.id) && !isMarked(byId(part.id))) {
      replace(byId(part.id), part);
      had.set(part.id, html);
    }
  }
}

// Whoever marks words there wants to copy them: what is new can wait.
function isMarked(part) {
  const marked = getSelection();
  return !marked.isCollapsed && part.contains(marked.anchorNode);
}

// Neither the keyboard's place is lost, nor what was opened, nor how far a table was scrolled.
function replace(old, next) {
  const focus = old.contains(document.activeElement) ? document.activeElement.id : "";
  for (const item of next.querySelectorAll("details[id]")) item.open = byId(item.id)?.open;
  const scrolled = [...old.querySelectorAll(".scroll[id]")].map((item) => [item.id, item.scrollLeft]);
  old.replaceWith(next);
  for (const [id, scrollLeft] of scrolled) byId(id)?.scrollTo({ left: scrollLeft });
  if (focus) (byId(focus) || byId("main")).focus({ preventScroll: true });
}
