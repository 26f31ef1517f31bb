/** The members of the cluster: how far each is in the log, who leads, and who comes and goes. */
import { ask as askNode, getIfThere, path } from "../api.js";
import { bytes, duration, whole } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Badge, Card, Facts, Heading, Loading, Problem, State } from "../parts/bits.js";
import { ask } from "../parts/dialog.js";
import { notify } from "../parts/notice.js";
import { to } from "../router.js";
import { may } from "../session.js";
import { useLive } from "../stream.js";

export function Members() {
  const { told, problem } = useLive("members");
  if (!told) return problem ? html`<${Problem} problem=${problem} />` : html`<${Loading} />`;
  const { members, cluster } = told;
  return html`
    <${Heading} title="Members" note=${`${members.cluster}, version ${members.version} of the state, seen from ${members.node}`}
      aside=${may.administer() && html`<button class="primary" name="add-member" onClick=${askToAdd}>Add a member</button>`} />
    <${Problem} problem=${problem} />
    <div class="members">${members.members.map((/** @type {any} */ member) => html`<${Member} key=${member.name} member=${member} leader=${members.leader} voters=${members.members.filter((/** @type {any} */ each) => each.role === "voter").length}
      status=${cluster.nodes.find((/** @type {any} */ node) => node.name === member.name)}
      report=${told.nodes.find((/** @type {any} */ node) => node.name === member.name)} head=${headOf(cluster)} />`)}</div>
    ${members.removed.length > 0 && html`<${Card} title="Removed before"><${Facts} rows=${members.removed.map((/** @type {any} */ each) => [each.name, each.id || "was awaited"])} /><//>`}`;
}

/** The last entry that anybody has told of. @param {any} cluster */
const headOf = (cluster) => Math.max(0, ...cluster.nodes.map((/** @type {any} */ node) => node.last_index ?? 0));

/** @param {{member: any, leader: string | null, voters: number, status: any, report: any, head: number}} props */
function Member({ member, leader, voters, status, report, head }) {
  const isLeader = member.name === leader, isDown = member.state === "down";
  return html`<section class=${`card member ${isLeader ? "leads" : ""}`}>
    <div class="card-head"><h2>${member.name}</h2><span class="badges"><${State} is=${member.state} />
      ${member.role !== "voter" && html`<${State} is=${member.role} />`}${member.drained && html`<${Badge} state="warn">under maintenance<//>`}</span></div>
    <${Position} status=${status} head=${head} />
    <${Facts} rows=${[
      ["Address", `${member.host}:${member.port}`], ["Lag", isLeader ? "–" : member.lag === null || isDown ? "unknown" : `${whole(member.lag)} entries`], ["Committed", whole(status?.commit_index)], ["Applied", whole(status?.applied_index)],
      ["Checkpoint", whole(status?.checkpoint_index)], ["Term", whole(status?.term)],
      ["Memory", report?.mem_used === undefined ? "–" : `${bytes(report.mem_used)} of ${bytes(report.mem_limit)}`], ["Disk free", bytes(report?.disk_free)],
      ["Connections", report?.sockets_used === undefined ? "–"
        : html`<a href=${to(["connections"], { node: member.name })}>${`${whole(report.sockets_used)} of ${whole(report.sockets_total)}`}</a>`], ["Up", duration(report?.uptime)],
      ["Clock", isDown || !status || status.clock_offset_ms === null ? "unknown" : clockOf(status.clock_offset_ms)], ["Release", report?.applications?.[0]?.version || "–"],
      ["Versions of the state", member.versions ?? "–"],
    ]} />
    ${may.administer() && html`<${MemberActions} member=${member} isLeader=${isLeader} voters=${voters} />`}
  </section>`;
}

/** @param {number} ms that a clock is ahead of the cluster's */
const clockOf = (ms) => (ms === 0 ? "exact" : `${Math.abs(ms)} ms ${ms > 0 ? "ahead" : "behind"}`);

/** The log of a member against the longest one. @param {{status: any, head: number}} props */
function Position({ status, head }) {
  if (!status || status.last_index === null) return html`<div class="bar"><i style=${{ width: "0%" }}></i></div>`;
  const from = Math.min(status.first_index ?? 0, head), span = Math.max(head - from, 1);
  const share = (/** @type {number} */ index) => `${Math.max(0, Math.min(100, (100 * (index - from)) / span))}%`;
  return html`<div class="bar" title=${`Log from ${whole(from)} to ${whole(status.last_index)}; the longest ends at ${whole(head)}`}>
    <i class="has" style=${{ width: share(status.last_index) }}></i><i style=${{ width: share(status.applied_index ?? 0) }}></i></div>`;
}

/** How many more nodes may fail when so many voters are left. @param {number} left */
const tolerated = (left) => (left < 3 ? `Then ${left === 1 ? "a single voter is" : `${left} voters are`} left, and none may fail.`
  : `Then ${left} voters are left, of which ${Math.floor((left - 1) / 2)} may fail.`);

/** @param {{member: any, isLeader: boolean, voters: number}} props */
function MemberActions({ member, isLeader, voters }) {
  const { name } = member, isDown = member.state === "down";
  return html`<div class="buttons start">
    ${!isLeader && !isDown && member.role === "voter" && !member.drained && html`<button name=${`lead-${name}`} onClick=${() => ask({
      title: `Have ${name} lead?`, text: "Clients notice some tens of milliseconds, and nothing else.", action: "Transfer",
      act: () => askNode("PUT", "cluster/leader", { to: name }).then((told) => notify(`${told.leader} leads.`)) })}>Make leader</button>`}
    ${member.drained ? html`<button name=${`revive-${name}`} onClick=${() => ask({
      title: `End the maintenance of ${name}?`, text: "It takes clients and may lead again.", action: "Revive",
      act: () => askNode("DELETE", path`cluster/members/${name}/drain`).then(() => notify(`${name} serves clients again.`)) })}>Revive</button>`
      : !isDown && html`<button name=${`drain-${name}`} onClick=${() => askToDrain(name)}>Drain</button>`}
    <button class="danger" name=${`remove-${name}`} onClick=${() => ask({
      title: `Remove ${name}?`, text: html`It leaves the cluster for good, and its data directory may not come back. ${member.role === "voter" && tolerated(voters - 1)}<${SafeToStop} name=${name} />`, action: "Remove", isDangerous: true, word: name,
      act: () => askNode("DELETE", `${path`cluster/members/${name}`}?id=${member.id ?? ""}`).then(() => notify(`${name} was removed.`)) })}>Remove</button>
  </div>`;
}

/** @param {string} name */
const askToDrain = (name) => ask({
  title: `Drain ${name}?`, text: html`It closes its clients' connections, which go to other nodes, and does not lead.<${SafeToStop} name=${name} />`, action: "Drain",
  act: () => askNode("PUT", path`cluster/members/${name}/drain`).then(() => notify(`${name} is under maintenance.`)),
});

/** Whether the cluster goes on without a node. @param {{name: string}} props */
function SafeToStop({ name }) {
  const [text, setText] = useState("");
  useEffect(() => {
    getIfThere(path`health/checks/safe-to-stop/${name}`).then(() => setText("The cluster goes on without it."), (error) => setText(error.message));
  }, [name]);
  return text && html`<span class="safe"> ${text}</span>`;
}

const askToAdd = () => ask({
  title: "Add a member", action: "Add",
  text: "It is awaited until it is started at this address, with an empty data directory.",
  fields: [{ name: "name", label: "Name", isRequired: true }, { name: "host", label: "Host", isRequired: true, hint: "Where the other members reach it" },
    { name: "port", label: "Port for other members", kind: "number", value: 25672 }],
  act: (values) => askNode("PUT", path`cluster/members/${values.name}`, { host: values.host, port: Number(values.port) }).then(() => notify(`${values.name} is awaited.`)),
});
