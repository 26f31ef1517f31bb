/** The shovels: what moves messages to and from other queues and brokers, and why one does not. */
import { get, path } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { Card, QueueLink, State } from "./bits.js";

const LOOK_MS = 5000;

/** @param {{vhost: string}} props of all virtual hosts if it is "" */
export function Shovels({ vhost }) {
  const [shovels, setShovels] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    let timer = /** @type {any} */ (0), isWanted = true;
    async function look() {
      const told = await get(vhost ? path`shovels/${vhost}` : "shovels").catch(() => []);
      if (!isWanted) return;
      setShovels(told);
      if (told.length) timer = setTimeout(look, LOOK_MS);
    }
    look();
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [vhost]);
  return shovels.length > 0 && html`<${Card} title="Shovels">
    <div class="scroll"><table aria-label="Shovels">
      <thead><tr><th scope="col">Name</th><th scope="col">From</th><th scope="col">To</th><th scope="col">State</th><th scope="col">Node</th></tr></thead>
      <tbody>${shovels.map((each) => html`<tr key=${`${each.vhost} ${each.name}`}>
        <td><b>${each.name}</b></td>
        <td><${End} shovel=${each} end="src" /></td><td><${End} shovel=${each} end="dest" /></td>
        <td><${State} is=${each.state} /> ${each.reason ?? ""}</td><td>${each.node}</td>
      </tr>`)}</tbody>
    </table></div>
  <//>`;
}

/** One end of a shovel: a queue here, or an address. @param {{shovel: any, end: "src" | "dest"}} props */
function End({ shovel, end }) {
  const uri = shovel[`${end}_uri`] ?? "", name = shovel[`${end}_queue`] ?? shovel[`${end}_exchange`] ?? "";
  const isHere = shovel[`${end}_queue`] && /^amqps?:\/\/(\/.*)?$/.test(uri);
  return isHere ? html`<${QueueLink} vhost=${shovel.vhost} name=${name} />` : html`<span class="name">${name}</span> <span class="muted">${uri}</span>`;
}
