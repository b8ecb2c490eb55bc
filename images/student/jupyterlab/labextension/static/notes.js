// What staff say: a card each, until somebody closes it or it is not meant any more.
//
// Whatever it says is text: nothing in it is ever read as markup.

import { button, make } from './dom.js';

export function noteCards({ trans }, actions) {
  const cards = new Map(); // by the message's number

  const card = ({ id, by, text }) => {
    const heading = make('h2', { id: `miglab-note-${id}` }, trans.__('Message from %1', by));
    const error = make('p', { role: 'alert', class: 'miglab-problem' });
    const close = button(
      trans.__('Close'),
      () => actions.read(id),
      message => (error.textContent = message)
    );
    return make(
      'section',
      { class: 'miglab-card', 'aria-labelledby': heading.id },
      heading,
      make('p', { class: 'miglab-note' }, text),
      make('div', { class: 'miglab-buttons' }, close),
      error
    );
  };

  const node = make('div', { class: 'miglab-notes' });
  return {
    node,
    render: ({ notes }) => {
      const shown = new Set(notes.map(note => note.id));
      for (const [id, element] of cards) {
        if (!shown.has(id)) {
          element.remove();
          cards.delete(id);
        }
      }
      for (const note of notes) {
        if (!cards.has(note.id)) {
          cards.set(note.id, node.appendChild(card(note)));
        }
      }
    }
  };
}
