// What the plan rests on: acceptance by position, predictions held against rounds, and the guard.

import { byId, el, fill, setStyleNumber } from "./shared/dom.js";
import { counted, fixed, milliseconds } from "./words.js";

/** Bars of P(the first j drafts all hold); those beyond the planned length are hollow. */
export function showAcceptance(found, requests) {
  const planned = found?.chosen?.draft_tokens ?? 0;
  const survival = found?.survival ?? [];
  const head = ["j", "", "held", "drafted"].map((name, i) =>
    el("th", { scope: "col", class: i > 1 && "number", title: TITLES[i] }, name || HIDDEN_BAR()),
  );
  const body = survival.map((held, i) => {
    const bar = el("span", { class: "fill" });
    setStyleNumber(bar, "--share", held);
    return el(
      "tr",
      { class: i < planned ? "planned" : "beyond" },
      el("th", { scope: "row" }, i + 1),
      el("td", { class: "wide" }, el("span", { class: "track", "aria-hidden": "true" }, bar)),
      el("td", { class: "number" }, fixed(held, 2)),
      el("td", { class: "number" }, fixed(found.length_survival[i], 2)),
    );
  });
  const caption = el("caption", { class: "unseen" }, "Estimated acceptance by position");
  fill(byId("acceptance"), caption, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
  byId("acceptance").hidden = survival.length === 0;
  const drafts = planned === 0 ? "off" : counted(planned, "draft");
  fill(
    byId("acceptance-more"),
    survival.length === 0
      ? "Nothing is known of this drafter yet."
      : `Filled: what is planned at n = ${requests} (${drafts}). From ` +
          `${found.verified.toFixed(0)} verified drafts, older ones counting less.`,
  );
}

const TITLES = [
  "position in the draft",
  undefined,
  "probability that the first j drafts all hold",
  "probability that the drafter proposes so many",
];
const HIDDEN_BAR = () => el("span", { class: "unseen" }, "bar");

/** The latest rounds beside what was predicted of them. */
export function showMeasured({ forecast, checks }) {
  const rows =
    forecast === null
      ? []
      : [
          ["accepted per round", forecast.predicted_accepted_tokens, forecast.realised_accepted_tokens, fixed2],
          ["round, ms", forecast.predicted_round_s, forecast.measured_round_s, milliseconds],
        ];
  const head = ["", "predicted", "measured", "off by"].map((name, i) =>
    el("th", { scope: "col", class: i > 0 && "number" }, name || el("span", { class: "unseen" }, "what")),
  );
  const body = rows.map(([name, predicted, measured, shown]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      [shown(predicted), shown(measured), difference(predicted, measured)].map((text) =>
        el("td", { class: "number" }, text),
      ),
    ),
  );
  fill(byId("measured"), el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
  byId("measured").hidden = rows.length === 0;
  const rounds = checks.reduce((sum, check) => sum + check.rounds, 0);
  fill(
    byId("measured-more"),
    rows.length === 0
      ? "No round was foretold yet."
      : `The latest report's rounds. ${counted(rounds, "round")} of ${counted(checks.length, "kind")} seen.`,
  );
}

function fixed2(value) {
  return fixed(value, 2);
}

function difference(predicted, measured) {
  if (!(predicted > 0)) return "–";
  const percent = Math.round(100 * (measured / predicted - 1));
  const sign = percent > 0 ? "+" : percent < 0 ? "−" : "";
  return `${sign}${Math.abs(percent)} %`;
}

/** The worker's own ledger of tokens lost against off. */
export function showGuard(guard) {
  if (guard === null) {
    fill(byId("guard"), el("p", { class: "hint" }, "The worker has not told of its guard yet."));
    return;
  }
  const { tripped, ledger_tokens: ledger, threshold_tokens: threshold } = guard;
  const bar = el("span", { class: "fill" });
  setStyleNumber(bar, "--share", threshold > 0 ? Math.min(ledger / threshold, 1) : 0);
  const mark = tripped
    ? el("span", { class: "mark bad" }, "tripped: drafts are off")
    : el("span", { class: "mark good" }, "drafts are allowed");
  fill(
    byId("guard"),
    el("p", {}, mark),
    el("p", {}, `Lost against off: ${fixed(ledger, 1)} of ${fixed(threshold, 1)} tokens per request`),
    el("p", { class: tripped ? "track bad" : "track", "aria-hidden": "true" }, bar),
    el(
      "p",
      { class: "hint" },
      `${counted(guard.trips, "trip")}, ${counted(guard.readmissions, "readmission")}, `,
      `${fixed(guard.lost_tokens, 0)} tokens lost since the start.`,
    ),
  );
}
