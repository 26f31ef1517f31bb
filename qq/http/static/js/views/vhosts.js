/** Virtual hosts: how much is in each, what it may hold, and making and deleting them. */
import { ask as askNode, path, query } from "../api.js";
import { rate, short } from "../format.js";
import { html } from "../lib.js";
import { Badge, Heading, Loading, Problem } from "../parts/bits.js";
import { ask } from "../parts/dialog.js";
import { Limits } from "../parts/limits.js";
import { notify } from "../parts/notice.js";
import { nothingFound, Pager, Search, Table } from "../parts/table.js";
import { adjust, to, usePlace } from "../router.js";
import { may } from "../session.js";
import { readVhosts } from "../vhosts.js";
import { useRead } from "./users.js";

const LIMITS = ["max-connections", "max-queues"];

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "name", label: "Name", sort: "name", show: (vhost) => html`<a class="name" href=${to(["vhosts"], { open: vhost.name })}>${vhost.name}</a>
    ${vhost.protected_from_deletion && html`<${Badge} state="good">protected<//>`}` },
  { key: "description", label: "Description", show: (vhost) => vhost.description },
  { key: "type", label: "Default type", show: (vhost) => vhost.default_queue_type ?? "classic" },
  { key: "ready", label: "Ready", isNumber: true, sort: "messages_ready", show: (vhost) => short(vhost.messages_ready) },
  { key: "unacked", label: "Unacked", isNumber: true, sort: "messages_unacknowledged", show: (vhost) => short(vhost.messages_unacknowledged) },
  { key: "in", label: "In", isNumber: true, sort: "message_stats.publish_details.rate", show: (vhost) => rate(vhost.message_stats?.publish_details?.rate ?? 0) },
  { key: "out", label: "Out", isNumber: true, sort: "message_stats.deliver_get_details.rate", show: (vhost) => rate(vhost.message_stats?.deliver_get_details?.rate ?? 0) },
  { key: "queues", label: "Queues", show: (vhost) => html`<a href=${to(["queues"], { vhost: vhost.name })}>show</a>` },
];

export function Vhosts() {
  const { values } = usePlace();
  const { name, use_regex, sort, sort_reverse, page, page_size, open } = values;
  const [told, problem, read] = useRead(`vhosts${query({ name, use_regex, sort, sort_reverse, page: page || 1, page_size: page_size || 50 })}`);
  const reread = async () => { await read(); await readVhosts(); };
  return html`<${Heading} title="Virtual hosts" aside=${html`<${Search} label="Search by name" />${may.administer() && html`<button class="primary" name="new-vhost" onClick=${() => ask({
      title: "New virtual host", action: "Create",
      fields: [{ name: "name", label: "Name", isRequired: true }, { name: "description", label: "Description" },
        { name: "type", label: "Queues are by default", kind: "select", options: [["", "classic"], ["quorum", "quorum"]] }],
      act: async (given) => {
        await askNode("PUT", path`vhosts/${given.name}`, { description: given.description, ...(given.type && { default_queue_type: given.type }) });
        notify(`The virtual host "${given.name}" is there.`);
        await reread();
      } })}>New virtual host</button>`}`} />
    <${Problem} problem=${problem} />
    ${told ? html`<div class="card flush"><${Table} label="Virtual hosts" columns=${COLUMNS} rows=${told.items} empty=${nothingFound(values, "There are no virtual hosts.")} rowKey=${(/** @type {any} */ vhost) => vhost.name} /><${Pager} told=${told} /></div>` : !problem && html`<${Loading} />`}
    ${open && html`<${Vhost} key=${open} name=${open} read=${reread} />`}`;
}

/** @param {{name: string, read: () => Promise<void>}} props */
function Vhost({ name, read }) {
  const [vhost, problem, readThis] = useRead(path`vhosts/${name}`);
  const [limits, , readLimits] = useRead(path`vhost-limits/${name}`);
  if (!vhost) return html`<${Problem} problem=${problem} />`;
  const both = async () => { await readThis(); await readLimits(); };
  return html`<h2>${name}</h2>
    ${may.administer() && html`<div class="toolbar">
      <button name="protect" onClick=${() => askNode(vhost.protected_from_deletion ? "DELETE" : "POST", path`vhosts/${name}/deletion/protection`).then(both, (error) => notify(error.message, "problem"))}>
        ${vhost.protected_from_deletion ? "Allow deletion" : "Protect from deletion"}</button>
      <button class="danger" name="delete" disabled=${vhost.protected_from_deletion} onClick=${() => ask({
        title: `Delete "${name}"?`, text: "All its queues, exchanges and messages are gone for good, and its connections are closed.", action: "Delete", isDangerous: true, word: name,
        act: async () => {
          await askNode("DELETE", path`vhosts/${name}`);
          adjust({ open: "", vhost: "" });
          notify(`The virtual host "${name}" was deleted.`);
          await read();
        } })}>Delete</button></div>`}
    <${Limits} title="Limits" names=${LIMITS} values=${limits?.[0]?.value ?? {}} inForce=${vhost.effective_limits} isFixed=${!may.administer()}
      read=${both} where=${(/** @type {string} */ limit) => path`vhost-limits/${name}/${limit}`} />`;
}
