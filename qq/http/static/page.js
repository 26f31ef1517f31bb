// Shows /api/cluster, /api/queues and /api/connections, and asks again every two seconds. The browser asks for user and password.
"use strict";

const REFRESH_MS = 2000;
const ROWS_MAX = 500; // a browser is slow with more rows, and nobody reads them

function row(cells, className) {
  const tr = document.createElement("tr");
  tr.className = className || "";
  for (const cell of cells) {
    const td = document.createElement("td");
    td.textContent = cell === null || cell === undefined ? "–" : cell; // text, never markup: names come from users
    if (typeof cell !== "string") td.className = "number";
    tr.append(td);
  }
  return tr;
}

async function read(path) {
  // The origin, because a page opened as http://user:password@host may not fetch relative to its own address.
  const answer = await fetch(location.origin + path, { headers: { Accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.reason);
  return body;
}

function mebibytes(bytes) {
  return bytes === null ? null : `${Math.round(bytes / 2 ** 20).toLocaleString("en")} MiB`;
}

function showNode(node) {
  const state = node.drained ? `${node.state}, under maintenance` : node.state;
  const tr = row([node.name, state, node.standing, node.term, node.first_index, node.last_index, node.commit_index,
    node.applied_index, node.checkpoint_index, mebibytes(node.disk_free_bytes)], node.state);
  tr.lastChild.className = node.alarm ? "number alarm" : "number";
  if (node.alarm) tr.lastChild.textContent += ", publishers wait";
  return tr;
}

function showCluster(cluster) {
  document.getElementById("cluster").textContent = `cluster ${cluster.cluster}, seen from ${cluster.node}`;
  document.getElementById("nodes").replaceChildren(...cluster.nodes.map(showNode));
}

// Fills the table of some kind of things; the first cell is the virtual host, which is shown if there are several.
function showThings(kind, things, cells) {
  const shown = things.slice(0, ROWS_MAX);
  document.getElementById(`${kind}-count`).textContent =
    shown.length < things.length ? `${shown.length} of ${things.length}` : `${things.length}`;
  document.getElementById(`${kind}s`).replaceChildren(...shown.map((thing) => {
    const tr = row([thing.vhost, ...cells(thing)]);
    tr.firstChild.className = "vhost";
    return tr;
  }));
  const vhosts = new Set(things.map((thing) => thing.vhost));
  document.getElementById(`${kind}-table`).classList.toggle("one-vhost", vhosts.size < 2);
}

function showQueues(queues) {
  showThings("queue", queues, (queue) => [queue.name, queue.type, queue.policy || "", queue.messages_ready,
    queue.messages_unacknowledged, queue.messages_delayed, queue.messages_dlx, queue.consumers]);
}

function showConnections(connections) {
  showThings("connection", connections, (connection) => [connection.name, connection.node, connection.user,
    connection.state, connection.channels]);
}

async function refresh() {
  const problem = document.getElementById("problem");
  try {
    showCluster(await read("/api/cluster"));
    showQueues(await read("/api/queues"));
    showConnections(await read("/api/connections"));
    problem.hidden = true;
  } catch (error) {
    problem.textContent = `The node does not answer: ${error.message}`;
    problem.hidden = false;
  }
  document.body.classList.toggle("stale", !problem.hidden);
  setTimeout(refresh, REFRESH_MS);
}

refresh();
