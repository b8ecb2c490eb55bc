// What staff say: a card each, until somebody closes it or it is not meant any more.
//
// Whatever it says is text: nothing in it is ever read as markup.

import { button, icon, make } from './dom.js';

export function messageCards({ trans }, actions) {
  const cards = new Map(); // by the message's number

  const card = ({ id, by: sender, text }) => {
    const heading = make('h2', { id: `miglab-message-${id}` }, trans.__('Message from %1', sender));
    const error = make('p', { role: 'alert', class: 'miglab-problem' });
    const close = button(
      trans.__('Close'),
      () => actions.read(id),
      message => (error.textContent = message)
    );
    return make(
      'section',
      { class: 'miglab-card', 'data-kind': 'message', 'aria-labelledby': heading.id },
      make('div', { class: 'miglab-title' }, icon('message'), heading),
      make('p', { class: 'miglab-message' }, text),
      make('div', { class: 'miglab-buttons' }, close),
      error
    );
  };

  const node = make('div', { class: 'miglab-messages' });
  return {
    node,
    render: ({ messages }) => {
      const currentIds = new Set(messages.map(message => message.id));
      for (const [id, element] of cards) {
        if (!currentIds.has(id)) {
          element.remove();
          cards.delete(id);
        }
      }
      for (const message of messages) {
        if (!cards.has(message.id)) {
          cards.set(message.id, node.appendChild(card(message)));
        }
      }
    }
  };
}
