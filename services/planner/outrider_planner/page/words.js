// Numbers as people read them. What is not known is a dash, never 0.

const UNKNOWN = "–";

export function fixed(value, digits) {
  return Number.isFinite(value) ? value.toFixed(digits) : UNKNOWN;
}

/** A rate against off: "1.95×". */
export function times(value) {
  return Number.isFinite(value) ? `${value.toFixed(2)}×` : UNKNOWN;
}

/** Seconds as milliseconds, without the unit. */
export function milliseconds(value) {
  return Number.isFinite(value) ? (value * 1e3).toFixed(value < 0.1 ? 2 : 1) : UNKNOWN;
}

/** How long ago: "0.7 s", "42 s", "3 min", "5 h", "2 d". */
export function age(seconds) {
  if (!Number.isFinite(seconds)) return UNKNOWN;
  if (seconds < 10) return `${Math.max(seconds, 0).toFixed(1)} s`;
  const steps = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];
  const [, unit, name] = steps.find(([below]) => seconds < below);
  return `${Math.floor(seconds / unit)} ${name}`;
}

/** "1 worker", "3 workers". */
export function counted(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}
