// What every page with actions needs: where the service is, how it is asked, how it answers.

const meta = (name) => document.querySelector(`meta[name="miglab-${name}"]`).content;

export const prefix = meta("prefix");
export const byId = (id) => document.getElementById(id);

// A part of a page, as HTML; signed out means: begin again.
export async function part(path) {
  const answer = await fetch(`${prefix}/${path}`);
  if (answer.status === 401) location.reload();
  return answer;
}

// Asks the API; answers what it said, or throws an Error with its words.
export async function ask(method, path, body) {
  return (await send(method, `api/${path}`, body)).json();
}

// The same for what answers with a part of a page.
export async function post(path, body) {
  return (await send("POST", path, body)).text();
}

async function send(method, path, body) {
  const answer = await fetch(`${prefix}/${path}`, {
    method,
    headers: { "Content-Type": "application/json", "X-XSRFToken": meta("xsrf") },
    body: body === undefined ? undefined : JSON.stringify(body),
  }).catch(() => {
    throw new Error("The pool does not answer. Nothing was done, as far as is known: look, then try again.");
  });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Error(said.message || `The pool answered ${answer.status}.`);
}

// Tells everybody, and screen readers, what came of an action.
export function say(words) {
  const said = byId("said");
  said.textContent = words;
  said.classList.remove("unseen");
}
