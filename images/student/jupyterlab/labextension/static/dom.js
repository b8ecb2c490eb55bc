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

/** A bar that drains: `set(left_s, whole_s)`; hidden where nothing runs out, or its length is not known. */
export function drain() {
  const node = make('div', { class: 'miglab-drain', 'aria-hidden': 'true', hidden: '' }, make('div'));
  return {
    node,
    set: (left_s, whole_s) => {
      node.hidden = left_s === null || !(whole_s > 0);
      if (!node.hidden) {
        node.firstChild.style.width = `${Math.min(100, Math.max(0, (100 * left_s) / whole_s))}%`;
      }
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
