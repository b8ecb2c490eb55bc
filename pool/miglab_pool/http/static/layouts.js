// The layouts' page: a file is tried out first, then applied as it was shown.

import { ask, byId, post, say, values } from "./frame.js";

let tried = {}; // the file whose difference is shown: that one is applied, whatever is typed since

byId("main").addEventListener("click", (event) => {
  const example = event.target.closest("button[data-example]");
  if (example) {
    byId("text").value = example.dataset.example;
    byId("name").value = "";
    byId("text").focus();
  }
});

byId("try").addEventListener("input", () => byId("preview").replaceChildren());

byId("try").addEventListener("submit", async (event) => {
  event.preventDefault();
  const trouble = event.target.querySelector("[role=alert]");
  trouble.textContent = "";
  const file = { text: byId("text").value, file: "layout", name: byId("name").value.trim() };
  const answer = await post("layouts/preview", file).catch((error) => error);
  if (answer instanceof Error) {
    trouble.textContent = answer.message;
    byId("preview").replaceChildren();
    return;
  }
  tried = file;
  byId("preview").innerHTML = answer;
  byId("preview").focus();
});

byId("preview").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const trouble = form.querySelector("[role=alert]");
  trouble.textContent = "";
  try {
    const done = await ask("PUT", "layout", { ...tried, ...values(form) });
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

setInterval(() => refresh().catch(() => {}), 10000);
