// Runs before JupyterHub's script, which hears of a start by a stream of events, and reloads when the server
// is ready.  Where a proxy holds the stream back or refuses it, waiting.js asks for the last event instead.
// Of two tabs that then sign in at the same time JupyterHub refuses one, so each waits until the one before
// it is in. Locks need HTTPS or localhost.

window.miglabStart = { isStreaming: false, last: '', hear: () => {}, noteStatus: () => {} };
window.EventSource = class extends EventSource {
  constructor(...options) {
    super(...options);
    this.addEventListener('error', () => (window.miglabStart.isStreaming = false));
  }
  set onmessage(hear) {
    const start = window.miglabStart;
    const inTurn = event => navigator.locks.request('miglab-sign-in', () => new Promise(() => hear(event)));
    start.hear = event => {
      start.last = event.data;
      const { ready } = JSON.parse(event.data);
      return ready && navigator.locks ? inTurn(event) : hear(event);
    };
    super.onmessage = event => {
      start.isStreaming = true;
      start.noteStatus(200);
      start.hear(event);
    };
  }
};
