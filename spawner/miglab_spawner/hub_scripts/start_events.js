// Runs before JupyterHub's script, which hears of a start by a stream of events, and reloads when the server
// is ready.  Where a proxy holds the stream back, at once or after a while, or refuses it, waiting.js asks for the
// last event instead.
// Of two tabs that then sign in at the same time JupyterHub refuses one, so each waits until the one before
// it is in. Locks need HTTPS or localhost.

window.miglabStart = { streamedAt: -Infinity, last: {}, hear: () => {}, noteStatus: () => {} };
window.EventSource = class extends EventSource {
  constructor(...options) {
    super(...options);
    this.addEventListener('error', () => (window.miglabStart.streamedAt = -Infinity));
  }
  set onmessage(hear) {
    const start = window.miglabStart;
    const inTurn = event => navigator.locks.request('miglab-sign-in', () => new Promise(() => hear(event)));
    start.hear = event => {
      start.last = JSON.parse(event.data);
      return start.last.ready && navigator.locks ? inTurn(event) : hear(event);
    };
    super.onmessage = event => {
      start.streamedAt = performance.now();
      start.noteStatus(200);
      start.hear(event);
    };
  }
};
