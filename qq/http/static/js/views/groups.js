/** Groups that lease messages: of all queues, and of one; their open leases, and how an operator ends these. */
import { ask as askNode, get, path, query } from "../api.js";
import { bytes, duration, moment, short, whole } from "../format.js";
import { html } from "../lib.js";
import { Badge, Heading, Loading, Problem, QueueLink } from "../parts/bits.js";
import { ask } from "../parts/dialog.js";
import { notify } from "../parts/notice.js";
import { listValues, nothingFound, Pager, Search, Table } from "../parts/table.js";
import { usePlace } from "../router.js";
import { useLive } from "../stream.js";
import { useVhost, useVhosts } from "../vhosts.js";

/** @param {any} group */
const Name = (group) => html`${group.name} ${group.exclusive && html`<${Badge} state="plain">exclusive<//>`}`;

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "queue", label: "Queue", sort: "queue", show: (group) => html`<${QueueLink} vhost=${group.vhost} name=${group.queue} />` },
  { key: "vhost", from: "tablet", label: "Virtual host", sort: "vhost", show: (group) => group.vhost },
  { key: "name", label: "Group", sort: "name", show: Name },
  { key: "owner", from: "desk", label: "Owner", sort: "owner", show: (group) => group.owner || "–" },
  { key: "fence", from: "desk", label: "Fence", sort: "fence", isNumber: true, show: (group) => whole(group.fence) },
  { key: "leases", label: "Leases", sort: "open_leases", isNumber: true, show: (group) => short(group.open_leases) },
  { key: "leased", from: "tablet", label: "Leased", sort: "messages_leased", isNumber: true, show: (group) => short(group.messages_leased) },
  { key: "lag", label: "Lag", sort: "lag.messages", isNumber: true, show: (group) => short(group.lag.messages) },
  { key: "lag-bytes", from: "desk", label: "Lag, bytes", sort: "lag.bytes", isNumber: true, show: (group) => bytes(group.lag.bytes) },
  { key: "age", from: "tablet", label: "Lag, age", sort: "lag.age_ms", isNumber: true, show: (group) => duration(group.lag.age_ms) },
  { key: "idle", label: "Last request", sort: "idle_ms", isNumber: true, show: (group) => `${duration(group.idle_ms)} ago` },
];

export function Groups() {
  const { values } = usePlace(), vhost = useVhost(), vhosts = useVhosts();
  const { told, problem, isOld } = useLive("groups", listValues(values, vhost));
  const columns = COLUMNS.filter((column) => column.key !== "vhost" || (vhosts.length > 1 && !vhost));
  return html`
    <${Heading} title="Groups" aside=${html`<${Search} label="Search by group or queue" />`} />
    <${Problem} problem=${problem} />
    ${told ? html`<div class="card flush">
      <${Table} label="Groups" columns=${columns} rows=${told.items} isOld=${isOld} rowKey=${(/** @type {any} */ group) => `${group.vhost}\n${group.queue}\n${group.name}`}
        empty=${nothingFound(values, "No group leases messages.")} />
      <${Pager} told=${told} />
    </div>` : !problem && html`<${Loading} />`}`;
}

/** The groups of a queue. @param {{groups: any[], may: Record<string, boolean>}} props */
export function GroupsOf({ groups, may }) {
  if (!groups.length) return html`<p class="empty">No group leases messages of the queue.</p>`;
  return html`<div class="card flush scroll"><table aria-label="Groups">
    <thead><tr><th scope="col">Group</th><th scope="col" class="from-tablet">Owner</th><th scope="col" class="number from-desk">Fence</th>
      <th scope="col" class="number">Leases</th><th scope="col" class="number">Leased</th><th scope="col" class="number from-desk">Committed to</th>
      <th scope="col" class="number">Lag</th><th scope="col" class="number from-tablet">Lag, age</th><th scope="col" class="number">Last request</th>
      <th scope="col"><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${groups.map((group) => html`<tr key=${group.name}><td><${Name} ...${group} /></td>
      <td class="from-tablet">${group.owner || "–"}</td><td class="number from-desk">${whole(group.fence)}</td>
      <td class="number">${short(group.open_leases)}</td><td class="number">${short(group.messages_leased)} (${bytes(group.bytes_leased)})</td>
      <td class="number from-desk">${whole(group.committed)}</td><td class="number">${short(group.lag.messages)} (${bytes(group.lag.bytes)})</td>
      <td class="number from-tablet">${duration(group.lag.age_ms)}</td><td class="number">${duration(group.idle_ms)} ago</td>
      <td class="number">${may.read && html`<button name="leases" onClick=${() => showLeases(group)}>Leases</button>`}
        ${may.configure && html` <button name="close-group" class="danger" onClick=${() => askToClose(group)}>Close</button>`}</td></tr>`)}</tbody></table></div>`;
}

/** @param {any} group */
const pathOf = (group) => path`queues/${group.vhost}/${group.queue}/groups/${group.name}`;

/** @param {any} group */
async function showLeases(group) {
  const { leases, fence, generation } = await get(pathOf(group)).catch((error) => { notify(error.message, "problem"); return {}; });
  if (!leases) return;
  ask({
    title: `Open leases of "${group.name}"`, action: "Done", act: async () => undefined,
    text: leases.length ? html`<table aria-label="Leases"><thead><tr><th scope="col" class="number">Lease</th><th scope="col" class="number">Messages</th>
      <th scope="col" class="number">Size</th><th scope="col">Taken</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${leases.map((/** @type {any} */ lease) => html`<tr key=${lease.lease}><td class="number">${whole(lease.lease)}</td><td class="number">${short(lease.messages)}</td>
        <td class="number">${bytes(lease.bytes)}</td><td>${moment(lease.taken_at)}</td>
        <td class="number"><button type="button" name="release" onClick=${() => askToRelease(group, { fence, generation }, lease.lease)}>Release</button></td></tr>`)}</tbody></table>`
      : "It has no open leases.",
  });
}

/** @param {any} group @param {{ fence: number, generation: number }} place @param {number} lease */
function askToRelease(group, place, lease) {
  ask({
    title: `Release lease ${lease} of "${group.name}"?`, action: "Release", isDangerous: true,
    text: "Its messages return to their places in the queue. The job of the group cannot read this lease any more.",
    act: async () => {
      await askNode("DELETE", `${pathOf(group)}/leases/${lease}${query(place)}`);
      notify(`Lease ${lease} of "${group.name}" was released.`);
    },
  });
}

/** @param {any} group */
function askToClose(group) {
  ask({
    title: `Close the group "${group.name}"?`, action: "Close", isDangerous: true, word: group.name,
    text: "Its job cannot go on with its leases. With open leases, their messages must return to the queue.",
    fields: [{ name: "release", label: "Return the messages of its open leases", kind: "check" }],
    act: async (values) => {
      const { fence, generation } = await get(pathOf(group));
      await askNode("DELETE", pathOf(group) + query({ fence, generation, release: values.release || "" }));
      notify(`The group "${group.name}" was closed.`);
    },
  });
}
