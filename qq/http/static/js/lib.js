/**
 * The libraries that every file here builds on: preact with its hooks, and htm in place of JSX.
 *
 * What is put into a template as a value is text, never markup: names come from users.
 */
import * as hooks from "../vendor/hooks.mjs";
import htm from "../vendor/htm.mjs";
import { h } from "../vendor/preact.mjs";

export { render } from "../vendor/preact.mjs";

/** @type {(texts: TemplateStringsArray, ...values: any[]) => any} */
export const html = /** @type {any} */ (htm).bind(h);

/** @type {<T>(value: T | (() => T)) => [T, (next: T | ((last: T) => T)) => void]} */
export const useState = /** @type {any} */ (hooks).useState;
/** @type {<T>(value: T) => {current: T}} */
export const useRef = /** @type {any} */ (hooks).useRef;
/** @type {(effect: () => void | (() => void), on?: any[]) => void} */
export const useEffect = /** @type {any} */ (hooks).useEffect;
/** @type {(effect: () => void | (() => void), on?: any[]) => void} */
export const useLayoutEffect = /** @type {any} */ (hooks).useLayoutEffect;
