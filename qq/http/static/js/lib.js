/**
 * The libraries that every file here builds on: preact with its hooks, and htm in place of JSX.
 *
 * What is put into a template as a value is text, never markup: names come from users.
 */
import htm from "../vendor/htm.mjs";
import { h } from "../vendor/preact.mjs";

export { render } from "../vendor/preact.mjs";
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.mjs";
export const html = htm.bind(h);
