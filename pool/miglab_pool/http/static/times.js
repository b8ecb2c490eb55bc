// Durations that age on the page, in the words that the server uses (pages/words.py).

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
  const now = Date.now();
  for (const time of root.querySelectorAll("time[data-left]")) {
    const left_s = (Date.parse(time.dateTime) - now) / 1000;
    const long = time.dataset.left !== "short";
    const before = time.dataset.before ?? "";
    say(time, left_s > 0 ? before + short(left_s) + (long ? " left" : "") : time.dataset.over || "time is up");
  }
  for (const time of root.querySelectorAll("time[data-guaranteed]")) {
    const until = new Date(time.dateTime);
    say(time, until > now ? guaranteed(until) : "open: yours as long as nobody needs it");
  }
  for (const time of root.querySelectorAll("time[data-since]")) {
    say(time, short((now - Date.parse(time.dateTime)) / 1000));
  }
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
