/** The first line of every view: whether the cluster is well, in the words of `qq status`, and a strip of its nodes. */
import { clock } from "../format.js";
import { html } from "../lib.js";
import { to } from "../router.js";
import { may } from "../session.js";
import { useStore } from "../store.js";
import { health, lastHeardMs, useLive, useLiveness } from "../stream.js";

/** @type {Record<string, string>} */
export const SEVERITIES = { critical: "Critical", warning: "Warning", info: "Well" };

export function Verdict() {
  const told = useStore(health), isLost = useLiveness() === "waiting";
  if (!told && !isLost) return html`<section class="verdict"></section>`;
  const severity = isLost ? "critical" : told.severity;
  const node = told?.node ?? "The node";
  const text = isLost ? `${node} has not answered since ${clock(lastHeardMs())}; all that is shown here is from then` : told.text;
  return html`<section class=${`verdict ${severity}`} role="status" aria-label="Verdict">
    <strong class="word">${SEVERITIES[severity]}</strong>
    <span class="text">${text}</span>
    <span class=${`strip ${isLost ? "old" : ""}`}>${(told?.nodes ?? []).map((/** @type {any} */ each) => html`<${NodeChip} key=${each.name} node=${each}
      isLeader=${each.name === told.leader} isLost=${isLost && each.name === told.node} />`)}</span>
  </section>`;
}

/** @param {{node: any, isLeader: boolean, isLost: boolean}} props */
function NodeChip({ node, isLeader, isLost }) {
  const isDown = isLost || node.state === "down";
  const state = isDown ? "down" : node.drained ? "drained" : node.alarm ? "alarm" : isLeader ? "leader"
    : node.role === "learner" || node.role === "awaited" ? node.role : node.state === "leader" ? "follower" : node.state;
  const look = isDown || node.alarm ? "bad" : node.drained || !["leader", "follower"].includes(state) ? "warn" : "good";
  const inside = html`<b>${node.name}</b> ${state}`;
  return may.monitor() ? html`<a class=${`node ${look}`} href=${to(["members"])}>${inside}</a>` : html`<span class=${`node ${look}`}>${inside}</span>`;
}

/** Follows the verdict in a view that follows nothing else. */
export function HealthOnly() {
  useLive("health");
  return null;
}
