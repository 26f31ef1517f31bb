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
  // An exchange is to the left of all that it leads to; circles end where they are deepest.
  const depth = new Map([...nodes.keys()].map((id) => [id, 0]));
  for (let turn = 0; turn < DEPTH_MAX; turn++) {
    for (const binding of bindings) {
      const from = idOf("exchange", binding.source), into = depth.get(idOf(binding.destination_type, binding.destination)) ?? 0;
      if ((depth.get(from) ?? 0) <= into && into < DEPTH_MAX) depth.set(from, into + 1);
    }
  }
  const last = Math.max(1, ...depth.values());
  for (const node of nodes.values()) node.column = node.kind === "queue" ? last : Math.min(last - (depth.get(node.id) ?? 0), last - 1);
  const ways = bindings.map((binding) => wayOf(binding, nodes));
  place([...nodes.values()], ways, last);
  return { nodes, ways, last };
}

/**
 * What a line goes through. Where it passes a column it has a place of its own there, and is not drawn over others.
 * @param {any} binding
 * @param {Map<string, Node>} nodes
 * @returns {Node[]}
 */
function wayOf(binding, nodes) {
  const from = /** @type {Node} */ (nodes.get(idOf("exchange", binding.source)));
  const into = /** @type {Node} */ (nodes.get(idOf(binding.destination_type, binding.destination)));
  const way = [from];
  for (let column = from.column + 1; column < into.column; column++) {
    const id = `passing\n${from.id}\n${column}`;
    if (!nodes.has(id)) nodes.set(id, { id, kind: "passing", name: from.name, column, y: 0 });
    way.push(/** @type {Node} */ (nodes.get(id)));
  }
  return [...way, into];
}

/** Give each node its height: in the middle of those that lead to it, so that few lines cross. @param {Node[]} nodes @param {Node[][]} ways @param {number} last */
function place(nodes, ways, last) {
  /** @type {Map<Node, Set<Node>>} */
  const before = new Map();
  for (const way of ways) way.slice(1).forEach((node, at) => before.set(node, (before.get(node) ?? new Set()).add(way[at])));
  for (let column = 0; column <= last; column++) {
    const middle = (/** @type {Node} */ node) => {
      const from = [...(before.get(node) ?? [])].map((each) => each.y);
      return from.length ? from.reduce((a, b) => a + b) / from.length : 0;
    };
    const here = nodes.filter((node) => node.column === column).map((node) => /** @type {[Node, number]} */ ([node, middle(node)]));
    here.sort(([a, y], [b, z]) => y - z || a.name.localeCompare(b.name));
    here.forEach(([node], at) => { node.y = MARGIN + at * (HEIGHT + DOWN); });
  }
}

/** @param {string} text */
const clipped = (text) => (text.length > 26 ? `${text.slice(0, 25)}…` : text);

/** @param {{vhost: string, exchanges: any[], bindings: any[]}} props */
export function Picture({ vhost, exchanges, bindings }) {
  const [near, setNear] = useState("");
  const { nodes, ways, last } = layout(exchanges, bindings);
  const all = [...nodes.values()], shown = all.filter((node) => node.kind !== "passing");
  const x = (/** @type {Node} */ node) => MARGIN + node.column * (WIDTH + ACROSS);
  const height = Math.max(...all.map((node) => node.y)) + HEIGHT + MARGIN;
  const width = 2 * MARGIN + last * (WIDTH + ACROSS) + WIDTH;
  const isNear = (/** @type {Node[]} */ way) => way[0].id === near || way[way.length - 1].id === near;
  return html`<div class="scroll picture"><svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label="Exchanges and bindings">
    ${ways.map((way, at) => html`<${Edge} key=${at} way=${way} binding=${bindings[at]} x=${x} look=${near ? (isNear(way) ? "near" : "far") : ""} />`)}
    ${shown.map((node) => html`<a key=${node.id} href=${to([`${node.kind}s`, vhost, node.name])} class=${`node ${node.kind}`}
      onMouseEnter=${() => setNear(node.id)} onMouseLeave=${() => setNear("")} onFocus=${() => setNear(node.id)} onBlur=${() => setNear("")}>
      <title>${node.name}</title>
      <rect x=${x(node)} y=${node.y} width=${WIDTH} height=${HEIGHT} rx=${node.kind === "queue" ? 6 : HEIGHT / 2} />
      <text x=${x(node) + 14} y=${node.y + 21}>${clipped(node.name)}</text>
      ${node.type && html`<text class="type" x=${x(node) + WIDTH - 12} y=${node.y + 21} text-anchor="end">${node.type}</text>`}
    </a>`)}
  </svg></div>`;
}

/** @param {{way: Node[], binding: any, x: (node: Node) => number, look: string}} props */
function Edge({ way, binding, x, look }) {
  const middle = (/** @type {Node} */ node) => node.y + HEIGHT / 2, into = way[way.length - 1];
  const path = way.slice(1).map((node, at) => {
    const x1 = x(way[at]) + WIDTH, x2 = x(node), bend = Math.max((x2 - x1) / 2, 40), y1 = middle(way[at]), y2 = middle(node);
    return `C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}${node === into ? "" : ` H${x2 + WIDTH}`}`;
  });
  const told = [binding.routing_key, ...Object.entries(binding.arguments).map(([name, value]) => `${name}: ${argument(value)}`)].filter(Boolean).join(", ");
  return html`<g class=${`edge ${look}`}><title>${`${binding.source} → ${binding.destination}: ${told || "(no key)"}`}</title>
    <path d=${`M${x(way[0]) + WIDTH} ${middle(way[0])} ${path.join(" ")}`} />
    ${look === "near" && html`<text x=${x(into) - 10} y=${middle(into) - 6} text-anchor="end">${clipped(told)}</text>`}
  </g>`;
}
