// Making elements, in one line each.

/** `make('button', { type: 'button' }, 'Press')`; a value of false or null leaves the attribute out. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) {
      element.setAttribute(key, value);
    }
  }
  element.append(...children);
  return element;
}

/** Set a text only when it changes: a screen reader's place, and a selection, stay where they are. */
export function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** A bar that drains: `set(share)` of the time that is left; null where nothing runs out. */
export function drain() {
  const node = make('div', { class: 'miglab-drain', 'aria-hidden': 'true', hidden: '' }, make('div'));
  return {
    node,
    set: share => {
      node.hidden = share === null;
      node.firstChild.style.width = `${100 * share}%`;
    }
  };
}

/** What every card begins with, by its kind: `offer`, `warning`, `message` or `away`. */
export const icon = kind =>
  make('span', { class: 'miglab-icon', 'aria-hidden': 'true' }, { offer: '✓', warning: '!', message: '✉', away: '↩' }[kind]);

/**
 * A button that runs `action`, is disabled meanwhile, and hands what went wrong to `onError`.
 */
export function button(label, action, onError, kind = '') {
  const element = make('button', { type: 'button', class: `miglab-button ${kind}` }, label);
  element.addEventListener('click', async () => {
    if (element.getAttribute('aria-disabled') === 'true') {
      return;
    }
    element.setAttribute('aria-disabled', 'true'); // `disabled` would drop the keyboard's focus
    onError('');
    try {
      await action();
    } catch (error) {
      onError(error.message, error.reason);
    } finally {
      element.removeAttribute('aria-disabled');
    }
  });
  return element;
}
