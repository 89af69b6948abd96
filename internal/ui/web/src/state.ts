import { isolated } from "./dom";
import type { Edge, Snapshot, Workload } from "./api";

export const views = ["map", "matrix", "flows", "nodes", "whatif"] as const;
export type View = typeof views[number];

const linkLocal = ":link-local"; // graph.go

// State is what the page shows. All of it is in the address, so that a link shows the same.
export interface State {
  view: View;
  query: string;
  verdict: string; // "", dropped, forwarded, audited
  namespaces: string[]; // none means all
  matrix: string; // "", seen, differences
  local: boolean; // show what means nothing beyond a link, such as neighbour discovery
  span: number; // seconds
  until: number; // seconds since 1970, 0 means now
  selected: string; // "w:" workload, "p:" pair, "e:" edge
}

export function fromAddress(): State {
  const q = new URLSearchParams(location.hash.slice(1));
  const view = q.get("view") as View;
  const verdict = q.get("verdict") ?? "";
  return {
    view: views.includes(view) ? view : "map",
    query: q.get("q") ?? "",
    verdict: ["dropped", "forwarded", "audited"].includes(verdict) ? verdict : "",
    namespaces: q.getAll("ns"),
    matrix: ["seen", "differences"].find(m => m === q.get("matrix")) ?? "",
    local: q.has("local"),
    span: [60, 300, 890].find(n => n === Number(q.get("span"))) ?? 300,
    until: Math.max(0, Math.floor(Number(q.get("until")) || 0)),
    selected: q.get("selected") ?? "",
  };
}

export function toAddress(s: State): void {
  const q = new URLSearchParams();
  if (s.view !== "map") q.set("view", s.view);
  if (s.query) q.set("q", s.query);
  if (s.verdict) q.set("verdict", s.verdict);
  for (const ns of s.namespaces) q.append("ns", ns);
  if (s.matrix) q.set("matrix", s.matrix);
  if (s.local) q.set("local", "1");
  if (s.span !== 300) q.set("span", String(s.span));
  if (s.until) q.set("until", String(s.until));
  if (s.selected) q.set("selected", s.selected);
  const hash = q.toString();
  if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
}

// Shown is what of a snapshot passes the filters.
export interface Shown { workloads: Map<string, Workload>; edges: Edge[]; pairs: Map<string, Pair> }

// Pair is all traffic from one workload to another.
export interface Pair { id: string; source: string; destination: string; edges: Edge[]; forwarded: number; dropped: number; audited: number }

export function pairId(e: { source: string; destination: string }): string { return `${e.source}>${e.destination}`; }

export function filter(snapshot: Snapshot, s: State): Shown {
  const all = new Map(snapshot.workloads.map(w => [w.id, w]));
  const words = s.query.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = new Map<string, string>();
  const text = (id: string) => {
    let t = texts.get(id);
    if (t === undefined) {
      const w = all.get(id);
      t = !w ? id : [w.id, w.type, ...(w.labels ?? []), ...(w.identities ?? []), ...(w.addresses ?? []),
        ...(w.endpoints ?? []).flatMap(e => [e.pod, ...(e.addresses ?? []), e.node]), ...(w.services ?? []), ...(w.names ?? [])]
        .join(" ").toLowerCase();
      texts.set(id, t);
    }
    return t;
  };
  const inNamespace = (id: string) => s.namespaces.includes(all.get(id)?.namespace ?? "");
  const edges = snapshot.edges.filter(e => {
    if (!s.local && (e.source === linkLocal || e.destination === linkLocal)) return false;
    if (s.verdict && !e[s.verdict as "dropped" | "forwarded" | "audited"]) return false;
    if (s.namespaces.length && !inNamespace(e.source) && !inNamespace(e.destination)) return false;
    if (!words.length) return true;
    const own = [e.protocol, e.port ?? "", ...(e.reasons ?? []), ...(e.allowedBy ?? []), ...(e.deniedBy ?? [])].join(" ").toLowerCase();
    return words.every(word => own.includes(word) || text(e.source).includes(word) || text(e.destination).includes(word));
  });
  const workloads = new Map<string, Workload>();
  const pairs = new Map<string, Pair>();
  for (const e of edges) {
    for (const id of [e.source, e.destination]) {
      const w = all.get(id);
      if (w) workloads.set(id, w);
    }
    const id = pairId(e);
    let p = pairs.get(id);
    if (!p) pairs.set(id, p = { id, source: e.source, destination: e.destination, edges: [], forwarded: 0, dropped: 0, audited: 0 });
    p.edges.push(e);
    p.forwarded += e.forwarded;
    p.dropped += e.dropped;
    p.audited += e.audited;
  }
  return { workloads, edges, pairs };
}

export function title(w: Workload | undefined, id: string): string {
  return isolated(w ? (w.namespace ? `${w.namespace}/${w.name}` : w.name) : id);
}
