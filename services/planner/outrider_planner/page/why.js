// Why one n is planned as it is: the planner's own sentence, and the cells it chose between.

import { byId, el, fill } from "./shared/dom.js";
import { age, counted, fixed, milliseconds, times } from "./words.js";

const COLUMNS = [
  ["d", "drafts per request", (cell) => cell.draft_tokens],
  ["V", "drafts verified at most", (cell) => cell.verify_tokens],
  ["rows", "rows of the target's forward at most", (cell) => cell.rows],
  ["accepted", "drafts accepted per round (G)", (cell) => fixed(cell.accepted_tokens, 2)],
  ["T ms", "the target's forward", (cell) => milliseconds(cell.target_s)],
  ["E ms", "feeding the drafter", (cell) => milliseconds(cell.feed_s)],
  ["D ms", "drafting", (cell) => milliseconds(cell.draft_s)],
  ["c ms", "the host, where nothing hides it", (cell) => milliseconds(cell.host_s)],
  ["tokens/s", "rate", (cell) => fixed(cell.rate_tokens_per_s, 0)],
  ["vs off", "rate against off", (cell) => times(cell.rate_vs_off_ratio)],
];

/** Shows an explanation; `drafter` is the name of the one looked at. */
export function showWhy(why, drafter) {
  const { requests, ladder_requests: served } = why;
  const at = served === requests ? `${requests}` : `${requests}, served by the step ${served}`;
  fill(byId("why-title"), `Why at n = ${at}`);
  fill(byId("why-reason"), why.reason);
  const found = why.drafters.find((item) => item.drafter === drafter);
  fill(byId("why-note"), found?.note ?? "");
  byId("why-note").hidden = !found?.note;
  fill(byId("cells"), ...table(found));
  fill(byId("sources"), sourcesOf(why));
}

function table(found) {
  const rows = found === undefined ? [] : rowsOf(found);
  const head = COLUMNS.map(([name, title]) =>
    el("th", { scope: "col", class: "number", title, "aria-label": `${name}: ${title}` }, name),
  );
  const first = el("th", { scope: "col" }, el("span", { class: "unseen" }, "cell"));
  if (rows.length === 0) return [el("tbody", {}, el("tr", {}, el("td", {}, "Nothing to compare: no costs are known, or nothing drafts.")))];
  const body = rows.map(([name, kind, cell]) =>
    el(
      "tr",
      { class: kind },
      el("th", { scope: "row" }, name),
      COLUMNS.map(([, , value]) => el("td", { class: "number" }, value(cell))),
    ),
  );
  return [el("thead", {}, el("tr", {}, first, head)), el("tbody", {}, body)];
}

/** Planned, looked at, rivals and off; each draft length once. */
function rowsOf({ chosen, asked, rivals, off }) {
  const named = [
    ["planned", "planned", chosen],
    ["looked at", "asked", asked],
    ...rivals.map((cell) => ["rival", "", cell]),
    ["off", "", off],
  ];
  const seen = new Set();
  return named.filter(([, , cell]) => {
    const isNew = cell !== null && !seen.has(cell.draft_tokens);
    if (isNew) seen.add(cell.draft_tokens);
    return isNew;
  });
}

function sourcesOf({ sources, plan_version: version, plan_age_s: sinceS }) {
  const verified = [
    [sources.own_verified, "of this worker"],
    [sources.deployment_verified, "of the deployment"],
    [sources.fleet_verified, "of the fleet"],
  ].filter(([count]) => count >= 0.5);
  const evidence = verified.map(([count, whose]) => `${count.toFixed(0)} ${whose}`).join(", ");
  const costs = { measured: "measured by this worker", stored: "stored by another", none: "not known" };
  return [
    `Rests on ${evidence ? `verified drafts: ${evidence}` : "no verified drafts yet"}; `,
    `costs ${costs[sources.cost] ?? sources.cost}. Plan ${version}, changed ${age(sinceS)} ago.`,
  ];
}

/** Policies that are evaluated beside the live one; hidden where there are none. */
export function showShadows(shadows) {
  byId("shadows-card").hidden = shadows.length === 0;
  const head = ["policy", "d", "tokens/s", "vs off"].map((name, i) =>
    el("th", { scope: "col", class: i > 0 && "number" }, name),
  );
  const body = shadows.map(({ policy, cell, error }) => {
    const name = el("th", { scope: "row" }, policy);
    if (cell === null) return el("tr", {}, name, el("td", { colspan: 3 }, error));
    const { draft_tokens: d, rate_tokens_per_s: rate, rate_vs_off_ratio: ratio } = cell;
    return el("tr", {}, name, [d, fixed(rate, 0), times(ratio)].map(asNumber));
  });
  fill(byId("shadows"), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
}

function asNumber(value) {
  return el("td", { class: "number" }, value);
}

/** What is said aloud of a cell that was chosen. */
export function spoken(why, drafter) {
  const found = why.drafters.find((item) => item.drafter === drafter);
  const asked = found?.asked;
  const about = asked
    ? `${counted(asked.draft_tokens, "draft")} each: ${times(asked.rate_vs_off_ratio)} against off. `
    : "";
  return about + why.reason;
}
