// The cards above the page, one below the other, and the keyboard's way to them and back.

import { make } from './dom.js';

export function cardStack({ app }, parts) {
  const inner = make('div', {}, ...parts.map(part => part.node));
  const node = make('div', { class: 'miglab-cards' }, inner);
  let cameFrom = null;

  const first = () =>
    [...node.querySelectorAll('button')].find(candidate => !candidate.closest('[hidden]') && !candidate.hidden);

  const giveFocusBack = () => {
    if (cameFrom?.isConnected && cameFrom !== document.body) {
      cameFrom.focus();
    } else if (app.shell.currentWidget) {
      app.shell.activateById(app.shell.currentWidget.id);
    }
  };

  node.addEventListener('keydown', event => {
    if (event.key === 'Escape') {
      giveFocusBack();
    }
  });
  return {
    node,
    isEmpty: () => !first(),
    /** As high as what it shows: call `then` when that changes, once there is a width to measure by. */
    onResize: then =>
      new ResizeObserver(() => {
        const height = `${Math.min(inner.offsetHeight, Math.round(window.innerHeight * 0.45))}px`;
        if (node.offsetWidth && node.style.minHeight !== height) {
          node.style.minHeight = height;
          then();
        }
      }).observe(inner),
    render: view => {
      const focused = node.contains(document.activeElement) ? document.activeElement : null;
      parts.forEach(part => part.render(view));
      if (focused && (!focused.isConnected || focused.closest('[hidden]'))) {
        giveFocusBack();
      }
    },
    focus: () => {
      cameFrom = document.activeElement;
      first()?.focus();
    }
  };
}
