/** How numbers, sizes and times are written. */

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** @param {number | null | undefined} value */
export const whole = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));

/** @param {number | null | undefined} value */
export const short = (value) => (value === null || value === undefined ? "–"
  : Math.abs(value) < 10000 ? WHOLE.format(Math.round(value * 10) / 10) : SHORT.format(value));

/** @param {number | null | undefined} value for each second */
export const rate = (value) => (value === null || value === undefined ? "–"
  : value === 0 ? "0/s" : value < 10 ? `${value.toFixed(1)}/s` : `${short(Math.round(value))}/s`);

/** @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

/** @param {number | null | undefined} ms */
export const milliseconds = (ms) => (ms === null || ms === undefined ? "–" : ms < 10 ? `${ms.toFixed(1)} ms`
  : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** @param {number | null | undefined} ms */
export const moment = (ms) => (ms === null || ms === undefined ? "–" : new Date(ms).toLocaleString());

/** @param {number | null | undefined} share from 0 to 1 */
export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`);

/** A value of a table of arguments or headers. @param {any} value */
export const argument = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** The time of day. @param {number} ms */
export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

/** The time of day if that is today, else the date, too. @param {number} ms */
export const recent = (ms) => (new Date(ms).toDateString() === new Date().toDateString() ? clock(ms) : moment(ms));
