/** Moves of messages between queues: beginning them, and how far they are. Hidden where the node knows no moves. */
import { ask as askNode, get, getIfThere, path, query } from "../api.js";
import { whole } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Card, QueueLink, State } from "./bits.js";
import { ask } from "./dialog.js";
import { attempt, notify } from "./notice.js";

const LOOK_MS = 1500;
const TYPING_MS = 300;
/** Searches that count the messages of a move at most, and how many messages each looks at; with a text the node stops earlier. */
const COUNT_ROUNDS = 20, LOOK_AT_MAX = 100000;
/** Why messages die. */
export const REASONS = ["rejected", "expired", "maxlen", "delivery_limit"];

let areThere = /** @type {Promise<boolean> | null} */ (null);

/** Whether the node knows moves. */
export function useMovesThere() {
  const [isThere, setThere] = useState(false);
  useEffect(() => {
    areThere ??= getIfThere("moves?page=1&page_size=1").then((told) => told !== null);
    areThere.then(setThere, () => { areThere = null; });
  }, []);
  return isThere;
}

/** The filter of a move in the values of its dialog. @param {Record<string, any>} values */
const filterIn = (values) => ({
  ...(values.reason && { reason: values.reason }),
  ...(values.from_queue && { from_queue: values.from_queue }),
  ...(values.text && { text: values.text }),
  ...(values.header && { headers: { [values.header]: values.header_value } }),
});

/** @param {Record<string, any>} values @param {string} source */
function moveIn(values, source) {
  const filter = filterIn(values);
  return {
    source,
    ...(values.to_origin ? { to_origin: true } : { destination: values.destination }),
    ...(values.count && { count: Number(values.count) }),
    ...(values.rate && { rate: Number(values.rate) }),
    ...(Object.keys(filter).length && { filter }),
  };
}

/**
 * Search a queue at the node. @param {string} vhost @param {string} queue @param {Record<string, any>} filter
 * @param {Record<string, any>} limits
 */
export const search = (vhost, queue, { headers, ...filter }, limits) => get(path`queues/${vhost}/${queue}/search`
  + query({ ...filter, headers: headers && JSON.stringify(headers), ...limits }));

/** How many messages a move would move now. @param {{vhost: string, source: string, values: Record<string, any>}} props */
function MoveCount({ vhost, source, values }) {
  const [text, setText] = useState("");
  const filter = filterIn(values), most = Number(values.count) || Infinity;
  useEffect(() => {
    let isWanted = true;
    setText("Counting …");
    async function count() {
      let found = 0, lookedAt = 0, ready = 0, offset = /** @type {number | null} */ (0);
      for (let round = 0; round < COUNT_ROUNDS && isWanted && offset !== null; round++) {
        const part = await search(vhost, source, filter, { offset, look_at: LOOK_AT_MAX, count: 0 });
        found += values.to_origin ? part.returnable : part.matched;
        lookedAt += part.looked_at;
        ({ ready, next_offset: offset } = part);
      }
      if (!isWanted) return;
      const rest = offset === null ? "" : `, and those that fit among the other ${whole(ready - lookedAt)}`;
      setText(`Moves ${whole(Math.min(found, most))} of ${offset === null ? whole(ready) : `the first ${whole(lookedAt)}`} messages${rest}.`);
    }
    const timer = setTimeout(() => count().catch((error) => isWanted && setText(error.message)), TYPING_MS);
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [JSON.stringify([filter, values.to_origin, values.count])]);
  return html`<p class="counted" role="status">${text}</p>`;
}

/**
 * Ask where messages shall go, and have them go there.
 * @param {string} vhost
 * @param {string} source
 * @param {{toOrigin: boolean, reason?: string, from?: string, text?: string}} begin
 */
export function askForMove(vhost, source, { toOrigin, reason = "", from = "", text = "" }) {
  ask({
    title: toOrigin ? `Send messages of "${source}" back` : `Move messages of "${source}"`,
    text: toOrigin ? "Each message goes back to the queue in which it died first. It is moved once, also if a node dies meanwhile." : undefined,
    action: toOrigin ? "Send back" : "Move",
    fields: [
      { name: "to_origin", label: "Back to where they died first", kind: "check", value: toOrigin },
      { name: "destination", label: "To the queue", when: (values) => !values.to_origin },
      { name: "count", label: "Limit", kind: "number", hint: "Messages at most; empty for all that are ready now" },
      { name: "rate", label: "Messages a second", kind: "number", hint: "Empty for as fast as they go" },
      { name: "reason", label: "Only if they died because of", kind: "select", value: reason, options: [["", "any reason"], ...REASONS.map((each) => /** @type {[string, string]} */ ([each, each]))] },
      { name: "from_queue", label: "Only if they died in the queue", value: from },
      { name: "text", label: "Only with the text", value: text, hint: "In the body, a property or a header" },
      { name: "header", label: "Only with the header" },
      { name: "header_value", label: "and its value", when: (values) => values.header !== "" },
    ],
    note: (values) => html`<${MoveCount} vhost=${vhost} source=${source} values=${values} />`,
    act: async (values) => {
      await askNode("POST", path`moves/${vhost}`, moveIn(values, source));
      notify("The move has begun.");
      dispatchEvent(new Event("move-begun"));
    },
  });
}

/** The moves of a queue, or of a virtual host. @param {{vhost: string, source?: string}} props */
export function Moves({ vhost, source }) {
  const isThere = useMovesThere();
  const [moves, setMoves] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    if (!isThere || !vhost) return undefined;
    let timer = /** @type {any} */ (0), isWanted = true, running = 0;
    async function look() {
      const told = await get(path`moves/${vhost}`).catch(() => []);
      if (!isWanted) return;
      setMoves(told);
      const before = running;
      running = told.filter((/** @type {any} */ move) => !move.ended_at).length;
      if (running < before) dispatchEvent(new Event("move-ended"));
      // Nothing is asked for while nothing moves.
      if (told.some((/** @type {any} */ move) => !move.ended_at)) timer = setTimeout(look, LOOK_MS);
    }
    const again = () => { clearTimeout(timer); running += 1; look(); };
    look();
    addEventListener("move-begun", again);
    return () => {
      isWanted = false;
      clearTimeout(timer);
      removeEventListener("move-begun", again);
    };
  }, [isThere, vhost]);
  const shown = moves.filter((move) => !source || move.source === source || move.destination === source);
  return shown.length > 0 && html`<${Card} title="Moves">
    <div class="scroll"><table aria-label="Moves">
      <thead><tr><th scope="col">From</th><th scope="col">To</th><th scope="col">State</th><th scope="col" class="number">Moved</th>
        <th scope="col" class="number">Passed over</th><th scope="col">By</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${shown.map((move) => html`<tr key=${move.id}>
        <td><${QueueLink} vhost=${vhost} name=${move.source} /></td>
        <td>${move.destination ? html`<${QueueLink} vhost=${vhost} name=${move.destination} />` : "where they died first"}</td>
        <td><${State} is=${move.state} /> ${move.waits_for ?? ""} ${move.error ?? ""}</td>
        <td class="number">${whole(move.moved)}</td><td class="number">${whole(move.skipped)}</td><td>${move.user}</td>
        <td class="number">${!move.ended_at && html`<button name="stop-move" onClick=${() => attempt(
          () => askNode("DELETE", path`moves/${vhost}/${move.id}`), "The move was stopped.")}>Stop</button>`}</td>
      </tr>`)}</tbody>
    </table></div>
  <//>`;
}
