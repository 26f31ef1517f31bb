/** Connections and channels of all nodes: what flows, what waits, and closing one. */
import { ask as askNode, get, path } from "../api.js";
import { bytes, moment, rate, short, whole } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Badge, Card, ConnectionLink, Facts, Heading, Loading, Problem, State } from "../parts/bits.js";
import { ask } from "../parts/dialog.js";
import { notify } from "../parts/notice.js";
import { listValues, nothingFound, Pager, Search, Table } from "../parts/table.js";
import { adjust, go, to, usePlace } from "../router.js";
import { may, session } from "../session.js";
import { useLive } from "../stream.js";
import { useVhost, useVhosts } from "../vhosts.js";

/** @type {import("../parts/table.js").Column[]} */
const CONNECTIONS = [
  { key: "name", label: "Name", sort: "user_provided_name", show: (each) => html`<${ConnectionLink} name=${each.name} client=${each.user_provided_name} />` },
  { key: "vhost", from: "desk", label: "Virtual host", sort: "vhost", show: (each) => each.vhost },
  { key: "node", from: "tablet", label: "Node", sort: "node", show: (each) => each.node },
  { key: "user", from: "tablet", label: "User", sort: "user", show: (each) => each.user },
  { key: "state", label: "State", sort: "state", show: (each) => html`<${State} is=${each.state} />` },
  { key: "protocol", from: "desk", label: "Protocol", sort: "protocol", show: (each) => each.protocol },
  { key: "ssl", from: "desk", label: "TLS", sort: "ssl", show: (each) => (each.ssl ? html`<${Badge} state="good">${each.ssl_protocol}<//>` : "–") },
  { key: "channels", label: "Channels", sort: "channels", isNumber: true, show: (each) => short(each.channels) },
  { key: "in", from: "tablet", label: "From client", sort: "recv_oct_details.rate", isNumber: true, show: (each) => `${bytes(each.recv_oct_details?.rate ?? 0)}/s` },
  { key: "out", from: "tablet", label: "To client", sort: "send_oct_details.rate", isNumber: true, show: (each) => `${bytes(each.send_oct_details?.rate ?? 0)}/s` },
];

/** @type {import("../parts/table.js").Column[]} */
const CHANNELS = [
  { key: "name", label: "Channel", sort: "user_provided_name", show: (each) => html`<${ConnectionLink} name=${each.connection_details.name}
    client=${each.connection_details.user_provided_name} more=${` (${each.number})`} />` },
  { key: "node", from: "tablet", label: "Node", sort: "node", show: (each) => each.node },
  { key: "user", from: "desk", label: "User", sort: "user", show: (each) => each.user },
  { key: "state", label: "State", sort: "state", show: (each) => html`<span class="badges"><${State} is=${each.state} />
    ${each.confirm && html`<${Badge} state="plain">confirms<//>`}${each.transactional && html`<${Badge} state="plain">transactions<//>`}</span>` },
  { key: "consumers", from: "tablet", label: "Consumers", sort: "consumer_count", isNumber: true, show: (each) => short(each.consumer_count) },
  { key: "prefetch", from: "desk", label: "Prefetch", sort: "prefetch_count", isNumber: true, show: (each) => each.prefetch_count || "no limit" },
  { key: "unacked", label: "Unacked", sort: "messages_unacknowledged", isNumber: true, show: (each) => short(each.messages_unacknowledged) },
  { key: "unconfirmed", from: "desk", label: "Unconfirmed", sort: "messages_unconfirmed", isNumber: true, show: (each) => short(each.messages_unconfirmed) },
  { key: "publish", from: "tablet", label: "Published", sort: "message_stats.publish_details.rate", isNumber: true, show: (each) => rate(each.message_stats?.publish_details?.rate ?? 0) },
  { key: "deliver", from: "tablet", label: "Delivered", sort: "message_stats.deliver_get_details.rate", isNumber: true, show: (each) => rate(each.message_stats?.deliver_get_details?.rate ?? 0) },
  { key: "ack", from: "desk", label: "Acknowledged", sort: "message_stats.ack_details.rate", isNumber: true, show: (each) => rate(each.message_stats?.ack_details?.rate ?? 0) },
];

/** Links of AMQP 1.0 as the list of channels has them, with their rates. @type {import("../parts/table.js").Column[]} */
const LINKS = [
  { key: "link", label: "Link", sort: "link_name", show: (each) => each.link_name },
  { key: "address", label: "Address", sort: "link_address", show: (each) => each.link_address || "of each message" },
  ...CHANNELS.filter(({ key }) => ["state", "unacked", "unconfirmed", "publish", "deliver", "ack"].includes(key)),
];

/** A credit or a window. @param {number} left */
const room = (left) => (left ? short(left) : html`<${Badge} state="warn">0<//>`);

/** @type {import("../parts/table.js").Column[]} */
const LINK_ENDS = [
  { key: "handle", from: "desk", label: "Handle", isNumber: true, show: (each) => each.handle },
  { key: "name", label: "Link", show: (each) => each.link_name },
];

/** @type {import("../parts/table.js").Column[]} */
const LINK_COUNTS = [
  { key: "credit", label: "Credit", isNumber: true, show: (each) => room(each.credit) },
  { key: "count", from: "tablet", label: "Deliveries", isNumber: true, show: (each) => short(each.delivery_count) },
];

/** @type {import("../parts/table.js").Column[]} */
const INCOMING = [
  ...LINK_ENDS,
  { key: "target", label: "Target", show: (each) => each.target_address ?? "of each message" },
  { key: "settled", from: "desk", label: "Settle mode", show: (each) => each.snd_settle_mode },
  ...LINK_COUNTS,
  { key: "unconfirmed", label: "Unconfirmed", isNumber: true, show: (each) => short(each.unconfirmed_messages) },
];

/** @type {import("../parts/table.js").Column[]} */
const OUTGOING = [
  ...LINK_ENDS,
  { key: "source", label: "Source", show: (each) => each.source_address },
  { key: "settled", from: "desk", label: "Settle mode", show: (each) => (each.send_settled ? "settled" : "unsettled") },
  ...LINK_COUNTS,
  { key: "unsettled", label: "Unsettled", isNumber: true, show: (each) => short(each.unsettled_deliveries) },
];

/** The sessions of an AMQP 1.0 connection. @param {{connection: string}} props */
function Sessions({ connection }) {
  const { told, problem } = useLive("sessions", { connection });
  if (!told) return problem ? html`<${Problem} problem=${problem} />` : html`<${Loading} />`;
  return told.items.map((/** @type {any} */ each) => html`<${Card} key=${each.channel_number} title=${`Session ${each.channel_number}`}>
    <${Facts} rows=${[
      ["Incoming window", room(each.incoming_window)], ["Client's incoming window", room(each.remote_incoming_window)],
      ["Next incoming id", whole(each.next_incoming_id)], ["Next outgoing id", whole(each.next_outgoing_id)], ["Unsettled deliveries", whole(each.outgoing_unsettled_deliveries)],
    ]} />
    ${each.incoming_links.length > 0 && html`<h3>Incoming links</h3><${Table} label="Incoming links" columns=${INCOMING} rows=${each.incoming_links} rowKey=${handle} />`}
    ${each.outgoing_links.length > 0 && html`<h3>Outgoing links</h3><${Table} label="Outgoing links" columns=${OUTGOING} rows=${each.outgoing_links} rowKey=${handle} />`}
  <//>`);
}

/** @param {any} link */
const handle = (link) => String(link.handle);

/**
 * @param {{title: string, view: string, columns: import("../parts/table.js").Column[], values?: Record<string, any>}} props
 */
function Clients({ title, view, columns, values: more = {} }) {
  const { values } = usePlace(), vhost = useVhost(), vhosts = useVhosts();
  const { told, problem, isOld } = useLive(view, { ...listValues(values, vhost), ...more });
  if (!told) return problem ? html`<${Problem} problem=${problem} />` : html`<${Loading} />`;
  return html`<${Problem} problem=${problem} /><div class="card flush">
    <${Table} label=${title} columns=${columns.filter((column) => column.key !== "vhost" || vhosts.length > 1)} rows=${told.items} isOld=${isOld}
      rowKey=${(/** @type {any} */ each) => `${each.node} ${each.name}`} empty=${nothingFound(values, `There are no ${title.toLowerCase()}.`)} />
    <${Pager} told=${told} />
  </div>`;
}

export function Connections() {
  const { node } = usePlace().values;
  return html`<${Heading} title="Connections" aside=${html`
      ${node && html`<button class="chip" name="all-nodes" aria-pressed="true" onClick=${() => adjust({ node: "", page: "" })}>of node ${node} ×</button>`}
      <${Search} label="Search by name" />`} />
    <${Clients} title="Connections" view="connections" columns=${CONNECTIONS} values=${{ node }} />`;
}

export const Channels = () => html`<${Heading} title="Channels" aside=${html`<${Search} label="Search by name" />`} />
  <${Clients} title="Channels" view="channels" columns=${CHANNELS} />`;

/** @param {{names: string[]}} props */
export function Connection({ names: [name] }) {
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  useEffect(() => { get(path`connections/${name}`).then(setTold, (error) => setProblem({ status: error.status, reason: error.message })); }, []);
  const hasLinks = told?.links !== undefined;
  const mayClose = told && (may.administer() || told.user === session.value?.name);
  return html`
    <nav class="crumbs"><a href=${to(["connections"])}>Connections</a></nav>
    <${Heading} title=${told?.user_provided_name || name} note=${told && html`<${State} is=${told.state} /> ${told.user_provided_name && name}`} aside=${mayClose && html`<button class="danger" name="close" onClick=${() => ask({
      title: "Close this connection?", text: "Its client is told why. Most clients connect again by themselves.", action: "Close", isDangerous: true,
      act: async () => {
        await askNode("DELETE", path`connections/${name}`);
        notify("The connection was closed.");
        go(["connections"]);
      } })}>Close</button>`} />
    <${Problem} problem=${problem} />
    ${told && html`<div class="columns">
      <${Card} title="Connection"><${Facts} rows=${[
        ["Node", told.node], ["User", told.user], ["Virtual host", told.vhost], ["Since", moment(told.connected_at)], ["Protocol", told.protocol],
        ["From", told.peer_host ? `${told.peer_host}:${told.peer_port}` : "–"], ["Login", told.auth_mechanism ?? "–"], ["TLS", told.ssl ? `${told.ssl_protocol}, ${told.ssl_cipher}` : "no"],
        ["Heartbeat", told.timeout === undefined ? "–" : `${told.timeout} s`], ["Received", bytes(told.recv_oct)], ["Sent", bytes(told.send_oct)], ["Waits to be sent", bytes(told.send_pend)], ...(hasLinks
          ? [["Container", told.container_id], ["Sessions", whole(told.channels)], ["Links", whole(told.links)]]
          : [["Channels", whole(told.channels)]]),
      ]} /><//>
      <${Card} title="Client"><${Facts} rows=${Object.entries(told.client_properties ?? {}).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)])} /><//>
    </div>`}
    ${hasLinks && html`<h2>Sessions</h2><${Sessions} connection=${name} />`}
    <h2>${hasLinks ? "Links" : "Channels"}</h2>
    <${Clients} title=${hasLinks ? "Links" : "Channels"} view="channels" columns=${hasLinks ? LINKS : CHANNELS} values=${{ connection: name }} />`;
}
