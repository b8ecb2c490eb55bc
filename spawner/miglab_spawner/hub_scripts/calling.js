// Calls somebody who looks elsewhere: title and icon of the tab, and where allowed a notification and a sound.

const find = (id) => document.getElementById(`miglab-${id}`);
let called = "";

export function showTab(text, badge, course) {
  document.title = `${text} · ${course}`;
  const icon = document.querySelector("link[rel=icon]");
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#16545c"/><text x="16" y="23" font-size="${badge.length > 2 ? 14 : 20}" font-family="sans-serif" font-weight="700" text-anchor="middle" fill="#fff">${badge}</text></svg>`;
  icon?.setAttribute("href", `data:image/svg+xml,${encodeURIComponent(svg)}`);
}

function beep() {
  const audio = new AudioContext();
  const tone = audio.createOscillator();
  tone.connect(audio.destination);
  tone.start();
  tone.stop(audio.currentTime + 0.3);
}

// No names and no texts of people: a notification is seen by whoever sees the screen.
export function call(text) {
  if (text && text !== called) {
    if (window.Notification?.permission === "granted") {
      try {
        new Notification(text, { tag: "miglab" });
      } catch { /* a phone's browser wants a service worker: title and icon say it */ }
    }
    if (find("sound").checked) beep();
  }
  called = text;
}

export function tellable() {
  const permission = window.isSecureContext ? window.Notification?.permission : undefined;
  find("notify").hidden = permission !== "default";
  find("told").textContent = {
    default: "when it is your turn, or when you are asked something.",
    granted: "Your browser will tell you when it is your turn.",
  }[permission] ?? `This browser shows no notifications here${window.isSecureContext ? "" : " (they need HTTPS)"}: watch the title of this tab.`;
}

export function offerToTell() {
  find("notify").addEventListener("click", async () => {
    await Notification.requestPermission();
    tellable();
  });
}
