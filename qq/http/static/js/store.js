/** Values that several parts of the page show: whoever uses one is drawn again when it changes. */
import { useEffect, useState } from "./lib.js";

/** @template T */
export class Store {
  /** @param {T} value */
  constructor(value) {
    this.value = value;
    /** @type {Set<(value: T) => void>} */
    this.listeners = new Set();
  }

  /** @param {T} value */
  set(value) {
    this.value = value;
    for (const listener of [...this.listeners]) listener(value);
  }
}

/**
 * The value of a store, in a component.
 * @template T
 * @param {Store<T>} store
 * @returns {T}
 */
export function useStore(store) {
  const [value, setValue] = useState(store.value);
  useEffect(() => {
    const listener = (/** @type {T} */ changed) => setValue(() => changed);
    store.listeners.add(listener);
    listener(store.value);
    return () => { store.listeners.delete(listener); };
  }, [store]);
  return value;
}

/**
 * What this browser remembers under a name. Where it remembers nothing, the page works all the same.
 * @param {string} name
 * @param {any} otherwise
 */
export function remembered(name, otherwise) {
  try {
    const text = localStorage.getItem(`qq.${name}`);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

/**
 * @param {string} name
 * @param {any} value
 */
export function remember(name, value) {
  try {
    localStorage.setItem(`qq.${name}`, JSON.stringify(value));
  } catch { /* it is forgotten when the page is closed */ }
}
