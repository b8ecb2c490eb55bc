// A line over the time that the slice has been held, with marks where a cell ran.

import { make } from './dom.js';

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 240;
const HEIGHT = 44;

const shape = (name, attributes) => {
  const element = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  return element;
};

/**
 * One chart; `draw` takes points of [age in seconds, value or null, whether a cell ran], the value at
 * the top, and the sentence that says what it shows.
 */
export function chart(label) {
  const picture = shape('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', preserveAspectRatio: 'none' });
  const node = make('figure', { class: 'miglab-chart' }, make('figcaption', {}, label), picture);
  let lastState = '';
  return {
    node,
    draw: (points, top, summary) => {
      const state = JSON.stringify([points, top]);
      if (state === lastState || points.length === 0) {
        return;
      }
      lastState = state;
      picture.setAttribute('aria-label', `${label}: ${summary}`);
      const longest = Math.max(60, points[0][0]);
      const x = age => (WIDTH * (1 - age / longest)).toFixed(1);
      const y = value => (HEIGHT - 2 - (HEIGHT - 8) * Math.min(1, value / top)).toFixed(1);
      const marks = points.filter(([, , runs]) => runs).map(([age]) =>
        shape('rect', { class: 'miglab-run', x: x(age), y: 0, width: 2, height: 4 })
      );
      // Where nothing is known the line has a gap.
      const path = points.map(([age, value], i) =>
        value === null ? '' : `${i && points[i - 1][1] !== null ? 'L' : 'M'}${x(age)} ${y(value)}`
      );
      picture.replaceChildren(...marks, shape('path', { d: path.join(''), class: 'miglab-line' }));
    }
  };
}
