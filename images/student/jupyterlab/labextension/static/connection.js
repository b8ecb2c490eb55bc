// The line to the server extension: one websocket per tab, and requests for what buttons do.
//
// All times come as durations and go on by this browser's monotonic clock.

import { keepsCookies, serviceClock } from './line.js';

const REPORT_MS = 5000;
const FIRST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 30000;
const LOOK_MS = 2000;
const SIGNED_OUT = [401, 403];
const AGAIN_MS = 15000; // a socket stays open when somebody signs out, so its silence tells nothing
const ANSWER_MS = 8000;
const OVER_S = 5; // a line that breaks this close to the end was broken by the end
const MOVES = ['move', 'to-cpu'];
const ACTIVITY = ['pointerdown', 'keydown', 'wheel'];

export class Connection {
  constructor(ServerConnection, { serverSettings }) {
    this.view = null; // the last one the server sent
    this.onChange = () => undefined;
    this.unsaved = () => 0;
    this.signedOutText = '';
    this._server = ServerConnection;
    this._settings = { ...serverSettings }; // these requests never wait for a sign-in: see waiting_requests.js
    this._pauseMs = FIRST_PAUSE_MS;
    this._clock = serviceClock();
    this._activeAt = performance.now();
    this._told = {};
    this.isMover = false; // whether it was this tab that asked for a restart
    this._isOffline = this._isSignedOut = false;
    this._looking = null; // the look that is under way
    document.addEventListener('visibilitychange', () => document.hidden || this.look());
    setInterval(() => document.hidden || this.look(), AGAIN_MS);
    window.addEventListener('offline', () => this.look());
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
      void this.look();
      setTimeout(() => this.open(), this._pauseMs);
      const longestMs = this.view?.moving ? FIRST_PAUSE_MS : LONGEST_PAUSE_MS;
      this._pauseMs = Math.min(2 * this._pauseMs, longestMs);
    };
  }

  /**
   * Something failed: was it the network, or is the student signed out?  Asks until anybody answers, be it
   * the hub's proxy, and the student is signed in.
   *
   * @returns whether the student was signed out meanwhile.
   */
  look() {
    this._looking ??= this._lookUntilAnswered().finally(() => (this._looking = null));
    return this._looking;
  }

  async _lookUntilAnswered() {
    let wasSignedOut = false;
    while (!(await this._isAnswered())) {
      this._isOffline = !this._isSignedOut;
      wasSignedOut ||= this._isSignedOut;
      this.onChange();
      await new Promise(resolve => setTimeout(resolve, LOOK_MS));
    }
    this._isOffline = false;
    this.onChange();
    return wasSignedOut;
  }

  async _isAnswered() {
    const url = `${this._settings.baseUrl}miglab/api/lease`;
    const request = { signal: AbortSignal.timeout(ANSWER_MS) };
    const answer = await this._server.makeRequest(url, request, this._settings).catch(() => null);
    this._isSignedOut = SIGNED_OUT.includes(answer?.status);
    if (answer?.ok) {
      const view = await answer.json().catch(() => null); // a Wi-Fi's sign-in page is no answer
      if (view === null) {
        return false;
      }
      this._take(view);
    }
    return answer !== null && !this._isSignedOut;
  }

  /** The last view brought up to this moment; null before the first. */
  now() {
    if (!this.view) {
      return null;
    }
    const passed = (performance.now() - this._takenAt) / 1000;
    const { lease, warning, ticket } = this.view;
    const standing = this.view.line?.standings[0];
    const now = {
      ...this.view,
      connected: this._brokenAt === undefined && !this._isOffline,
      offline: this._isOffline,
      signedOut: this._isSignedOut,
      noCookies: this._isSignedOut && !keepsCookies(),
      standing,
      service_now: this.serviceNow(),
      old_s: passed,
      lease: lease && {
        ...lease,
        left_s: later(lease.left_s, passed),
        guaranteed_s: later(lease.guaranteed_s, passed)
      },
      warning: warning && { ...warning, left_s: later(warning.left_s, passed) },
      ticket: ticket && { ...ticket, left_s: later(ticket.left_s, passed) }
    };
    return { ...now, fate: fateOf(now) };
  }

  /** The service's moment; null before its first answer. */
  serviceNow() {
    return this._clock.now();
  }

  /** Do something for all tabs; rejects with the pool's words if it says no. */
  async act(action, body = {}) {
    this.isMover = MOVES.includes(action);
    this._take(await this.ask(action, { method: 'POST', body: JSON.stringify(body) }));
  }

  /** The answer of a route of ours; rejects with the reason if it is refused. */
  async ask(route, request = {}) {
    const url = `${this._settings.baseUrl}miglab/api/${route}`;
    const answer = await this._server.makeRequest(url, request, this._settings);
    const content = await answer.json().catch(() => ({}));
    if (answer.ok) {
      return content;
    }
    if (SIGNED_OUT.includes(answer.status) && !content.reason) {
      void this.look(); // it was no refusal of the pool's: those have a reason
      throw new Error(this.signedOutText);
    }
    throw Object.assign(new Error(content.message ?? answer.statusText), { reason: content.reason });
  }

  _take(view) {
    this._brokenAt = undefined;
    this._takenAt = performance.now();
    this.view = view;
    if (view.line) {
      this._clock.set(view.line.now + view.line_age_s);
    }
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

/** Of the slice: `warned`, `ending`, `gone`, or empty; a server that restarts has other words. */
function fateOf({ state, warning, connected, offline, moving }) {
  if (moving) {
    return '';
  }
  const isOver = state === 'ending' || (warning !== null && warning.left_s <= OVER_S);
  if (state === 'gone' || (!connected && !offline && isOver)) {
    return 'gone';
  }
  if (state === 'ending') {
    return 'ending';
  }
  return warning ? 'warned' : '';
}

function later(left_s, passed) {
  return left_s === null ? null : left_s - passed;
}
