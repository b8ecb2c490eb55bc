// The status-bar item: where the student stands, in the words of the line, and the memory in use; in
// words, colour only on top.

import { make, setText } from './dom.js';
import { inShort } from './line.js';

export function statusItem({ trans, say }, showPanel, choose) {
  const node = make('button', { type: 'button', class: 'miglab-status jp-mod-highlighted' });
  let canChoose = false;
  node.addEventListener('click', () => (canChoose ? choose() : showPanel()));

  const place = ({ standing, service_now }) => inShort(standing, service_now, trans);
  const figures = view => [view.standing ? place(view) : view.shape, say.memory(view.lease)];

  const text = view => {
    const problem = say.problem(view);
    const shape = view.ticket?.shape ?? (view.borrow ? trans.__('no slice held') : view.shape);
    if (view.moving) {
      return say.restarting(view);
    }
    if (view.fate === 'gone') {
      return trans.__('No GPU slice');
    }
    if (view.offline && view.state === 'held') {
      return [...figures(view), trans.__('offline, figures %1 old', say.duration(view.old_s))].join(' · ');
    }
    if (problem) {
      return trans.__('%1 · %2', shape, problem);
    }
    switch (view.state) {
      case 'none':
        return view.ticket
          ? view.standing && view.ticket.state !== 'over'
            ? place(view)
            : say.ticket(view.ticket)
          : view.borrow
            ? say.borrow(view.borrow)
            : trans.__('No GPU · choose a slice…');
      case 'held':
        return view.warning && view.standing ? place(view) : figures(view).join(' · ');
      case 'ending':
        return trans.__('%1 · being released', view.shape);
      default:
        return trans.__('%1 · contacting the pool', view.shape);
    }
  };

  return {
    node,
    render: view => {
      const { state, fate, warning, ticket, borrow } = view;
      const isIdle = state === 'none' && !ticket && !borrow;
      canChoose = isIdle && view.can_choose && !view.moving;
      node.hidden = isIdle && !view.can_choose;
      setText(node, text(view));
      const isUrgent = warning || fate === 'gone' || ticket?.state === 'offered';
      node.classList.toggle('miglab-urgent', Boolean(isUrgent));
      node.title = canChoose
        ? trans.__('GPU slice: choose one')
        : trans.__('GPU slice: show the details');
    }
  };
}
