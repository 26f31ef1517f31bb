/**
 * Where one is: #/queues/%2F/orders?range=1h. Every view has an address that can be sent to a colleague.
 *
 * @typedef {object} Place
 * @property {string[]} parts
 * @property {Record<string, string>} values
 */
import { Store, useStore } from "./store.js";

/** @returns {Place} */
function read() {
  const [where, values] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = where.split("/").map(decoded);
  return { parts: parts[0] ? parts : ["overview"], values: Object.fromEntries(new URLSearchParams(values ?? "")) };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** @type {Store<Place>} */
const place = new Store(read());
addEventListener("hashchange", () => place.set(read()));

export const usePlace = () => useStore(place);
export const placeNow = () => place.value;

/**
 * The address of a view.
 * @param {string[]} parts
 * @param {Record<string, any>} [values]
 */
export function to(parts, values = {}) {
  const told = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(told.map(([name, value]) => [name, String(value)])).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** @param {string[]} parts @param {Record<string, any>} [values] */
export function go(parts, values = {}) {
  location.hash = to(parts, values);
}

/** Change values of the place where one is, without a step for the browser's "back". @param {Record<string, any>} values */
export function adjust(values) {
  const now = place.value;
  history.replaceState(null, "", to(now.parts, { ...now.values, ...values }));
  place.set(read());
}
