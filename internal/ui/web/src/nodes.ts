import type { Failure, Health, NodeHealth, Status } from "./api";
import { dateTime, el, time } from "./dom";

const matrixSide = 40; // nodes on a side of the matrix of those that do not reach each other

// nodesView shows where flows come from, and which nodes reach each other.
export function nodesView(s: Status, h: Health | undefined): HTMLElement[] {
  const views = new Map((h?.nodes ?? []).map(n => [n.name, n]));
  const names = [...new Set([...s.nodes.map(n => n.name), ...views.keys()])].sort();
  const flows = new Map(s.nodes.map(n => [n.name, n]));
  const heads = ["Node", "State", "Reaches", "Unreached by", "Latency", "Address", "Version", "Up", "Flows kept", "Flows seen"];
  return [
    ...reach(h),
    el("h2", {}, "Nodes"),
    el("table", { class: "all" }, el("thead", {}, el("tr", {}, ...heads.map(t => el("th", { scope: "col" }, t)))), el("tbody", {}, ...names.map(name => {
      const n = flows.get(name), v = views.get(name);
      const state = n?.state ?? "not asked";
      return el("tr", {}, el("td", {}, name), el("td", { class: state === "connected" ? "" : "dropped" }, state === "connected" ? state : `✕ ${state}`),
        ...reaches(v), el("td", {}, n?.address ?? ""), el("td", {}, n?.version ?? ""), el("td", {}, n?.uptimeSeconds ? `${Math.round(n.uptimeSeconds / 60)} min` : ""),
        el("td", {}, String(n?.flows ?? "")), el("td", {}, String(n?.seen ?? "")));
    }))),
  ];
}

// reaches are the cells of a node about others.
function reaches(v: NodeHealth | undefined): HTMLElement[] {
  if (!v || v.problem) return [el("td", { title: v?.problem }, v ? `? ${v.problem}` : ""), ...unreachedBy(v), el("td")];
  const all = v.reachable + v.unreachable + v.silent + v.unknown;
  const more = [v.silent ? `${v.silent} answer no health checks` : "", v.unknown ? `${v.unknown} not probed yet` : ""].filter(Boolean).join(", ");
  return [el("td", { class: v.unreachable ? "dropped" : "" }, `${v.unreachable ? "✕ " : "● "}${v.reachable} of ${all}`, more ? el("small", {}, more) : undefined),
    ...unreachedBy(v), el("td", {}, v.latencySeconds ? took(v.latencySeconds) : "")];
}

function unreachedBy(v: NodeHealth | undefined): HTMLElement[] {
  return [el("td", { class: v?.unreachedBy ? "dropped" : "" }, v?.unreachedBy ? `✕ ${v.unreachedBy}` : "")];
}

// took is a latency for people.
function took(seconds: number): string { return seconds < 0.1 ? `${(seconds * 1000).toFixed(2)} ms` : `${seconds.toFixed(2)} s`; }

// reach shows which nodes do not reach each other.
function reach(h: Health | undefined): HTMLElement[] {
  const heading = el("h2", {}, "Do nodes reach each other?");
  if (!h) return [heading, el("p", { class: "more" }, "…")];
  const reporting = (h.nodes ?? []).filter(n => !n.problem).length, failures = h.failures ?? [], slowest = h.slowest ?? [];
  const out: HTMLElement[] = [heading];
  if (h.error) out.push(el("p", { class: "more" }, h.nodes ? `Not asked since ${time(h.asked)}: ${h.error}` : h.error));
  if (!h.nodes) return out;
  if (!failures.length) out.push(el("p", { class: "verdict" }, reporting ? `● Yes: each of the ${reporting} nodes that report reaches all that it has probed.` : "No node reports."));
  else out.push(el("p", { class: "verdict dropped" }, `✕ No: ${failures.length + (h.failuresLeftOut ?? 0)} of the ways from one node to another fail.`), ...failed(failures, h.failuresLeftOut ?? 0));
  if (slowest.length) out.push(el("details", {}, el("summary", {}, "Slowest answers"), el("table", {}, el("thead", {}, el("tr", {}, ...["From", "To", "Latency"].map(t => el("th", { scope: "col" }, t)))),
    el("tbody", {}, ...slowest.map(l => el("tr", {}, el("td", {}, l.from), el("td", {}, l.to), el("td", {}, took(l.seconds))))))));
  return out;
}

// failed shows the pairs as a matrix of the nodes concerned, and each as text.
function failed(all: Failure[], leftOut: number): HTMLElement[] {
  const side = (pick: (f: Failure) => string) => {
    const counts = new Map<string, number>();
    for (const f of all) counts.set(pick(f), (counts.get(pick(f)) ?? 0) + 1);
    return [...counts].sort(([a, n], [b, m]) => m - n || a.localeCompare(b)).slice(0, matrixSide).map(([name]) => name).sort();
  };
  const from = side(f => f.from), to = side(f => f.to), cells = new Map(all.map(f => [JSON.stringify([f.from, f.to]), f]));
  return [
    el("div", { class: "grid" }, el("table", { "aria-label": "Who does not reach whom" },
      el("thead", {}, el("tr", {}, el("th", {}, "from ↓ to →"), ...to.map(n => el("th", { scope: "col", title: n }, el("span", {}, n))))),
      el("tbody", {}, ...from.map(a => el("tr", {}, el("th", { class: "side", scope: "row" }, a), ...to.map(b => {
        const f = cells.get(JSON.stringify([a, b]));
        return f ? el("td", { class: "dropped", title: `${a} → ${b} since ${dateTime(f.since)}` }, "✕") : el("td");
      })))))),
    el("table", { class: "failures" }, el("thead", {}, el("tr", {}, ...["From", "To", "Since", "What does not work"].map(t => el("th", { scope: "col" }, t)))),
      el("tbody", {}, ...all.slice(0, 200).map(f => el("tr", {}, el("td", {}, f.from), el("td", {}, f.to), el("td", {}, dateTime(f.since)),
        el("td", {}, ...(f.ways ?? []).map(w => el("div", {}, w))))))),
    ...(all.length > 200 || leftOut ? [el("p", { class: "more" }, `and ${Math.max(0, all.length - 200) + leftOut} more`)] : []),
  ];
}
