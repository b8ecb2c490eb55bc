// What is spoken.  Times and memory change all the time and are not; what matters is, once.

import { make, setText } from './dom.js';

const WARNED_AT_S = [60, 30, 10];
const OFFERED_AT_S = [60];

/** Returns a function that looks at each view and says aloud what is new in it. */
export function announcer(say) {
  const polite = make('div', { role: 'status', class: 'miglab-spoken' });
  const urgent = make('div', { role: 'alert', class: 'miglab-spoken' });
  const offer = make('div', { role: 'alert', class: 'miglab-spoken' });
  const ended = make('div', { role: 'alert', class: 'miglab-spoken' });
  const messages = make('div', { role: 'log', 'aria-live': 'polite', class: 'miglab-spoken' });
  document.body.append(polite, urgent, offer, ended, messages);
  const warn = countdown(WARNED_AT_S, urgent);
  const call = countdown(OFFERED_AT_S, offer);
  return view => {
    const { warning, ticket } = view;
    setText(polite, view.state === 'none' && !ticket ? '' : say.problem(view));
    warn(warning?.left_s, warning?.reclaim_at, () => say.aloud(view, say.lost));
    const left_s = ticket?.state === 'offered' ? (ticket.left_s ?? Infinity) : undefined;
    call(left_s, ticket?.expires_at, () => say.aloud(view));
    setText(ended, ticket?.state === 'over' ? ticket.message : '');
    setText(messages, view.messages.map(say.message).join(' '));
  };
}

/**
 * Speak when something begins, when its end, a moment of the pool's, is put off, and again when so
 * many seconds are left; `undefined`: it is over.
 */
function countdown(marks, element) {
  let lastLeft_s = null; // seconds left when it was spoken last
  let lastEnd = null;
  return (left_s, end, text) => {
    if (left_s === undefined) {
      lastLeft_s = null;
      setText(element, '');
      return;
    }
    if (lastLeft_s !== null && end > lastEnd) {
      lastLeft_s = null; // staff called again: it is held in full once more
    }
    lastEnd = end;
    const mark = lastLeft_s === null ? left_s : marks.findLast(at => left_s <= at);
    if (lastLeft_s === null || (mark !== undefined && mark < lastLeft_s)) {
      lastLeft_s = Math.min(mark, left_s);
      element.replaceChildren(make('span', {}, text())); // the same words again are spoken, too
    }
  };
}
