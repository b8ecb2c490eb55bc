// The card over the page: the slice is about to go back, is going, or has gone.
//
// It never takes the focus: somebody may be typing, and a space would press a button.  A key leads
// to it (cards.js) and its text names that key.

import { button, drain, icon, make, setText } from './dom.js';
import { labels } from './line.js';

const EXTENDED = ['idle', 'time']; // what is needed, and maintenance, come all the same

export function warningCard({ trans, say }, actions, keys) {
  const heading = make('h2', { id: 'miglab-card-title' });
  const clock = make('span', { role: 'timer', 'aria-live': 'off', class: 'miglab-clock' });
  const reasonLine = make('p');
  const fate = make('p');
  const hint = make('p', { class: 'miglab-hint' }, trans.__('%1 leads to these buttons.', keys));
  const error = make('p', { role: 'alert', class: 'miglab-problem' });
  const bar = drain();
  const fail = message => setText(error, message);
  const keepalive = button(labels({}, trans).keepalive, actions.keepalive, fail, 'miglab-first');
  const extend = button('', actions.extend, fail);
  const release = button(trans.__('Save all and release now'), actions.release, fail);
  const toHub = button(trans.__('Go to the hub page'), actions.toHub, fail, 'miglab-first');
  const buttons = make('div', { class: 'miglab-buttons' }, keepalive, extend, release, toHub);
  const node = make(
    'section',
    { class: 'miglab-card', 'data-kind': 'warning', 'aria-labelledby': heading.id, hidden: '' },
    make('div', { class: 'miglab-title' }, icon('warning'), heading, clock),
    reasonLine,
    fate,
    buttons,
    hint,
    error,
    bar.node
  );

  const show = view => {
    node.hidden = view.fate === '';
    if (view.fate) {
      fill(view.fate, view);
    }
  };

  const fates = {
    warned: say.lost,
    ending: trans.__('This server is stopping.'),
    gone: trans.__('Your files are kept. Start a new server on the hub page.')
  };

  const fill = (kind, view) => {
    const { warning, lease, reason, is_given_back } = view;
    const { title, detail, time, share } = say.place(view);
    const cause = is_given_back ? '' : reason; // the holder knows why
    setText(heading, title);
    setText(clock, time);
    setText(reasonLine, kind === 'ending' ? [cause, detail].filter(Boolean).join(' ') : detail);
    setText(fate, fates[kind]);
    bar.set(share);
    keepalive.hidden = kind !== 'warned' || warning.kind !== 'idle' || warning.keepalives_left < 1;
    extend.hidden =
      kind !== 'warned' || !EXTENDED.includes(warning.kind) || !lease.extensions_left;
    release.hidden = kind !== 'warned';
    toHub.hidden = kind !== 'gone';
    hint.hidden = kind === 'ending';
    if (!extend.hidden) {
      setText(extend, labels(lease, trans).extend);
    }
  };

  return { node, render: show };
}
