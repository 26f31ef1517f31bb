/** Sinks of writers with epochs: their uncommitted messages, and how an operator ends a sink. */
import { ask as askNode, path } from "../api.js";
import { bytes, duration, short, whole } from "../format.js";
import { html } from "../lib.js";
import { Heading, Loading, Problem } from "../parts/bits.js";
import { ask } from "../parts/dialog.js";
import { notify } from "../parts/notice.js";
import { listValues, nothingFound, Pager, Search, Table } from "../parts/table.js";
import { usePlace } from "../router.js";
import { useLive } from "../stream.js";
import { useVhost, useVhosts } from "../vhosts.js";

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "name", label: "Sink", sort: "name", show: (sink) => sink.name },
  { key: "vhost", from: "tablet", label: "Virtual host", sort: "vhost", show: (sink) => sink.vhost },
  { key: "user", from: "desk", label: "User", sort: "user", show: (sink) => sink.user },
  { key: "committed", from: "tablet", label: "Committed to", sort: "committed", isNumber: true, show: (sink) => whole(sink.committed) },
  { key: "attempts", label: "Attempts", sort: "attempts", isNumber: true, show: (sink) => short(sink.attempts) },
  { key: "staged", label: "Staged", sort: "messages_staged", isNumber: true, show: (sink) => short(sink.messages_staged) },
  { key: "staged-bytes", from: "desk", label: "Staged, bytes", sort: "bytes_staged", isNumber: true, show: (sink) => bytes(sink.bytes_staged) },
  { key: "age", from: "tablet", label: "Staged, age", sort: "age_ms", isNumber: true, show: (sink) => duration(sink.age_ms) },
  { key: "idle", label: "Last request", sort: "idle_ms", isNumber: true, show: (sink) => `${duration(sink.idle_ms)} ago` },
  { key: "close", label: "", show: (sink) => html`<button name="close-sink" class="danger" onClick=${() => askToClose(sink)}>Close</button>` },
];

export function Sinks() {
  const { values } = usePlace(), vhost = useVhost(), vhosts = useVhosts();
  const { told, problem, isOld } = useLive("sinks", listValues(values, vhost));
  const columns = COLUMNS.filter((column) => column.key !== "vhost" || (vhosts.length > 1 && !vhost));
  return html`
    <${Heading} title="Sinks" aside=${html`<${Search} label="Search by name" />`} />
    <${Problem} problem=${problem} />
    ${told ? html`<div class="card flush">
      <${Table} label="Sinks" columns=${columns} rows=${told.items} isOld=${isOld} rowKey=${(/** @type {any} */ sink) => `${sink.vhost}\n${sink.name}`}
        empty=${nothingFound(values, "No writer has opened a sink.")} />
      <${Pager} told=${told} />
    </div>` : !problem && html`<${Loading} />`}`;
}

/** @param {any} sink */
function askToClose(sink) {
  ask({
    title: `Close the sink "${sink.name}"?`, action: "Close", isDangerous: true, word: sink.name,
    text: "Its messages that are not committed are dropped, and its writer cannot go on.",
    act: async () => {
      await askNode("DELETE", path`sinks/${sink.vhost}/${sink.name}`);
      notify(`The sink "${sink.name}" was closed.`);
    },
  });
}
