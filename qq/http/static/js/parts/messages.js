/** Messages of a queue, looked at without being consumed: headers, how they died, bodies. */
import { get, path, query } from "../api.js";
import { argument, bytes, moment, whole } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Badge, ExchangeLink, Facts, QueueLink } from "./bits.js";

const COUNT = 20;
export const BODY_BYTES_MAX = 4096;

/** Where and why a message died, the last death first. @param {any} message @returns {any[]} */
export const deathsOf = (message) => {
  const deaths = message.properties?.headers?.["x-death"];
  return Array.isArray(deaths) ? deaths : [];
};

/** All ready messages of a queue, a page at a time. @param {{vhost: string, queue: string}} props */
export function Messages({ vhost, queue }) {
  const [offset, setOffset] = useState(0);
  const [turn, setTurn] = useState(0);
  const [state, setState] = useState({ messages: /** @type {any[] | null} */ (null), problem: "" });
  useEffect(() => {
    let isAwaited = true;
    const show = (/** @type {any} */ next) => { if (isAwaited) setState(next); };
    get(path`queues/${vhost}/${queue}/browse` + query({ offset, count: COUNT, truncate: BODY_BYTES_MAX })).then(
      (messages) => show({ messages, problem: "" }),
      (error) => show({ messages: null, problem: error.message }),
    );
    return () => { isAwaited = false; };
  }, [vhost, queue, offset, turn]);
  const { messages, problem } = state;
  return html`<div class="messages">
    <div class="toolbar">
      <button name="browse" onClick=${() => setTurn(turn + 1)}>Refresh</button>
      <button disabled=${offset === 0} onClick=${() => setOffset(Math.max(offset - COUNT, 0))}>‹ Earlier</button>
      <button disabled=${(messages?.length ?? 0) < COUNT} onClick=${() => setOffset(offset + COUNT)}>Later ›</button>
      <span class="muted">${messages?.length ? `Ready messages ${whole(offset + 1)} to ${whole(offset + messages.length)}; they stay where they are.` : ""}</span>
    </div>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${messages && !messages.length && html`<p class="empty">There is no ready message.</p>`}
    ${(messages ?? []).map((message) => html`<${Message} key=${message.offset} vhost=${vhost} message=${message} />`)}
  </div>`;
}

/** A JSON document with indentation; any other text as it is. @param {string} text */
function indented(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    const shown = JSON.stringify(JSON.parse(text), null, 2);
    // Numbers that JavaScript cannot hold, and keys that occur twice, must not change.
    return shown.replace(/\s/g, "") === text.replace(/\s/g, "") ? shown : text;
  } catch {
    return text;
  }
}

/** @param {{vhost: string, message: any}} props */
export function Message({ vhost, message }) {
  const { headers = {}, ...properties } = message.properties ?? {};
  const deaths = deathsOf(message);
  const isWhole = message.payload_bytes <= BODY_BYTES_MAX;
  const others = Object.entries(headers).filter(([name]) => name !== "x-death");
  return html`<details class="message">
    <summary>
      <span class="place">${message.offset === undefined ? "" : `#${whole(message.offset + 1)}`}</span>
      <span class="key">${message.exchange || "(default)"} → ${message.routing_key}</span>
      <span class="preview">${message.payload_encoding === "string" ? message.payload.slice(0, 200) : "(octets)"}</span>
      <span class="badges">
        ${deaths.length > 0 && html`<${Badge} state="warn">${deaths[0].reason}<//>`}
        ${message.redelivered && html`<${Badge} state="calm">redelivered<//>`}
      </span>
      <span class="number">${bytes(message.payload_bytes)}</span>
    </summary>
    <div class="inside">
      <${Facts} rows=${[...Object.entries(properties).map(([name, value]) => [name, argument(value)]), ...others.map(([name, value]) => [name, argument(value)])]} />
      ${deaths.length > 0 && html`<${Deaths} vhost=${vhost} deaths=${deaths} />`}
      ${message.payload_encoding === "base64" && html`<p class="muted">The body is no text; it is shown in base64.</p>`}
      <pre class="body">${isWhole && message.payload_encoding === "string" ? indented(message.payload) : message.payload}</pre>
      ${!isWhole && html`<p class="muted">Only the first ${bytes(BODY_BYTES_MAX)} are shown.</p>`}
    </div>
  </details>`;
}

/** @param {{vhost: string, deaths: any[]}} props */
const Deaths = ({ vhost, deaths }) => html`<h3>How it died</h3>
  <ol class="deaths">${deaths.map((death, at) => html`<li key=${at}>
    <${Badge} state="warn">${death.reason}<//>${" in "}<${QueueLink} vhost=${vhost} name=${death.queue} />
    ${death.count === 1 ? " once" : ` ${whole(death.count)} times`}${death.time ? `, first ${moment(death.time * 1000)}` : ""}
    <span class="muted">${", published to "}<${ExchangeLink} vhost=${vhost} name=${death.exchange} />${` with ${(death["routing-keys"] ?? []).join(", ")}`}</span>
  </li>`)}</ol>`;
