/** What the broker does as a whole: rates, depths, latencies, alarms, and what is wrong. */
import { bytes, duration, milliseconds, rate, recent, short, whole } from "../format.js";
import { html } from "../lib.js";
import { Card, Figure, Heading, Loading, Problem, State } from "../parts/bits.js";
import { Chart, RangeChooser, useHistory, useRange } from "../parts/chart.js";
import { SEVERITIES } from "../parts/verdict.js";
import { to } from "../router.js";
import { may } from "../session.js";
import { useLive } from "../stream.js";
import { useVhost, useVhosts } from "../vhosts.js";

export function Overview() {
  const vhost = useVhost(), vhosts = useVhosts(), range = useRange();
  const { told, problem } = useLive("overview", { vhost });
  const thing = vhost ? { vhost } : may.monitor() ? {} : null;
  const known = useHistory(thing, told?.sample, range);
  if (!told) return problem ? html`<${Problem} problem=${problem} />` : html`<${Loading} />`;
  return html`
    <${Heading} title=${told.cluster_name} note=${html`qq ${told.version}${told.cluster && ` · seen from ${told.cluster.node}`}`}
      aside=${thing && html`<${RangeChooser} />`} />
    <${Problem} problem=${problem} />
    <${Alarms} told=${told} />
    <${Findings} doctor=${told.doctor} />
    <${Figures} told=${told} vhost=${vhost} />
    ${thing ? html`<${Charts} known=${known} range=${range} isWhole=${!vhost} />`
      : html`<p class="muted">${vhosts.length > 1 ? "Choose a virtual host above to see its charts." : "The charts are for users with the tag monitoring."}</p>`}
    ${told.cluster && html`<${Nodes} cluster=${told.cluster} />`}`;
}

/** @param {{told: any}} props */
function Alarms({ told }) {
  const texts = (told.alarms ?? []).map((/** @type {any} */ alarm) =>
    `${alarm.node} is low on ${alarm.resource}: publishers wait until that is over.`);
  if (told.flaw) texts.push(`This node does not take full part in its cluster: ${told.flaw}`);
  return texts.map((/** @type {string} */ text) => html`<p class="alarm" role="alert" key=${text}>${text}</p>`);
}

/** The findings of `qq doctor`, those of a kind together. @param {{doctor: any}} props */
function Findings({ doctor }) {
  return doctor?.groups.length > 0 && html`<${Card} title="What the doctor says" aside=${html`<span class="muted">${doctor.verdict.split(";")[0]}</span>`}>
    <ul class="findings">${doctor.groups.map((/** @type {any} */ group) => html`<${Group} key=${group.code + group.title} group=${group}
      findings=${group.findings.map((/** @type {number} */ at) => doctor.findings[at])} />`)}</ul>
    ${doctor.omitted > 0 && html`<p class="muted">${`${whole(doctor.omitted)} more are left out.`}</p>`}
  <//>`;
}

/** @param {{group: any, findings: any[]}} props */
function Group({ group, findings }) {
  const more = group.count - findings.length;
  const since = group.since && html`<span class="muted"> ${`since ${recent(Date.parse(group.since))}`}</span>`;
  return html`<li class=${group.severity}>
    <span class="severity">${WORDS[group.severity]}</span>
    <div>
      ${findings.length === 1 ? html`<p><${Subject} finding=${findings[0]} />: ${findings[0].text}${since}</p>`
        : html`<p><strong>${group.title}</strong>: ${findings.map((each, at) => html`${at > 0 && ", "}<${Subject} key=${at} finding=${each} isShort=${true} />`)}${
          more > 0 && ` and ${whole(more)} more`}${since}</p>`}
      <p class="muted">${withCode(group.advice)}</p>
    </div>
  </li>`;
}

/** What a finding is about, as a link to it. @param {{finding: any, isShort?: boolean}} props */
function Subject({ finding, isShort = false }) {
  const { object, subject, text } = finding;
  if (!object) return isShort ? html`<span title=${text}>${subject}</span>` : html`<strong>${subject}</strong>`;
  const isNamed = isShort && subject.startsWith(object.kind);
  const shown = !isNamed ? subject : object.vhost && object.vhost !== "/" ? `${object.name} (${object.vhost})` : object.name;
  return html`<a class="name" href=${placeOf(object)} title=${isShort ? text : undefined}>${shown}</a>`;
}

/** A text with its parts between backticks as code. @param {string} text */
const withCode = (text) => text.split("`").map((part, at) => (at % 2 ? html`<code key=${at}>${part}</code>` : part));

/** @type {Record<string, string>} */
const WORDS = { ...SEVERITIES, info: "Info" };

/** The address of the view of an object. @param {{kind: string, vhost?: string, name: string}} object */
function placeOf({ kind, vhost, name }) {
  switch (kind) {
    case "queue": return to(["queues", vhost ?? "/", name]);
    case "connection": return to(["connections", name]);
    case "user": return to(["users", name]);
    case "sink": return to(["sinks"], { vhost, name });
    case "shovel": return to(["dead-letters"], { vhost });
    default: return to(["members"]);
  }
}

/** @param {{told: any, vhost: string}} props */
function Figures({ told, vhost }) {
  const { message_stats: stats, queue_totals: lengths, object_totals: totals } = told;
  return html`<div class="figures">
    <${Figure} label="Published" value=${rate(stats.publish_details.rate)} note=${`${short(stats.publish)} since the start`} />
    <${Figure} label="Delivered" value=${rate(stats.deliver_get_details.rate)} note=${`${rate(stats.redeliver_details.rate)} again`} />
    <${Figure} label="Acknowledged" value=${rate(stats.ack_details.rate)} note=${`${short(stats.ack)} since the start`} />
    <${Figure} label="Ready" value=${short(lengths.messages_ready)} note=${`${short(lengths.messages_unacknowledged)} unacknowledged`} />
    <${Figure} label="Queues" value=${html`<a href=${to(["queues"], { vhost })}>${whole(totals.queues)}</a>`} note=${`${whole(totals.exchanges)} exchanges`} />
    <${Figure} label="Connections" value=${html`<a href=${to(["connections"], { vhost })}>${whole(totals.connections)}</a>`}
      note=${`${whole(totals.channels)} channels, ${whole(totals.consumers)} consumers`} />
  </div>`;
}

/** @param {{known: Record<string, number[]>, range: string, isWhole: boolean}} props */
function Charts({ known, range, isWhole }) {
  const { times } = known;
  const line = (/** @type {string} */ label, /** @type {string} */ name, /** @type {number} */ colour) =>
    ({ label, values: known[name] ?? [], colour });
  const mean = (/** @type {string} */ label, /** @type {string} */ total, /** @type {string} */ count, /** @type {number} */ colour) =>
    ({ label, values: (known[count] ?? []).map((value, at) => (value ? known[total][at] / value : 0)), colour });
  return html`<div class="charts">
    <${Chart} title="Messages a second" times=${times} range=${range} format=${rate} lines=${[
      line("published", "publish", 1), line("delivered", "deliver_get", 2), line("acked", "ack", 3), line("redelivered", "redeliver", 4)]} />
    <${Chart} title="Messages in queues" times=${times} range=${range} format=${short} lines=${[
      line("ready", "messages_ready", 1), line("unacknowledged", "messages_unacknowledged", 4)]} />
    ${isWhole && html`
      <${Chart} title="Latency at this node" times=${times} range=${range} format=${milliseconds} lines=${[
        mean("commit", "commit_ms", "commits", 1), mean("write and sync", "write_ms", "writes", 5)]} />
      <${Chart} title="Clients" times=${times} range=${range} format=${short} lines=${[
        line("connections", "connections", 1), line("channels", "channels", 2), line("consumers", "consumers", 3)]} />
      <${Chart} title="Memory of this node" times=${times} range=${range} format=${bytes} lines=${[line("memory", "memory_bytes", 5)]} />
      <${Chart} title="Free disk of this node" times=${times} range=${range} format=${bytes} lines=${[line("free", "disk_free_bytes", 3)]} />`}
  </div>`;
}

/** @param {{cluster: any}} props */
function Nodes({ cluster }) {
  return html`<${Card} title="Nodes" aside=${html`<a href=${to(["members"])}>Members</a>`}>
    <div class="scroll"><table aria-label="Nodes">
      <thead><tr><th scope="col">Name</th><th scope="col">State</th><th scope="col" class="number">Committed</th>
        <th scope="col" class="number">Applied</th><th scope="col" class="number">Disk free</th><th scope="col" class="number">Clock</th></tr></thead>
      <tbody>${cluster.nodes.map((/** @type {any} */ node) => html`<tr key=${node.name}>
        <td>${node.name}</td>
        <td><${State} is=${node.state} /> ${node.drained && html`<${State} is="drained" />`}</td>
        <td class="number">${whole(node.commit_index)}</td><td class="number">${whole(node.applied_index)}</td>
        <td class=${`number ${node.alarm ? "bad" : ""}`}>${bytes(node.disk_free_bytes)}</td>
        <td class="number">${node.clock_offset_ms === null ? "–" : `${node.clock_offset_ms >= 0 ? "+" : "−"}${duration(Math.abs(node.clock_offset_ms))}`}</td>
      </tr>`)}</tbody>
    </table></div>
  <//>`;
}
