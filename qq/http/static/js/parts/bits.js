/** Small pieces that many views have. */
import { html } from "../lib.js";
import { to } from "../router.js";

/** @param {{state: string, children?: any}} props */
export const Badge = ({ state, children }) => html`<span class=${`badge ${state}`}>${children}</span>`;

/** The states of things, and how they look. @type {Record<string, string>} */
const LOOKS = {
  running: "good", leader: "good", follower: "calm", voter: "calm", up: "calm", single_active: "good", waiting: "calm",
  learner: "warn", awaited: "warn", candidate: "warn", flow: "warn", blocked: "warn", closing: "warn", minority: "bad", down: "bad",
};

/** @param {{is: string}} props */
export const State = ({ is }) => html`<${Badge} state=${LOOKS[is] ?? "calm"}>${is.replaceAll("_", " ")}<//>`;

/** @param {{title: any, aside?: any, children?: any, note?: any}} props */
export const Heading = ({ title, aside, note }) => html`<header class="heading">
  <div><h1>${title}</h1>${note && html`<p class="muted">${note}</p>`}</div>
  <div class="actions">${aside}</div>
</header>`;

/** @param {{label: string, value: any, note?: any, state?: string}} props */
export const Figure = ({ label, value, note, state = "" }) => html`<div class=${`card figure ${state}`}>
  <span class="label">${label}</span><span class="value">${value}</span>${note && html`<span class="note">${note}</span>`}
</div>`;

/** @param {{title: any, aside?: any, children?: any, isWide?: boolean}} props */
export const Card = ({ title, aside, children }) => html`<section class="card">
  <div class="card-head"><h2>${title}</h2>${aside && html`<div class="actions">${aside}</div>`}</div>
  ${children}
</section>`;

/** @param {{rows: [string, any][]}} props */
export const Facts = ({ rows }) => html`<dl class="facts">
  ${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
</dl>`;

/** What is said instead of a view that cannot be shown. @param {{problem: {status: number, reason: string} | null}} props */
export const Problem = ({ problem }) => problem && html`<p class="problem" role="alert">${problem.reason}</p>`;

export const Loading = () => html`<div class="loading" aria-busy="true"><i></i><i></i><i></i></div>`;

/** @param {{vhost: string, name: string}} props */
export const QueueLink = ({ vhost, name }) => html`<a href=${to(["queues", vhost, name])} class="name">${name}</a>`;

/** @param {{vhost: string, name: string}} props */
export const ExchangeLink = ({ vhost, name }) => html`<a href=${to(["exchanges", vhost, name || "amq.default"])} class="name">${name || "(default)"}</a>`;

/** A connection by the name that its client gave it, and by its address. @param {{name: string, client?: string, more?: string}} props */
export const ConnectionLink = ({ name, client, more = "" }) => html`<a href=${to(["connections", name])} class="name">${client || name}${more}</a>${
  client && html`<br /><span class="muted address">${name}</span>`}`;
