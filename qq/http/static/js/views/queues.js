/** All queues: searched, sorted and paged by the node, so that 50,000 are as quick as 50. */
import { ask as askNode, get, path } from "../api.js";
import { argument, bytes, percent, rate, short } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Badge, Heading, Loading, Problem, QueueLink, State } from "../parts/bits.js";
import { ask } from "../parts/dialog.js";
import { objectIn } from "../parts/form.js";
import { notify } from "../parts/notice.js";
import { listValues, nothingFound, Pager, Search, Table, useColumns } from "../parts/table.js";
import { go, usePlace } from "../router.js";
import { useLive } from "../stream.js";
import { useVhost, useVhosts } from "../vhosts.js";

/** What a page shows of a queue is all that is asked for. */
const ASKED = "name,vhost,type,durable,exclusive,auto_delete,arguments,policy,state,messages,messages_ready,messages_unacknowledged,"
  + "messages_delayed,messages_dlx,message_bytes,consumers,consumer_capacity,message_stats";

/** @param {string} name */
const rateOf = (name) => ({
  sort: `message_stats.${name}_details.rate`,
  isNumber: true,
  show: (/** @type {any} */ queue) => rate(queue.message_stats?.[`${name}_details`]?.rate ?? 0),
});

/** Short names of arguments, as RabbitMQ's page has them. @type {Record<string, string>} */
const SHORT = {
  "x-dead-letter-exchange": "DLX", "x-dead-letter-routing-key": "DLK", "x-message-ttl": "TTL", "x-expires": "Exp", "x-max-length": "Lim",
  "x-max-length-bytes": "Lim B", "x-overflow": "Ovfl", "x-single-active-consumer": "SAC", "x-max-priority": "Pri", "x-delivery-limit": "DL",
};

/** @param {any} queue */
const Features = (queue) => html`<span class="badges">
  <${Badge} state="plain">${queue.type}<//>
  ${!queue.durable && html`<${Badge} state="plain">transient<//>`}
  ${queue.exclusive && html`<${Badge} state="plain">exclusive<//>`}
  ${queue.auto_delete && html`<${Badge} state="plain">auto-delete<//>`}
  ${Object.entries(queue.arguments ?? {}).filter(([name]) => name !== "x-queue-type").slice(0, 4).map(([name, value]) => html`
    <span class="badge plain" title=${`${name}: ${argument(value)}`} key=${name}>${SHORT[name] ?? name.replace(/^x-/, "")}</span>`)}
</span>`;

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "name", label: "Name", sort: "name", show: (queue) => html`<${QueueLink} vhost=${queue.vhost} name=${queue.name} />` },
  { key: "vhost", from: "tablet", label: "Virtual host", sort: "vhost", show: (queue) => queue.vhost },
  { key: "features", from: "desk", label: "Features", show: Features },
  { key: "policy", from: "desk", label: "Policy", sort: "policy", show: (queue) => queue.policy ?? "" },
  { key: "state", from: "tablet", label: "State", sort: "state", show: (queue) => html`<${State} is=${queue.state} />` },
  { key: "ready", label: "Ready", sort: "messages_ready", isNumber: true, show: (queue) => short(queue.messages_ready) },
  { key: "unacked", label: "Unacked", sort: "messages_unacknowledged", isNumber: true, show: (queue) => short(queue.messages_unacknowledged) },
  { key: "consumers", label: "Consumers", sort: "consumers", isNumber: true, show: (queue) => short(queue.consumers) },
  { key: "total", from: "desk", label: "Total", sort: "messages", isNumber: true, show: (queue) => short(queue.messages) },
  { key: "delayed", label: "Delayed", sort: "messages_delayed", isNumber: true, isHidden: true, show: (queue) => short(queue.messages_delayed) },
  { key: "bytes", label: "Size", sort: "message_bytes", isNumber: true, isHidden: true, show: (queue) => bytes(queue.message_bytes) },
  { key: "in", from: "tablet", label: "In", ...rateOf("publish") },
  { key: "out", from: "tablet", label: "Out", ...rateOf("deliver_get") },
  { key: "ack", from: "desk", label: "Ack", ...rateOf("ack") },
  { key: "redelivered", label: "Redelivered", isHidden: true, ...rateOf("redeliver") },
  { key: "dead", label: "Dead-lettered", isHidden: true, ...rateOf("dead_letter") },
  { key: "capacity", label: "Capacity", sort: "consumer_capacity", isNumber: true, isHidden: true, show: (queue) => percent(queue.consumer_capacity) },
];

export function Queues() {
  const { values } = usePlace(), vhost = useVhost(), vhosts = useVhosts();
  const { told, problem, isOld } = useLive("queues", { ...listValues(values, vhost), columns: ASKED });
  const [columns, chooser] = useColumns("queues", COLUMNS);
  const shown = columns.filter((column) => column.key !== "vhost" || (vhosts.length > 1 && !vhost));
  return html`
    <${Heading} title="Queues" aside=${html`<${Search} label="Search by name" />${chooser}<${NewQueue} vhost=${vhost || (vhosts.length === 1 ? vhosts[0] : "")} />`} />
    <${Problem} problem=${problem} />
    ${told ? html`<div class="card flush">
      <${Table} label="Queues" columns=${shown} rows=${told.items} isOld=${isOld} empty=${nothingFound(values, "There are no queues yet.")}
        rowKey=${(/** @type {any} */ queue) => `${queue.vhost}\n${queue.name}`} />
      <${Pager} told=${told} />
    </div>` : !problem && html`<${Loading} />`}`;
}

/** Whether the one who looks may declare anything in a virtual host; the default one if none is chosen. @param {string} vhost */
export function useMayDeclare(vhost) {
  const [may, setMay] = useState(false);
  useEffect(() => {
    let isWanted = true;
    setMay(false);
    get(`may?${new URLSearchParams({ vhost: vhost || "/" })}`).then((told) => { if (isWanted) setMay(told.declare); }, () => null);
    return () => { isWanted = false; };
  }, [vhost]);
  return may;
}

/** @param {{vhost: string}} props */
function NewQueue({ vhost }) {
  const vhosts = useVhosts();
  return useMayDeclare(vhost) && html`<button class="primary" name="new-queue" onClick=${() => ask({
    title: "New queue",
    action: "Declare",
    fields: [
      { name: "vhost", label: "Virtual host", kind: "select", options: vhosts, value: vhost || vhosts[0] },
      { name: "name", label: "Name", isRequired: true },
      { name: "type", label: "Type", kind: "select", options: ["quorum", "classic"] },
      { name: "arguments", label: "Arguments", kind: "area", hint: 'JSON, such as {"x-max-length": 1000, "x-dead-letter-exchange": "dead"}' },
    ],
    act: async (values) => {
      const told = { durable: true, arguments: { "x-queue-type": values.type, ...objectIn(values.arguments, "Arguments") } };
      await askNode("PUT", path`queues/${values.vhost}/${values.name}`, told);
      notify(`The queue "${values.name}" is there.`);
      go(["queues", values.vhost, values.name]);
    },
  })}>New queue</button>`;
}
