import type { Access, Reach } from "./api";
import { el } from "./dom";
import { type Pair, type Shown, type State, pairId, title } from "./state";

const side = 120; // workloads on a side

// May looks up the outcome of policies.
export class May {
  private places: Map<string, number>;
  constructor(readonly reach: Reach) { this.places = new Map(reach.parties.map((p, i) => [p.id, i])); }
  access(from: string, to: string): Access | undefined {
    const a = this.places.get(from), b = this.places.get(to);
    return a === undefined || b === undefined ? undefined : this.reach.accesses[this.reach.rows[a]?.[b] ?? -1];
  }
  // ends are the two of a pair.
  ends(pair: string): [string, string] | undefined {
    for (const from of this.places.keys()) if (pair.startsWith(`${from}>`) && this.places.has(pair.slice(from.length + 1))) return [from, pair.slice(from.length + 1)];
    return undefined;
  }
  // selecting are the policies that decide about what a workload sends, or receives.
  selecting(id: string): string[] {
    const at = this.places.get(id);
    if (at === undefined) return [];
    const found = new Set<string>();
    for (const i of new Set(this.reach.rows[at])) for (const p of this.reach.accesses[i]?.egress.policies ?? []) found.add(p);
    for (const row of this.reach.rows) for (const p of this.reach.accesses[row[at] ?? -1]?.ingress.policies ?? []) found.add(p);
    return [...found].sort();
  }
}

// Sign is how a cell of the matrix looks: a symbol of its own, a colour and words. Where what was
// seen and the outcome of policies differ, it stands out.
interface Sign { symbol: string; kind: string; words: string; differs: boolean }

export function sign(p: Pair | undefined, a: Access | undefined): Sign | undefined {
  const may = a?.verdict ?? "", says = { allowed: "policies allow it", denied: "policies refuse it", partial: "policies allow some of it", "": "" }[may] ?? "";
  const make = (symbol: string, kind: string, words: string, differs = false) => ({ symbol, kind, words: [words, says].filter(Boolean).join(", "), differs });
  if (p) {
    const both = p.dropped > 0 && p.forwarded > 0;
    if (p.dropped && may === "allowed") return make(both ? "◪" : "✕", "dropped", both ? "partly refused" : "refused", true);
    if (p.forwarded && may === "denied") return make(both ? "◪" : "●", both ? "dropped" : "forwarded", both ? "partly refused" : "let in", true);
    if (both) return make("◪", "dropped", "partly refused");
    if (p.dropped) return make("✕", "dropped", "refused");
    if (p.audited) return make("◐", "audited", "audited", may === "allowed");
    return make("●", "forwarded", "let in");
  }
  if (may === "allowed") return make("○", "open", "never seen", true);
  if (may === "partial") return make("◌", "open", "never seen", true);
  if (may === "denied") return make("·", "closed", "never seen");
  return undefined;
}

export const matrixModes = [["", "Seen and allowed"], ["seen", "Seen"], ["differences", "Differences"]] as const;

// matrixView shows who was seen with whom beside who may reach whom, drops first.
export function matrixView(shown: Shown, s: State, may: May | undefined, set: (mode: string) => void, select: (id: string) => void): HTMLElement[] {
  const computed = may && !may.reach.error && s.matrix !== "seen" ? may : undefined;
  const differences = computed && s.matrix === "differences"; // nothing differs from what is not known
  const parties = new Map((computed?.reach.parties ?? []).map(p => [p.id, p]));
  const name = (id: string) => {
    const p = parties.get(id);
    return shown.workloads.has(id) || !p ? title(shown.workloads.get(id), id) : p.namespace ? `${p.namespace}/${p.name}` : p.name;
  };
  const words = s.query.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = (id: string) => !s.verdict && (!s.namespaces.length || s.namespaces.includes(parties.get(id)?.namespace ?? "")) && words.every(w => name(id).toLowerCase().includes(w));
  const most = (end: "source" | "destination") => {
    const score = new Map<string, number>();
    for (const e of shown.edges) score.set(e[end], (score.get(e[end]) ?? 0) + e.dropped * 1e6 + e.forwarded + e.audited);
    return [...new Set([...score.keys(), ...[...parties.keys()].filter(wanted)])].sort((a, b) => (score.get(b) ?? -1) - (score.get(a) ?? -1) || name(a).localeCompare(name(b)));
  };
  let rows = most("source"), columns = most("destination");
  const at = (from: string, to: string) => {
    const found = sign(shown.pairs.get(pairId({ source: from, destination: to })), computed?.access(from, to));
    return differences && !found?.differs ? undefined : found;
  };
  const all = [rows.length, columns.length];
  rows = rows.slice(0, side);
  columns = columns.slice(0, side);
  if (differences) {
    rows = rows.filter(r => columns.some(c => at(r, c)));
    columns = columns.filter(c => rows.some(r => at(r, c)));
  }
  const cell = (from: string, to: string) => {
    const found = at(from, to);
    if (!found) return el("td");
    const text = `${name(from)} → ${name(to)}: ${found.words}`;
    return el("td", { class: found.differs && found.symbol !== "○" && found.symbol !== "◌" ? "differs" : "" }, el("button", {
      class: found.kind, title: text, "aria-label": text, "data-pair": pairId({ source: from, destination: to }), tabindex: -1, click: () => select(`p:${pairId({ source: from, destination: to })}`),
    }, found.symbol));
  };
  const notes = [may?.reach.error ? `What policies allow is not known: ${may.reach.error}.` : "", Math.max(...all) > side ? `The first ${side} of ${Math.max(...all)}: search for others.` : "",
    computed?.reach.leftOut ? `${computed.reach.leftOut} identities more: choose namespaces.` : ""].filter(Boolean);
  const table = el("table", { "aria-label": "Who reaches whom", keydown: walk },
    el("thead", {}, el("tr", {}, el("th", {}, "from ↓ to →"), ...columns.map(c => el("th", { scope: "col", title: name(c) }, el("span", {}, name(c)))))),
    el("tbody", {}, ...rows.map(r => el("tr", {}, el("th", { class: "side", scope: "row", title: name(r) }, name(r)), ...columns.map(c => cell(r, c))))));
  table.querySelector("td button")?.setAttribute("tabindex", "0");
  return [
    el("div", { class: "modes" }, ...(may && !may.reach.error ? matrixModes.map(([mode, text]) =>
      el("button", { "aria-pressed": s.matrix === mode, "data-mode": mode || "both", click: () => set(mode) }, text)) : []), ...notes.map(n => el("span", { class: "more" }, n))),
    el("div", { class: "grid" }, rows.length && columns.length ? table : el("p", { class: "more" }, differences && Math.max(...all) <= side ? "What was seen is what policies allow." : "")),
    el("ul", { class: "signs", "aria-label": "Signs" }, ...([["✕", "dropped", "refused"], ["◪", "dropped", "partly refused"], ["◐", "audited", "audited"], ["●", "forwarded", "let in"],
      ...(computed ? [["○", "open", "allowed, never seen"], ["◌", "open", "some of it allowed, never seen"], ["·", "closed", "refused, never seen"]] : [])] as [string, string, string][])
      .map(([symbol, kind, text]) => el("li", {}, el("span", { class: kind }, symbol), ` ${text}`)),
      ...(computed ? [el("li", {}, el("span", { class: "differs sample" }, "✕"), " framed: seen, and policies say otherwise")] : [])),
  ];
}

// walk leads from cell to cell by the arrow keys: one of them alone is reached by Tab.
function walk(e: Event): void {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[(e as KeyboardEvent).key];
  const from = (e.target as HTMLElement).closest("td"), row = from?.parentElement as HTMLTableRowElement | null, body = row?.parentElement as HTMLTableSectionElement | null;
  if (!step || !from || !row || !body) return;
  e.preventDefault();
  let r = row.sectionRowIndex, c = from.cellIndex;
  for (;;) {
    r += step[0]!;
    c += step[1]!;
    const next = body.rows[r]?.cells[c];
    if (!next) return;
    const button = next.querySelector("button");
    if (button) {
      (e.target as HTMLElement).setAttribute("tabindex", "-1");
      button.setAttribute("tabindex", "0");
      button.focus();
      return;
    }
  }
}

// accessPanel shows the outcome of policies for a pair.
export function accessPanel(a: Access | undefined): HTMLElement[] {
  if (!a?.verdict) return [];
  const words = { allowed: "● Policies allow all of it.", denied: "✕ Policies refuse it.", partial: "◌ Policies allow some of it." }[a.verdict] ?? "";
  const chips = (heading: string, s: { enforced?: boolean; policies?: string[] | null }) => [
    el("h3", {}, heading), s.policies?.length ? el("ul", { class: "chips" }, ...s.policies.map(p => el("li", {}, p))) : el("div", {}, s.enforced ? "none of them allows it" : "no policy restricts it")];
  return [
    el("h3", {}, "By the policies in force"), el("div", { class: a.verdict === "denied" ? "dropped" : "" }, words),
    ...(a.ports?.length ? [el("ul", { class: "chips" }, ...a.ports.map(p => el("li", {}, p)))] : []),
    ...chips("Policies of the sender", a.egress), ...chips("Policies of the receiver", a.ingress),
    ...(a.byAddress ? [el("p", { class: "more" }, "A rule about addresses has a say: not all addresses need be treated alike.")] : []),
  ];
}
