// The line to the server extension: one websocket per tab, and requests for what buttons do.
//
// All times come as durations and go on by this browser's monotonic clock.

const REPORT_MS = 5000;
const FIRST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 30000;
const ACTIVITY = ['pointerdown', 'keydown', 'wheel'];

export class Connection {
  constructor(ServerConnection, { serverSettings }) {
    this.view = null; // the last one the server sent
    this.onChange = () => undefined;
    this.unsaved = () => 0;
    this._server = ServerConnection;
    this._settings = serverSettings;
    this._pauseMs = FIRST_PAUSE_MS;
    this._activeAt = performance.now();
    this._told = {};
    for (const kind of ACTIVITY) {
      const note = () => (this._activeAt = performance.now());
      document.addEventListener(kind, note, { capture: true, passive: true });
    }
  }

  /** Connect, and again whenever the line breaks, ever more slowly. */
  open() {
    const { WebSocket, wsUrl, token, appendToken } = this._settings;
    const query = appendToken && token ? `?token=${encodeURIComponent(token)}` : '';
    this._socket = new WebSocket(`${wsUrl}miglab/api/watch${query}`);
    this._socket.onopen = () => {
      this._told = {};
      this.report();
    };
    this._socket.onmessage = ({ data }) => {
      this._pauseMs = FIRST_PAUSE_MS;
      this._take(JSON.parse(data));
    };
    this._socket.onclose = () => {
      this._brokenAt ??= performance.now();
      this.onChange();
      setTimeout(() => this.open(), this._pauseMs);
      this._pauseMs = Math.min(2 * this._pauseMs, LONGEST_PAUSE_MS);
    };
  }

  /** The last view brought up to this moment; null before the first. */
  now() {
    if (!this.view) {
      return null;
    }
    const passed = (performance.now() - this._takenAt) / 1000;
    const { lease, warning, ticket } = this.view;
    return {
      ...this.view,
      connected: this._brokenAt === undefined,
      lease: lease && { ...lease, left_s: later(lease.left_s, passed) },
      warning: warning && { ...warning, left_s: later(warning.left_s, passed) },
      ticket: ticket && { ...ticket, left_s: later(ticket.left_s, passed) }
    };
  }

  /** Ask the pool for something; rejects with its words if it says no. */
  async act(what, body = {}) {
    const { makeRequest } = this._server;
    const request = { method: 'POST', body: JSON.stringify(body) };
    const url = `${this._settings.baseUrl}miglab/api/${what}`;
    const answer = await makeRequest(url, request, this._settings);
    const said = await answer.json();
    if (!answer.ok) {
      throw Object.assign(new Error(said.message), { reason: said.reason });
    }
    this._take(said);
  }

  _take(view) {
    this._brokenAt = undefined;
    this._takenAt = performance.now();
    this.view = view;
    this.onChange();
  }

  /** Say what is new, called often: documents at once, keys and pointer now and then. */
  report() {
    const now = performance.now();
    const unsaved = this.unsaved();
    const { at = -Infinity, unsaved: before, activeAt } = this._told;
    const isActive = this._activeAt !== activeAt && now - at >= REPORT_MS;
    if ((unsaved === before && !isActive) || this._socket?.readyState !== 1) {
      return;
    }
    this._told = { at: now, unsaved, activeAt: this._activeAt };
    this._socket.send(JSON.stringify({ unsaved, active_age_s: (now - this._activeAt) / 1000 }));
  }
}

function later(left_s, passed) {
  return left_s === null ? null : left_s - passed;
}
