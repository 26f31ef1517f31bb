/** Requests to the node. */
import { NODE } from "./node.js";
import { check, credentials } from "./session.js";

export class ApiError extends Error {
  /** @param {number} status @param {string} reason */
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

/** A path below /api of parts that may be any text. @param {TemplateStringsArray} texts @param {...string} names */
export function path(texts, ...names) {
  // Browsers take these names out of a path, however they are written: something else would be asked for.
  const isEscaped = names.some((name) => name === "." || name === "..");
  const before = isEscaped ? "~" : "";
  const whole = texts.reduce((made, text, at) => made + before + encodeURIComponent(names[at - 1]) + text);
  return isEscaped ? `escaped/${whole}` : whole;
}

/** @param {Record<string, any>} values Those that are undefined, null or "" are left out. */
export function query(values) {
  const told = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return told.length ? `?${new URLSearchParams(told.map(([name, value]) => [name, String(value)]))}` : "";
}

/**
 * Ask the node. Throws ApiError.
 * @param {string} method
 * @param {string} where below /api
 * @param {any} [body] sent as JSON, unless it is a text
 * @returns {Promise<any>} the document; null if there is none
 */
export async function ask(method, where, body) {
  return parsed(await askText(method, where, body));
}

/**
 * Ask the node. Throws ApiError.
 * @param {string} method
 * @param {string} where below /api
 * @param {any} [body] sent as JSON, unless it is a text
 * @returns {Promise<string>} the text of the answer, in which no number has been rounded
 */
export async function askText(method, where, body) {
  const headers = /** @type {Record<string, string>} */ ({ Accept: "application/json", ...credentials(method) });
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const sent = body === undefined || typeof body === "string" ? body : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(`${NODE}api/${where}`, { method, headers, body: sent });
  } catch {
    throw new ApiError(0, "The node does not answer.");
  }
  const text = await answer.text();
  if (answer.ok) return text;
  if (answer.status === 401) await check().catch(() => null);
  const told = parsed(text);
  throw new ApiError(answer.status, told?.explanation || told?.reason || told?.error || `The node answered ${answer.status}.`);
}

/** @param {string} text */
function parsed(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

export const get = (/** @type {string} */ where) => ask("GET", where);

/** What a path answers; null if the node does not have it. @param {string} where */
export async function getIfThere(where) {
  try {
    return await get(where);
  } catch (error) {
    if (error instanceof ApiError && [401, 404, 405].includes(error.status)) return null;
    throw error;
  }
}
