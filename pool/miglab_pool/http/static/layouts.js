// The layouts' page: a file is tried out first, then applied as it was shown.

import * as details from "./details.js";
import { ask, byId, post, say } from "./frame.js";

let tried = ""; // the text whose difference is shown: that one is applied, whatever is typed since

byId("main").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-details]");
  if (button) details.open(button.dataset.details, button);
  const example = event.target.closest("button[data-example]");
  if (example) {
    byId("text").value = example.dataset.example;
    byId("text").focus();
  }
});

byId("text").addEventListener("input", () => byId("preview").replaceChildren());

byId("try").addEventListener("submit", async (event) => {
  event.preventDefault();
  const trouble = event.target.querySelector("[role=alert]");
  trouble.textContent = "";
  const text = byId("text").value;
  const answer = await post("layouts/preview", { text, file: "layout" }).catch((error) => error);
  if (answer instanceof Error) {
    trouble.textContent = answer.message;
    byId("preview").replaceChildren();
    return;
  }
  tried = text;
  byId("preview").innerHTML = answer;
  byId("preview").focus();
});

byId("preview").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const trouble = form.querySelector("[role=alert]");
  trouble.textContent = "";
  try {
    const done = await ask("PUT", "layout", { text: tried, file: "layout", ...details.values(form) });
    const warned = done.warned.length;
    say(warned ? `${form.dataset.done} Leases warned: ${warned}.` : form.dataset.done);
    byId("preview").replaceChildren();
    await refresh();
    byId("said").scrollIntoView({ block: "nearest" });
  } catch (error) {
    trouble.textContent = error.message;
  }
});

async function refresh() {
  const answer = await fetch(location.href);
  if (answer.status !== 200 || answer.redirected) return location.reload();
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  byId("part-layouts").replaceWith(fresh.getElementById("part-layouts"));
}

document.addEventListener("miglab:acted", refresh);
setInterval(() => byId("details").open || refresh().catch(() => {}), 10000);
