// The status-bar item: shape, memory, time left, who waits, or the position in the queue; in words, colour
// only on top.

import { make, setText } from './dom.js';

export function statusItem({ trans, say }, open) {
  const node = make('button', { type: 'button', class: 'miglab-status jp-mod-highlighted' });
  node.addEventListener('click', open);

  const text = view => {
    const problem = say.problem(view);
    const shape = view.ticket?.shape ?? (view.borrow ? trans.__('no slice held') : view.shape);
    if (view.moving) {
      return trans.__('This server is restarting with %1', view.ticket?.shape ?? view.shape);
    }
    if (problem) {
      return trans.__('%1 · %2', shape, problem);
    }
    switch (view.state) {
      case 'none':
        return view.ticket ? say.ticket(view.ticket) : view.borrow ? say.borrow(view.borrow) : '';
      case 'held':
        return view.warning
          ? trans.__('%1 · reclaimed in %2', view.shape, say.duration(view.warning.left_s))
          : [
              view.shape,
              say.memory(view.lease),
              say.time(view.lease.left_s),
              say.waiting(view.lease.others_wait)
            ].join(' · ');
      case 'ending':
        return trans.__('%1 · being released', view.shape);
      case 'gone':
        return trans.__('No GPU slice');
      default:
        return trans.__('%1 · contacting the pool', view.shape);
    }
  };

  return {
    node,
    render: view => {
      const { state, warning, ticket, borrow } = view;
      node.hidden = state === 'none' && !ticket && !borrow;
      setText(node, text(view));
      const isUrgent = warning || state === 'gone' || ticket?.state === 'offered';
      node.classList.toggle('miglab-urgent', Boolean(isUrgent));
      node.title = trans.__('GPU slice: show the details');
    }
  };
}
