/** Charts over time, drawn by uPlot, in the colours of the theme. */
import library from "../../vendor/uPlot.mjs";
import { get, query } from "../api.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { adjust, usePlace } from "../router.js";
import { useStore } from "../store.js";
import { theme } from "../theme.js";

const Plot = /** @type {any} */ (library);
/** How far back, in seconds. @type {Record<string, [number, string]>} */
const RANGES = { "15m": [900, "15 min"], "1h": [3600, "1 h"], "8h": [28800, "8 h"], "24h": [86400, "24 h"], "7d": [604800, "7 d"] };
const HEIGHT = 176;
const MINUTE_S = 60, DAY_S = 86400;
const YOUNG_S = 120;
const SYNC = "all";

/** @returns {string} the range in the address */
export const useRange = () => (usePlace().values.range in RANGES ? usePlace().values.range : "15m");

export function RangeChooser() {
  const range = useRange();
  return html`<div class="segments" role="group" aria-label="How far back">
    ${Object.entries(RANGES).map(([key, [, label]]) => html`<button key=${key} aria-pressed=${key === range}
      onClick=${() => adjust({ range: key })}>${label}</button>`)}
  </div>`;
}

/**
 * The history of a thing: asked for once, and then each new sample is added.
 * @param {Record<string, any> | null} thing the values of /api/history; null if there is none for this user
 * @param {any} sample the newest one, as a stream tells it
 * @param {string} range
 * @returns {Record<string, number[]>}
 */
export function useHistory(thing, sample, range) {
  const where = thing && `history${query({ ...thing, age: RANGES[range][0] })}`;
  const [known, setKnown] = useState(/** @type {Record<string, number[]>} */ ({ times: [] }));
  useEffect(() => {
    let isWanted = true;
    setKnown({ times: [] });
    if (where) get(where).then((told) => { if (isWanted) setKnown(told); }, () => null);
    return () => { isWanted = false; };
  }, [where]);
  useEffect(() => {
    if (sample?.time) setKnown((last) => grown(last, sample, RANGES[range][0] * 1000));
  }, [sample?.time]);
  return known;
}

/** @param {Record<string, number[]>} last @param {Record<string, number>} sample @param {number} ageMs */
function grown(last, sample, ageMs) {
  const { times } = last;
  if (!times.length || sample.time <= times[times.length - 1]) return last;
  const spare = times.findIndex((time) => time >= sample.time - ageMs);
  /** @type {Record<string, number[]>} */
  const next = { times: [...times.slice(Math.max(spare, 0)), sample.time] };
  for (const name of Object.keys(last)) if (name !== "times") next[name] = [...last[name].slice(Math.max(spare, 0)), sample[name]];
  return next;
}

/**
 * @typedef {object} Line
 * @property {string} label
 * @property {number[]} values
 * @property {number} colour 1 to 5: of the theme
 */

/**
 * @param {{title: string, times: number[], lines: Line[], format: (value: number | null | undefined) => string,
 *          range: string}} props
 */
export function Chart({ title, times, lines, format, range }) {
  const place = useRef(/** @type {any} */ (null));
  const chart = useRef(/** @type {any} */ (null));
  const shown = useStore(theme);
  const labels = lines.map((line) => line.label).join();
  useLayoutEffect(() => {
    const made = new Plot(options(lines, format, place.current, RANGES[range][0]), [[]], place.current);
    chart.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    observer.observe(place.current);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [shown, labels, range]);
  useLayoutEffect(() => {
    const now = times.length ? times[times.length - 1] / 1000 : Date.now() / 1000;
    chart.current.batch(() => {
      chart.current.setData([times.map((time) => time / 1000), ...lines.map((line) => line.values)], false);
      chart.current.setScale("x", { min: begin(times, now, RANGES[range][0]), max: now });
    });
  });
  return html`<section class="card chart">
    <h2>${title}</h2>
    <div class="legend">${lines.map((line) => html`<span key=${line.label}>
      <i class=${`swatch colour-${line.colour}`}></i>${line.label} <b>${format(line.values[line.values.length - 1])}</b>
    </span>`)}</div>
    <div class="plot" ref=${place} role="img" aria-label=${`Chart: ${title}`}></div>
  </section>`;
}

/** Where the time axis begins: a node that has just started shows what it has, and not hours of nothing. @param {number[]} times @param {number} now @param {number} ageS */
function begin(times, now, ageS) {
  const has = times.length ? now - times[0] / 1000 : 0;
  return now - Math.min(ageS, Math.max(has, YOUNG_S));
}

/**
 * @param {Line[]} lines
 * @param {(value: number | null | undefined) => string} format
 * @param {HTMLElement} place
 * @param {number} ageS
 */
function options(lines, format, place, ageS) {
  /** @type {Intl.DateTimeFormatOptions} */
  const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const when = new Intl.DateTimeFormat(undefined, ageS > DAY_S ? { day: "numeric", month: "short" } : clock);
  const exact = new Intl.DateTimeFormat(undefined, { ...clock, second: "2-digit" });
  // Marks less than a minute apart need their seconds.
  const whenOf = (/** @type {number[]} */ splits) => (splits.length > 1 && splits[1] - splits[0] < MINUTE_S ? exact : when);
  const style = getComputedStyle(document.documentElement);
  const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: Math.max(place.clientWidth, 100),
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 20, 0, 0],
    cursor: { sync: { key: SYNC }, points: { size: 6 }, drag: { x: false, y: false } },
    scales: { y: { range: (/** @type {any} */ _u, /** @type {number} */ _min, /** @type {number} */ max) => [0, max > 0 ? max * 1.15 : 1] } },
    axes: [
      { ...axis, size: 26, space: 70, values: (/** @type {any} */ _u, /** @type {number[]} */ splits) => splits.map((each) => whenOf(splits).format(each * 1000)) },
      { ...axis, size: 58, gap: 4, values: (/** @type {any} */ _u, /** @type {number[]} */ splits) => splits.map(format) },
    ],
    series: [{}, ...lines.map((line) => ({
      label: line.label,
      stroke: colour(`--colour-${line.colour}`),
      fill: lines.length === 1 ? `${colour(`--colour-${line.colour}`)}22` : undefined,
      width: 1.75,
      points: { show: false },
    }))],
    plugins: [tooltip(lines, format)],
  };
}

/** Shows the values under the pointer. @param {Line[]} lines @param {(value: number | null | undefined) => string} format */
function tooltip(lines, format) {
  const box = document.createElement("div");
  box.className = "tooltip";
  return {
    hooks: {
      init: (/** @type {any} */ u) => u.over.append(box),
      setCursor: (/** @type {any} */ u) => {
        const { idx, left } = u.cursor;
        box.hidden = idx === null || idx === undefined || left < 0;
        if (box.hidden) return;
        const rows = lines.map((line, at) => `${line.label}: ${format(u.data[at + 1][idx])}`);
        box.textContent = [new Date(u.data[0][idx] * 1000).toLocaleTimeString(), ...rows].join("\n");
        box.classList.toggle("leftwards", left > u.over.clientWidth / 2);
        box.style.left = `${left}px`;
      },
    },
  };
}
