/**
 * Who has logged in, and what they may do by their tags.
 *
 * The password is not kept: the node has given the browser a cookie that scripts cannot read.
 */
import { NODE } from "./node.js";
import { Store } from "./store.js";

/**
 * @typedef {object} Session
 * @property {string} name
 * @property {string[]} tags
 * @property {string} csrf_token
 */

/** null: nobody has logged in; undefined: it is not known yet. @type {Store<Session | null | undefined>} */
export const session = new Store(/** @type {any} */ (undefined));

/** @param {string} [method] @returns {Record<string, string>} */
export function credentials(method = "GET") {
  /** @type {Record<string, string>} */
  const headers = { "X-Requested-With": "qq-page" };
  if (method !== "GET" && session.value?.csrf_token) headers["X-CSRF-Token"] = session.value.csrf_token;
  return headers;
}

export async function restore() {
  const answer = await fetch(`${NODE}api/session`, { headers: credentials() });
  if (answer.ok) goOn();
  session.set(answer.ok ? await answer.json() : null);
}

const LEFT = "qq-left";

/** Log in with the page of who issues tokens, and come back to where one is. */
export function leaveToLogIn() {
  sessionStorage.setItem(LEFT, location.hash);
  location.assign(`${NODE}api/oauth2/login`);
}

/** Go to the place where somebody was before that login. */
function goOn() {
  const left = sessionStorage.getItem(LEFT);
  sessionStorage.removeItem(LEFT);
  if (left && !location.hash) location.hash = left;
}

/** Whether there is such a page. */
export async function hasIssuer() {
  const answer = await fetch(`${NODE}api/auth`, { headers: credentials() });
  return answer.ok && (await answer.json()).oauth_enabled === true;
}

/** Returns what is wrong, or "". @param {string} username @param {string} password */
export async function login(username, password) {
  const body = new URLSearchParams({ username, password });
  const answer = await fetch(`${NODE}api/login`, { method: "POST", body, headers: credentials() });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) return answer.status === 401 ? "This user and password do not fit, or the user may not log in here."
    : told.reason || `The node answered ${answer.status}.`;
  session.set(told);
  return "";
}

export async function logout() {
  await fetch(`${NODE}api/session`, { method: "DELETE", headers: credentials("DELETE") }).catch(() => null);
  session.set(null);
}

/**
 * Look whether the session is still good, after a 401: RabbitMQ's API answers so, too, to what a user may not do.
 * @returns {Promise<void>}
 */
export async function check() {
  const answer = await fetch(`${NODE}api/session`, { headers: credentials() });
  if (answer.status === 401) session.set(null);
}

/** @param {...string} tags */
const has = (...tags) => tags.some((tag) => session.value?.tags.includes(tag));

export const may = {
  administer: () => has("administrator"),
  monitor: () => has("monitoring", "administrator"),
  setPolicies: () => has("policymaker", "administrator"),
};
