// The card over the page of a server without a slice: the slice is there, the place has ended, the
// student is asked whether they still wait, or the server restarts.
//
// Like the warning it never takes the focus by itself.

import { button, drain, icon, make, setText } from './dom.js';

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
  const next = button(trans.__('Leave it to the next student'), actions.cancel, fail);
  const requeue = button(trans.__('Ask again'), actions.requeue, fail, 'miglab-first');
  const stay = button(trans.__('Yes, keep my position'), actions.requeue, fail, 'miglab-first');
  const back = button(trans.__('Return to the queue'), actions.requeue, fail, 'miglab-first');
  const quit = button(trans.__('Leave the queue'), actions.cancel, fail);
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

  const fill = (kind, view) => {
    const { ticket, connected } = view;
    const shape = ticket?.shape ?? '';
    const left_s = ticket?.left_s ?? null;
    const isHeld = kind === 'offered' && left_s !== null;
    const [title, explanation, lost] = {
      offered: [
        trans.__('Your GPU slice %1 is ready', shape),
        ticket?.message ||
          trans.__('Finish what you are doing. When you press the button, this server restarts with the slice.'),
        say.lostAndKept
      ],
      asking: [
        trans.__('Are you still waiting for %1?', shape),
        trans.__('Without an answer within 10 minutes you step aside: you keep your age in the queue, and are offered nothing until you return.'),
        ''
      ],
      aside: [trans.__('You have stepped aside'), ticket?.message ?? '', ''],
      over: [trans.__('You are no longer in the queue'), ticket?.message ?? '', ''],
      moving: [
        say.restarting(view),
        trans.__('All documents are saved. This page reloads by itself.'),
        ''
      ]
    }[kind];
    [heading, text, fate].forEach((element, i) => setText(element, [title, explanation, lost][i]));
    bar.set(isHeld ? left_s : null, view.standing_s);
    setText(clock, isHeld ? trans.__('held for %1', say.duration(left_s)) : '');
    move.hidden = next.hidden = kind !== 'offered';
    leave.hidden = kind !== 'offered' || !isUnsavedElsewhere;
    requeue.hidden = read.hidden = kind !== 'over';
    stay.hidden = kind !== 'asking';
    back.hidden = kind !== 'aside';
    quit.hidden = kind !== 'asking' && kind !== 'aside';
    toHub.hidden = kind !== 'moving' || connected;
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
