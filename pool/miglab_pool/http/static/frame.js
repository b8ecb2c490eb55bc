// What every page with actions needs: where the service is, how it is asked, how it answers.

const meta = (name) => document.querySelector(`meta[name="miglab-${name}"]`).content;

const PATIENCE_MS = 10000;
export const prefix = meta("prefix");
export const byId = (id) => document.getElementById(id);

// A part of a page, as HTML; signed out means: begin again.
export async function part(path) {
  const answer = await fetch(`${prefix}/${path}`, { signal: AbortSignal.timeout(PATIENCE_MS) });
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
  const problem = await answer.json().catch(() => ({}));
  const refusal = new Error(problem.message || `The pool answered ${answer.status}.`);
  throw Object.assign(refusal, { wayOn: problem.way_on });
}

// Shows in a form why the pool refused it, and the field with which the pool would not refuse it.
export function showRefusal(form, refusal) {
  form.querySelector("[role=alert]").textContent = refusal.message;
  const wayOn = refusal.wayOn && form.elements[refusal.wayOn];
  if (!wayOn) return;
  wayOn.disabled = false;
  wayOn.closest(".field").hidden = false;
  wayOn.focus();
}

// Tells everybody, and screen readers, what came of an action.
export function say(text) {
  const status = byId("said");
  status.textContent = text;
  status.classList.remove("unseen");
}

// The fields as the API wants them: numbers are numbers, minutes are seconds, empty is left out.
export function values(form) {
  const body = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled || (field.type === "radio" && !field.checked)) continue;
    if (field.type === "checkbox") {
      if (field.dataset.list !== undefined) {
        body[field.name] ??= [];
        if (field.checked) body[field.name].push(field.value);
      } else body[field.name] = field.checked;
    } else if (field.value !== "" || field.dataset.keep !== undefined) {
      body[field.name] = typed(field);
    }
  }
  return body;
}

function typed({ value, dataset }) {
  if (dataset.flag !== undefined) return value === "true";
  if (dataset.times) return Number(value) * Number(dataset.times);
  return dataset.number === undefined ? value : Number(value);
}
