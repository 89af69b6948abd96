import { type Edge, type Endpoint, type Explanation, type Flow, type Workload } from "./api";
import { amount, el, time } from "./dom";
import { type Shown, title } from "./state";

export function chips(heading: string, items: string[] | undefined): (HTMLElement | undefined)[] {
  if (!items?.length) return [];
  return [el("h3", {}, heading), el("ul", { class: "chips" }, ...items.map(i => el("li", {}, i)))];
}

// sums shows the fate of the packets, in words as well as in colours.
export function sums(e: { forwarded: number; dropped: number; audited: number }): HTMLElement {
  const out = el("span", { class: "sum" });
  if (e.dropped) out.append(el("span", { class: "dropped" }, `✕ ${amount(e.dropped)} `));
  if (e.audited) out.append(el("span", { class: "audited" }, `◐ ${amount(e.audited)} `));
  if (e.forwarded) out.append(el("span", { class: "forwarded" }, `● ${amount(e.forwarded)}`));
  // Open for longer than the time shown, and still in use.
  if (!e.dropped && !e.audited && !e.forwarded) out.append(el("span", { class: "forwarded" }, "○ open"));
  return out;
}

export function port(e: Edge): string { return e.port ? `${e.protocol} ${e.port}` : e.protocol; }

export function edgeRow(e: Edge, shown: Shown, current: boolean, select: (id: string) => void): HTMLElement {
  return el("button", { class: "row", "aria-current": current, "data-edge": e.id, click: () => select(`e:${e.id}`) },
    sums(e), `${title(shown.workloads.get(e.source), e.source)} → ${title(shown.workloads.get(e.destination), e.destination)}`,
    el("small", {}, [port(e), ...(e.reasons ?? []), ...(e.deniedBy ?? []).map(p => `by ${p}`)].join(", ")));
}

export function workloadPanel(w: Workload, shown: Shown, selecting: string[], select: (id: string) => void): HTMLElement[] {
  const to = shown.edges.filter(e => e.destination === w.id), from = shown.edges.filter(e => e.source === w.id);
  const order = (a: Edge, b: Edge) => b.dropped - a.dropped || b.forwarded - a.forwarded;
  return [
    el("h2", {}, title(w, w.id)),
    el("div", {}, w.type || (w.kind === "entity" ? "outside of pods" : w.kind)),
    ...chips("Identity", w.identities), ...chips("Labels", w.labels), ...chips("Services", w.services), ...endpoints(w.endpoints),
    ...chips("Addresses", w.addresses), ...chips("Names", w.names), ...chips("Policies that decided", w.policies), ...chips("Policies in force for it", selecting),
    ...(to.length ? [el("h3", {}, "Asked by"), ...to.sort(order).map(e => edgeRow(e, shown, false, select))] : []),
    ...(from.length ? [el("h3", {}, "Asks"), ...from.sort(order).map(e => edgeRow(e, shown, false, select))] : []),
  ].filter((e): e is HTMLElement => e !== undefined);
}

// endpoints are the pods of a workload that were seen.
function endpoints(all: Endpoint[] | undefined): HTMLElement[] {
  if (!all?.length) return [];
  return [el("h3", {}, "Endpoints"), el("table", { class: "endpoints" }, el("thead", {}, el("tr", {}, ...["Pod", "Addresses", "Identity", "Node"].map(h => el("th", {}, h)))),
    el("tbody", {}, ...all.map(e => el("tr", {}, el("td", {}, e.pod), el("td", {}, ...(e.addresses ?? []).map(a => el("div", {}, a))),
      el("td", {}, e.identity ? String(e.identity) : ""), el("td", {}, e.node ?? "")))))];
}

// byPolicy finds the edge of which the refusal by policy is explained.
export function byPolicy(edges: Edge[]): Edge | undefined { return edges.find(e => e.dropped && e.reasons?.some(r => /^POLICY_DEN/.test(r))); }

// whyPanel shows why policy denies, and what would allow it.
export function whyPanel(e: Edge, why: Explanation | undefined, try_: (document: string) => void): HTMLElement[] {
  const head = el("h3", {}, `Why ${port(e)} is refused, by the policies of now`);
  if (!why) return [head, el("p", { class: "more" }, "…")];
  if (why.error) return [head, el("p", { class: "more" }, why.error)];
  return [
    head,
    ...(why.refused ? [] : [el("p", { class: "forwarded" }, "● It would pass now.")]),
    ...(why.sides ?? []).flatMap(s => [
      el("p", { class: "dropped" }, `✕ ${s.whose}: ${s.denied ? "a rule denies it" : s.rules?.length ? "no rule allows it; isolated by" : s.reason}`),
      ...(s.rules?.length ? [el("ul", { class: "chips rules" }, ...s.rules.map(r => el("li", {}, r)))] : []),
      ...(s.near?.length ? [el("ul", { class: "near" }, ...s.near.map(n => el("li", {}, n)))] : []),
    ]),
    ...(why.suggestions ?? []).flatMap(s => [
      el("p", {}, s.text.charAt(0).toUpperCase() + s.text.slice(1), s.document ? ":" : "."),
      ...(s.document ? [el("pre", { class: "suggested" }, s.document), el("button", { class: "try", click: () => try_(s.document!) }, "What if this were in force?")] : []),
    ]),
  ];
}

export function edgesPanel(edges: Edge[], flows: Flow[] | undefined, access: HTMLElement[], why: HTMLElement[], shown: Shown, select: (id: string) => void): HTMLElement[] {
  const first = edges[0];
  if (!first) return [];
  const all = (pick: (e: Edge) => string[] | undefined) => [...new Set(edges.flatMap(e => pick(e) ?? []))].sort();
  const end = (id: string) => el("button", { click: () => select(`w:${id}`) }, title(shown.workloads.get(id), id));
  return [
    el("h2", {}, end(first.source), " → ", end(first.destination)),
    ...edges.map(e => edgeRow(e, shown, false, select)),
    ...chips("Let in by", all(e => e.allowedBy)), ...chips("Refused by", all(e => e.deniedBy)), ...chips("Reasons", all(e => e.reasons)),
    ...why, ...access,
    el("h3", {}, "Last flows"),
    flows ? flowTable(flows, true) : el("p", { class: "more" }, "…"),
  ].filter((e): e is HTMLElement => e !== undefined);
}

export function flowTable(flows: Flow[], short: boolean): HTMLElement {
  if (!flows.length) return el("p", { class: "more" }, "None is kept any more.");
  const heads = short ? ["Time", "Verdict", "Flow"] : ["Time", "Node", "From", "To", "Protocol", "Kind", "Verdict", "Policies"];
  return el("table", { class: short ? "last" : "" }, el("thead", {}, el("tr", {}, ...heads.map(h => el("th", {}, h)))), el("tbody", {}, ...flows.map(f => {
    const verdict = el("td", { class: f.verdict === "DROPPED" || f.verdict === "ERROR" ? "dropped" : f.verdict === "AUDIT" ? "audited" : "forwarded" },
      f.reason || f.verdict.toLowerCase());
    const when = el("td", {}, time(f.time)), from = el("td", {}, f.source), to = el("td", {}, f.destination);
    const by = [...(f.deniedBy ?? []).map(p => `refused by ${p}`), ...(f.allowedBy ?? []).map(p => `let in by ${p}`)].join(", ");
    if (short) return el("tr", {}, when, verdict, el("td", {}, `${f.source} → ${f.destination}`, el("small", {}, [by, f.direction, f.node].filter(Boolean).join(" · "))));
    return el("tr", {}, when, el("td", {}, f.node), from, to, el("td", {}, f.protocol), el("td", {}, [f.type, f.direction, f.reply ? "reply" : ""].filter(Boolean).join(" ")),
      verdict, el("td", {}, by));
  })));
}
