/** Definitions: everything but the messages, as a file, down and up. For administrators. */
import { ask as askNode, askText, path } from "../api.js";
import { bytes } from "../format.js";
import { html, useState } from "../lib.js";
import { Card, Heading } from "../parts/bits.js";
import { ask } from "../parts/dialog.js";
import { attempt, notify } from "../parts/notice.js";
import { readVhosts, useVhost, useVhosts } from "../vhosts.js";

/** Objects named at most that an import has left out. */
const NAMED_MAX = 3;

/** @param {string} vhost */
const where = (vhost) => (vhost ? path`definitions/${vhost}` : "definitions");

/** @param {string} vhost */
async function download(vhost) {
  const told = await askText("GET", where(vhost));
  const address = URL.createObjectURL(new Blob([told], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `qq-definitions-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  URL.revokeObjectURL(address);
}

/** @param {{left_out: {object: string, reason: string}[]}} told */
function leftOut({ left_out: all }) {
  const some = all.slice(0, NAMED_MAX).map((each) => `${each.object} (${each.reason})`).join("; ");
  return all.length > NAMED_MAX ? `${some}; and ${all.length - NAMED_MAX} more` : some;
}

export function Definitions() {
  const vhost = useVhost(), vhosts = useVhosts();
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  return html`<${Heading} title="Definitions" note=${`Of ${vhost || "all virtual hosts"}: queues, exchanges, bindings and policies${vhost ? "" : ", users and permissions"}.${vhosts.length > 1 && !vhost ? " Choose a virtual host above for its own." : ""}`} />
    <div class="columns">
      <${Card} title="Download">
        <p class="muted">A file that this cluster, another one, or RabbitMQ can read.</p>
        <button class="primary" name="download" onClick=${() => attempt(() => download(vhost))}>Download</button>
      <//>
      <${Card} title="Upload">
        <p class="muted">What is there already stays; what is in the file is added. Files of RabbitMQ will do.</p>
        <input type="file" name="file" accept="application/json,.json" aria-label="File" onChange=${(/** @type {any} */ event) => setFile(event.target.files[0] ?? null)} />
        <div class="buttons start"><button name="upload" disabled=${!file} onClick=${() => file && ask({
          title: "Import these definitions?", text: `${file.name}, ${bytes(file.size)}, into ${vhost || "the whole cluster"}`, action: "Import",
          act: async () => {
            const told = await askNode("POST", where(vhost), await file.text());
            notify(told ? `Imported except for ${leftOut(told)}.` : "The definitions were imported.", told ? "problem" : "done");
            await readVhosts();
          } })}>Upload</button></div>
      <//>
    </div>`;
}
