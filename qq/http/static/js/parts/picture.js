/** Exchanges, queues and the bindings between them as a picture: messages go from left to right. */
import { html, useState } from "../lib.js";
import { to } from "../router.js";
import { argument } from "../format.js";

const WIDTH = 220, HEIGHT = 34, ACROSS = 150, DOWN = 14, MARGIN = 8;
const DEPTH_MAX = 4;

/**
 * @typedef {object} Node
 * @property {string} id
 * @property {string} kind "exchange" or "queue"
 * @property {string} name
 * @property {string} [type] of an exchange
 * @property {number} column
 * @property {number} y
 */

/** @param {string} kind @param {string} name */
const idOf = (kind, name) => `${kind}\n${name}`;

/**
 * Where everything is drawn.
 * @param {any[]} exchanges
 * @param {any[]} bindings
 */
function layout(exchanges, bindings) {
  /** @type {Map<string, Node>} */
  const nodes = new Map();
  const types = new Map(exchanges.map((each) => [each.name, each.type]));
  const add = (/** @type {string} */ kind, /** @type {string} */ name) => {
    const id = idOf(kind, name);
    if (!nodes.has(id)) nodes.set(id, { id, kind, name, type: types.get(name), column: 0, y: 0 });
  };
  for (const binding of bindings) {
    add("exchange", binding.source);
    add(binding.destination_type, binding.destination);
  }
  // An exchange is to the right of those that it is bound to; circles end where they are deepest.
  for (let depth = 0; depth < DEPTH_MAX; depth++) {
    for (const binding of bindings) {
      const from = nodes.get(idOf("exchange", binding.source)), into = nodes.get(idOf(binding.destination_type, binding.destination));
      if (from && into && from !== into && into.column <= from.column && from.column < DEPTH_MAX) into.column = from.column + 1;
    }
  }
  const last = Math.max(1, ...[...nodes.values()].map((node) => node.column));
  for (const node of nodes.values()) if (node.kind === "queue") node.column = last;
  place([...nodes.values()], bindings, last);
  return { nodes: [...nodes.values()], byId: nodes, last };
}

/** Give each node its height: in the middle of those that lead to it, so that few lines cross. @param {Node[]} nodes @param {any[]} bindings @param {number} last */
function place(nodes, bindings, last) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  for (let column = 0; column <= last; column++) {
    const here = nodes.filter((node) => node.column === column);
    const middle = (/** @type {Node} */ node) => {
      const from = bindings.filter((each) => idOf(each.destination_type, each.destination) === node.id).map((each) => byId.get(idOf("exchange", each.source))?.y ?? 0);
      return from.length ? from.reduce((a, b) => a + b) / from.length : 0;
    };
    const wanted = new Map(here.map((node) => [node, middle(node)]));
    here.sort((a, b) => (wanted.get(a) ?? 0) - (wanted.get(b) ?? 0) || a.name.localeCompare(b.name));
    here.forEach((node, at) => { node.y = MARGIN + at * (HEIGHT + DOWN); });
  }
}

/** @param {string} text */
const clipped = (text) => (text.length > 26 ? `${text.slice(0, 25)}…` : text);

/** @param {{vhost: string, exchanges: any[], bindings: any[]}} props */
export function Picture({ vhost, exchanges, bindings }) {
  const [near, setNear] = useState("");
  const { nodes, byId, last } = layout(exchanges, bindings);
  const x = (/** @type {Node} */ node) => MARGIN + node.column * (WIDTH + ACROSS);
  const height = Math.max(...nodes.map((node) => node.y)) + HEIGHT + MARGIN;
  const width = 2 * MARGIN + last * (WIDTH + ACROSS) + WIDTH;
  const edges = bindings.map((binding) => ({
    binding,
    from: /** @type {Node} */ (byId.get(idOf("exchange", binding.source))),
    into: /** @type {Node} */ (byId.get(idOf(binding.destination_type, binding.destination))),
  }));
  const isNear = (/** @type {any} */ edge) => edge.from.id === near || edge.into.id === near;
  return html`<div class="scroll picture"><svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label="Exchanges and bindings">
    ${edges.map((edge) => html`<${Edge} key=${`${edge.from.id} ${edge.into.id} ${edge.binding.properties_key}`} edge=${edge} x=${x}
      look=${near ? (isNear(edge) ? "near" : "far") : ""} />`)}
    ${nodes.map((node) => html`<a key=${node.id} href=${to([`${node.kind}s`, vhost, node.name])} class=${`node ${node.kind}`}
      onMouseEnter=${() => setNear(node.id)} onMouseLeave=${() => setNear("")} onFocus=${() => setNear(node.id)} onBlur=${() => setNear("")}>
      <title>${node.name}</title>
      <rect x=${x(node)} y=${node.y} width=${WIDTH} height=${HEIGHT} rx=${node.kind === "queue" ? 6 : HEIGHT / 2} />
      <text x=${x(node) + 14} y=${node.y + 21}>${clipped(node.name)}</text>
      ${node.type && html`<text class="type" x=${x(node) + WIDTH - 12} y=${node.y + 21} text-anchor="end">${node.type}</text>`}
    </a>`)}
  </svg></div>`;
}

/** @param {{edge: any, x: (node: Node) => number, look: string}} props */
function Edge({ edge: { from, into, binding }, x, look }) {
  const x1 = x(from) + WIDTH, y1 = from.y + HEIGHT / 2, x2 = x(into), y2 = into.y + HEIGHT / 2, bend = Math.max((x2 - x1) / 2, 40);
  const told = [binding.routing_key, ...Object.entries(binding.arguments).map(([name, value]) => `${name}: ${argument(value)}`)].filter(Boolean).join(", ");
  return html`<g class=${`edge ${look}`}><title>${`${binding.source} → ${binding.destination}: ${told || "(no key)"}`}</title>
    <path d=${`M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`} />
    ${look === "near" && html`<text x=${x2 - 10} y=${y2 - 6} text-anchor="end">${clipped(told)}</text>`}
  </g>`;
}
