// The line over the page while the network fails: a laptop that sleeps, or has no Wi-Fi.
//
// It goes by itself, and asks nothing: whoever can be asked nothing can be offered nothing.

import { make, setText } from './dom.js';

export function offlineLine({ trans }) {
  const node = make('div', { role: 'status', class: 'miglab-offline' });
  document.body.append(node);
  return {
    render: ({ offline, fate }) =>
      setText(
        node,
        offline && fate !== 'gone'
          ? trans.__('You are offline; your server keeps running. Nothing can be saved until you are back online.')
          : ''
      )
  };
}
