/**
 * One stream from the node with what the visible view shows.
 *
 * EventSource cannot say that a session has ended, nor be told to be quiet while nobody looks: so events are read from a
 * fetch. The node ends each stream after some minutes, and is asked for the next one at once.
 */
import { clock } from "./format.js";
import { NODE } from "./node.js";
import { check, credentials } from "./session.js";
import { Store, useStore } from "./store.js";
import { query } from "./api.js";
import { useEffect, useState } from "./lib.js";

const WAITS_MS = [500, 1000, 2000, 5000, 10000];
/** Silence after which the node counts as gone; it sends a line every 3 s. */
const SILENCE_MS = 8000;

/** "starting", "live", "waiting" for the node, or "paused" while the page is hidden. @type {Store<string>} */
export const liveness = new Store("starting");

/** The verdict on the cluster that the node sent last. @type {Store<any>} */
export const health = new Store(/** @type {any} */ (null));

/** When the node sent anything for the last time, in milliseconds since 1970. */
let heardMs = Date.now();
export const lastHeardMs = () => heardMs;

/**
 * Follow a view until the result is called. It is shown as null when there is nothing of it any more.
 * @param {string} where
 * @param {(document: any) => void} show
 * @param {(problem: {status: number, reason: string} | null) => void} complain
 */
function follow(where, show, complain) {
  let stopped = false, failures = 0;
  /** @type {AbortController | null} */
  let current = null;
  /** @type {any} */
  let timer = 0;

  async function run() {
    const controller = new AbortController();
    current = controller;
    let wait = 0;
    try {
      await readEvents(where, controller, (name, text) => {
        failures = 0;
        if (name === "health") {
          health.set(JSON.parse(text));
          return;
        }
        if (name === "view") show(JSON.parse(text));
        if (name === "gone") show(null);
        complain(name === "view" ? null : { status: name === "gone" ? 404 : 503, reason: text });
      });
    } catch (error) {
      if (stopped || document.hidden) return;
      liveness.set("waiting");
      wait = WAITS_MS[Math.min(failures++, WAITS_MS.length - 1)];
      const status = /** @type {any} */ (error).status ?? 0;
      if (status === 401) await check().catch(() => null);
      if (status === 404) show(null);
      complain({ status, reason: /** @type {any} */ (error).reason ?? `The node has not answered since ${clock(heardMs)}. Trying again.` });
    }
    if (!stopped && current === controller) timer = setTimeout(run, wait);
  }

  function look() {
    clearTimeout(timer);
    if (document.hidden) {
      liveness.set("paused");
      current?.abort();
      current = null;
    } else if (!current) run();
  }

  document.addEventListener("visibilitychange", look);
  if (document.hidden) look(); else run();
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
    current?.abort();
  };
}

/**
 * @param {string} where
 * @param {AbortController} controller
 * @param {(name: string, text: string) => void} take
 */
async function readEvents(where, controller, take) {
  let silence = setTimeout(() => controller.abort(), SILENCE_MS);
  try {
    await readAnswer(await fetch(NODE + where, { headers: credentials(), signal: controller.signal }), take, () => {
      clearTimeout(silence);
      silence = setTimeout(() => controller.abort(), SILENCE_MS);
      heardMs = Date.now();
      if (liveness.value !== "live") liveness.set("live");
    });
  } finally {
    clearTimeout(silence);
  }
}

/**
 * @param {Response} answer
 * @param {(name: string, text: string) => void} take
 * @param {() => void} heard called whenever the node sends anything
 */
async function readAnswer(answer, take, heard) {
  if (!answer.ok || !answer.body) {
    const told = await answer.json().catch(() => ({}));
    throw { status: answer.status, reason: told.reason };
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    const events = (rest + value).split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) {
      const match = /^event: (\w+)\ndata: ([^]*)$/.exec(event);
      if (match) take(match[1], match[2]);
    }
  }
}

/**
 * What a view shows, and goes on showing as it changes. While another page of the same view is on its way, the last one
 * is still there.
 * @param {string} view
 * @param {Record<string, any>} [values]
 * @returns {{told: any, problem: {status: number, reason: string} | null, isOld: boolean}}
 */
export function useLive(view, values = {}) {
  const where = `api/stream${query({ view, ...values })}`;
  const [state, setState] = useState({ where: "", view: "", told: /** @type {any} */ (null), problem: /** @type {any} */ (null) });
  useEffect(() => follow(
    where,
    (told) => setState((last) => ({ ...last, where, view, told })),
    (problem) => setState((last) => (last.problem === problem ? last : { ...last, problem })),
  ), [where]);
  const told = state.view === view ? state.told : null;
  return { told, problem: state.problem, isOld: state.where !== where || state.problem !== null };
}

export const useLiveness = () => useStore(liveness);
