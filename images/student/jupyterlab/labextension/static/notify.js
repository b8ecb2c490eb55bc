// Calls somebody who looks elsewhere: the browser's notification where it is allowed, and the tab's
// title.  No names and no texts of people: a notification is seen by whoever sees the screen.

import { button, make, setText } from './dom.js';

const MARK = '(!) ';

const can = () => (window.isSecureContext ? window.Notification?.permission : undefined);

/**
 * Returns a function that is told what is new, in words, and until when it holds; the same words
 * are news again only if that end was put off.
 */
export function notifier() {
  let lastText = '';
  let lastEnd = 0;
  let titleBefore = '';
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden && document.title.startsWith(MARK)) {
      document.title = titleBefore;
    }
  });
  return (text, end = 0) => {
    const isNews = text && (text !== lastText || end > lastEnd);
    // JupyterLab writes the title anew, too: when a document is saved, for example.
    if (text && document.hidden && document.title !== MARK + text) {
      titleBefore = document.title.startsWith(MARK) ? titleBefore : document.title;
      document.title = MARK + text;
    }
    if (isNews && document.hidden && can() === 'granted') {
      try {
        new Notification(text, { tag: 'miglab', renotify: true });
      } catch {
        // a phone's browser wants a service worker: the title says it
      }
    }
    lastText = text;
    lastEnd = end;
  };
}

/** What of a view calls somebody. */
export function newsOf({ trans }, { fate, ticket, messages }) {
  if (fate === 'warned') {
    return trans.__('Your GPU slice is about to be reclaimed.');
  }
  if (fate === 'gone') {
    return trans.__('Your GPU slice has gone back.');
  }
  const ofTicket = {
    offered: ticket?.message
      ? trans.__('Staff are calling you: your GPU slice is ready.')
      : trans.__('Your GPU slice is ready.'),
    aside: trans.__('You have stepped aside in the queue.'),
    over: trans.__('You are no longer in the queue.')
  };
  if (ticket?.asks) {
    return trans.__('Are you still waiting for a GPU slice?');
  }
  return ofTicket[ticket?.state] ?? (messages.length ? trans.__('There is a message from staff.') : '');
}

/** The button that asks the browser, once; and a sentence where it cannot. */
export function tellMe({ trans }) {
  const hint = make('span', { class: 'miglab-hint' });
  const ask = button(trans.__('Tell me'), async () => {
    await Notification.requestPermission();
    render();
  }, message => setText(hint, message));
  const render = () => {
    ask.hidden = can() !== 'default';
    setText(hint, {
      default: trans.__('by a notification, when your slice is ready or about to go.'),
      granted: trans.__('Your browser notifies you when your slice is ready or about to go.')
    }[can()] ?? trans.__('This browser shows no notifications here: watch the title of this tab.'));
  };
  render();
  return { node: make('p', { class: 'miglab-tell' }, ask, ' ', hint), render };
}
