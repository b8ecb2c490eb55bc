// The dialog “Choose a slice”, for a server that holds none: the shapes with what is free or how long
// the wait is, in the words of the hub's page.  A slice that is free is taken from here; for the others
// the server joins the queue, and the work goes on.

import { button, make, setText } from './dom.js';

const LOOK_MS = 250;
const MADE_MS = 60000; // a slice is made in seconds; the card goes on from there

/** Returns a function that opens the dialog; a second call while it is open does nothing. */
export function chooser(site, actions) {
  let isOpen = false;
  return async () => {
    if (isOpen) {
      return;
    }
    isOpen = true;
    try {
      await open(site, actions);
    } finally {
      isOpen = false;
    }
  };
}

async function open({ lab, trans, connection }, actions) {
  const { Dialog } = lab.apputils;
  const { Widget } = lab.widgets;
  const progress = make('p', { role: 'status' });
  const problem = make('p', { role: 'alert', class: 'miglab-problem' });
  const list = make('div', {}, make('p', {}, trans.__('Asking what is free…')));
  const node = make('section', { class: 'miglab-choices' }, list, progress, problem);
  const dialog = new Dialog({
    title: trans.__('Choose a GPU slice'),
    body: new Widget({ node }),
    buttons: [Dialog.cancelButton({ label: trans.__('Go on without a GPU') })]
  });
  let isClosed = false;
  let taking = Promise.resolve();
  const closed = dialog.launch().then(() => (isClosed = true));

  const refresh = async () => {
    const choices = await connection.ask('choices');
    list.replaceChildren(...content(choices, trans, choiceButton));
  };
  const choiceButton = card => {
    const label = card.is_free ? trans.__('Save all and restart with it') : card.action;
    const choose = card.is_free ? take : joinQueue;
    return button(label, () => choose(card), fail, card.is_free ? 'miglab-first' : '');
  };
  const joinQueue = async ({ value }) => {
    await actions.choose(value, false);
    dialog.reject();
  };
  const take = card => (taking = takeNow(card));
  // Whoever closes the dialog goes on without a GPU: the slice goes back, and nothing restarts.
  const takeNow = async ({ value }) => {
    await actions.saveAll();
    if (isClosed) {
      return;
    }
    await actions.choose(value, true);
    setText(progress, trans.__('Your slice is being prepared. This page reloads by itself.'));
    await Promise.race([offered(connection, trans), closed]);
    await (isClosed ? actions.cancel() : actions.move());
  };
  const fail = message => {
    setText(problem, message);
    if (message) {
      setText(progress, '');
      void refresh().catch(() => undefined); // what was free may be gone; the reason stays
    }
  };

  try {
    await refresh();
  } catch ({ message, reason }) {
    setText(problem, message);
    const isElsewhere = reason === 'stop-first';
    const toHome = button(trans.__('Go to the hub’s home page'), actions.toHome, fail, 'miglab-first');
    list.replaceChildren(...(isElsewhere ? [toHome] : []));
  }
  await closed;
  await taking.catch(() => undefined); // until then no second dialog opens; its button has said what went wrong
}

/** The courses with their shapes, or why there is nothing to choose. */
function content({ trouble, people, unknown_wait, sections }, trans, choiceButton) {
  const paragraph = text => (text ? [make('p', {}, text)] : []);
  const shapes = sections.flatMap(section => section.shapes);
  return [
    ...paragraph(trouble),
    ...paragraph(shapes.length || trouble ? '' : trans.__('None of your courses offers a GPU.')),
    ...sections.filter(section => section.shapes.length).flatMap(section => [
      ...(sections.length > 1 ? [make('h3', {}, section.title)] : []),
      make('ul', {}, ...section.shapes.map(card => row(card, choiceButton))),
      ...section.conditions.map(text => make('p', {}, text))
    ]),
    ...paragraph(unknown_wait),
    ...paragraph(people),
    ...(shapes.length
      ? paragraph(
          trans.__(
            'To get the slice, this server restarts: open documents are saved and opened again at the same place, and you lose the variables of running notebooks. While you wait, you work on as now.'
          )
        )
      : [])
  ];
}

function row(card, choiceButton) {
  const { title, shape, facts, now, picture, is_possible } = card;
  const drawing = make('span', { class: 'miglab-picture' });
  drawing.innerHTML = picture; // from the spawner, made of numbers alone
  const name = make('strong', {}, title);
  const size = [shape, facts].filter(Boolean).join(' · ');
  return make(
    'li',
    {},
    drawing,
    make('div', {}, name, make('div', {}, size), make('div', {}, now)),
    ...(is_possible ? [choiceButton(card)] : [])
  );
}

/** Wait until the slice that was free is made, and offered to this server. */
async function offered(connection, trans) {
  const until = performance.now() + MADE_MS;
  while (connection.now()?.ticket?.state !== 'offered') {
    const { ticket } = connection.now() ?? {};
    if (!ticket || ticket.state === 'over' || performance.now() > until) {
      throw new Error(ticket?.message || trans.__('The slice could not be made in time. Look at the status bar: you are told when it is ready.'));
    }
    await new Promise(resolve => setTimeout(resolve, LOOK_MS));
  }
}
