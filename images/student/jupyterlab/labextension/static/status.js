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
    const { state, fate, ticket, borrow, standing, moving } = view;
    if (moving) {
      return say.place(view).title;
    }
    if (fate === 'gone') {
      return trans.__('No GPU slice');
    }
    if (view.offline && state === 'held') {
      return [...figures(view), trans.__('offline, figures %1 old', say.age(view.old_s))].join(' · ');
    }
    const problem = say.problem(view);
    if (problem) {
      const shape = ticket?.shape ?? (borrow ? trans.__('no slice held') : view.shape);
      return trans.__('%1 · %2', shape, problem);
    }
    if (state === 'none' && !standing) {
      return ticket ? say.place(view).title : borrow ? say.borrow(borrow) : trans.__('No GPU · choose a slice…');
    }
    if (!standing) {
      return trans.__('%1 · contacting the pool', view.shape);
    }
    return state === 'held' && !view.warning ? figures(view).join(' · ') : place(view);
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
