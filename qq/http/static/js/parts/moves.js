/** Moves of messages between queues: beginning them, and how far they are. Hidden where the node knows no moves. */
import { ask as askNode, get, getIfThere, path } from "../api.js";
import { whole } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Card, QueueLink, State } from "./bits.js";
import { ask } from "./dialog.js";
import { attempt, notify } from "./notice.js";

const LOOK_MS = 1500;
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

/** @param {Record<string, any>} values @param {string} source */
function moveIn(values, source) {
  const filter = {
    ...(values.reason && { reason: values.reason }),
    ...(values.from_queue && { from_queue: values.from_queue }),
    ...(values.header && { headers: { [values.header]: values.header_value } }),
  };
  return {
    source,
    ...(values.to_origin ? { to_origin: true } : { destination: values.destination }),
    ...(values.count && { count: Number(values.count) }),
    ...(values.rate && { rate: Number(values.rate) }),
    ...(Object.keys(filter).length && { filter }),
  };
}

/**
 * Ask where messages shall go, and have them go there.
 * @param {string} vhost
 * @param {string} source
 * @param {{toOrigin: boolean, reason?: string, from?: string}} begin
 */
export function askForMove(vhost, source, { toOrigin, reason = "", from = "" }) {
  ask({
    title: toOrigin ? `Send messages of "${source}" back` : `Move messages of "${source}"`,
    text: toOrigin ? "Each message goes back to the queue in which it died first. It is moved once, also if a node dies meanwhile." : undefined,
    action: toOrigin ? "Send back" : "Move",
    fields: [
      { name: "to_origin", label: "Back to where they died first", kind: "check", value: toOrigin },
      { name: "destination", label: "To the queue", when: (values) => !values.to_origin },
      { name: "count", label: "At most so many", kind: "number", hint: "Empty for all that are ready now" },
      { name: "rate", label: "Messages a second", kind: "number", hint: "Empty for as fast as they go" },
      { name: "reason", label: "Only if they died because of", kind: "select", value: reason, options: [["", "any reason"], ...REASONS.map((each) => /** @type {[string, string]} */ ([each, each]))] },
      { name: "from_queue", label: "Only if they died in the queue", value: from },
      { name: "header", label: "Only with the header" },
      { name: "header_value", label: "and its value", when: (values) => values.header !== "" },
    ],
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
    let timer = /** @type {any} */ (0), isWanted = true;
    async function look() {
      const told = await get(path`moves/${vhost}`).catch(() => []);
      if (!isWanted) return;
      setMoves(told);
      // Nothing is asked for while nothing moves.
      if (told.some((/** @type {any} */ move) => !move.ended_at)) timer = setTimeout(look, LOOK_MS);
    }
    const again = () => { clearTimeout(timer); look(); };
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
        <th scope="col" class="number">Passed over</th><th scope="col">By</th><th></th></tr></thead>
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
