// The card over the page of a server without a slice: the slice is there, the place has ended, the
// student is asked whether they still wait, or the server restarts.
//
// Like the warning it never takes the focus by itself.

import { button, drain, icon, make, setText } from './dom.js';
import { labels } from './line.js';

export function offerCard({ trans, say }, actions, keys) {
  const heading = make('h2', { id: 'miglab-offer-title' });
  const clock = make('span', { role: 'timer', 'aria-live': 'off', class: 'miglab-clock' });
  const text = make('p');
  const fate = make('p');
  const hint = make('p', { class: 'miglab-hint' }, trans.__('%1 leads to these buttons.', keys));
  const error = make('p', { role: 'alert', class: 'miglab-problem' });
  const bar = drain();
  let isUnsavedElsewhere = false;
  const fail = (message, reason) => {
    isUnsavedElsewhere = reason === 'unsaved';
    leave.hidden = !isUnsavedElsewhere;
    setText(error, message);
  };
  const move = button(trans.__('Save all and restart with it'), actions.move, fail, 'miglab-first');
  const leave = button(trans.__('Restart without saving'), actions.moveAnyway, fail);
  const label = labels({}, trans);
  const next = button(label.decline, actions.cancel, fail);
  const requeue = button(trans.__('Ask again'), actions.requeue, fail, 'miglab-first');
  const stay = button(label.stay, actions.requeue, fail, 'miglab-first');
  const back = button(label.return, actions.requeue, fail, 'miglab-first');
  const quit = button(label.leave, actions.cancel, fail);
  const read = button(trans.__('Close'), actions.forget, fail);
  const toHub = button(trans.__('Go to the hub page'), actions.toHub, fail, 'miglab-first');
  const all = [move, leave, next, requeue, stay, back, quit, read, toHub];
  const buttons = make('div', { class: 'miglab-buttons' }, ...all);
  const node = make(
    'section',
    { class: 'miglab-card', 'data-kind': 'offer', 'aria-labelledby': heading.id, hidden: '' },
    make('div', { class: 'miglab-title' }, icon('offer'), heading, clock),
    text,
    fate,
    buttons,
    hint,
    error,
    bar.node
  );

  const moveHint = trans.__('Finish what you are doing: the button restarts this server with the slice.');

  const fill = (kind, view) => {
    const { title, detail, time, share } = say.place(view);
    setText(heading, title);
    setText(text, detail);
    setText(clock, time);
    bar.set(share);
    setText(fate, kind === 'offered' ? [moveHint, say.lostAndKept].join(' ') : '');
    move.hidden = next.hidden = kind !== 'offered';
    leave.hidden = kind !== 'offered' || !isUnsavedElsewhere;
    requeue.hidden = read.hidden = kind !== 'over';
    stay.hidden = kind !== 'asking';
    back.hidden = kind !== 'aside';
    quit.hidden = kind !== 'asking' && kind !== 'aside';
    toHub.hidden = kind !== 'moving' || view.connected;
    hint.hidden = all.every(element => element.hidden);
  };

  return {
    node,
    buttons,
    render: view => {
      const kind = kindOf(view);
      node.hidden = kind === '';
      if (kind) {
        fill(kind, view);
      } else {
        fail('');
      }
    }
  };
}

/** `moving`, `offered`, `asking`, `aside`, `over`, or empty for nothing to say. */
function kindOf({ moving, ticket }) {
  if (moving) {
    return 'moving';
  }
  if (ticket?.asks) {
    return 'asking';
  }
  return ticket && ticket.state !== 'waiting' ? ticket.state : '';
}
