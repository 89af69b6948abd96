import cytoscape from "cytoscape";
import type { Pair, Shown } from "./state";
import type { Workload } from "./api";
import { rate } from "./dom";
import { type Arranged, type Ask, type Box, type Point, type Route, arrange, card, route } from "./layout";

// From so many workloads on what passes between two namespaces is one line, and what passes within
// one is not drawn: thousands of lines show nothing. What is refused has lines of its own, and so
// has what is selected.
const grown = 150;
const labelled = 120; // lines; more of them have labels only if they are refused
const widest = 190; // of a card
const margin = 28; // around the map
const headed = 6; // between a namespace's name and what is in it

// Kinds of lines of a pair: what was refused does not hide what was let in.
type Kind = "forwarded" | "audited" | "dropped";
const signs = { forwarded: "●", audited: "◐", dropped: "✕" };

interface Stroke { id: string; source: string; target: string; kind: Kind; pair: string; n: number; label: string }

const titleId = (namespace: string) => `t:${namespace}`, groupId = (namespace: string) => `g:${namespace}`, nodeId = (id: string) => `w:${id}`;

const measure = document.createElement("canvas").getContext("2d")!;
const family = "system-ui, sans-serif";

// Names may be of any length, which a canvas would measure whole.
function wide(text: string, font: number, weight = "normal"): number {
  measure.font = `${weight} ${font}px ${family}`;
  return Math.ceil(measure.measureText(text.slice(0, 80)).width);
}

// Graph draws what is shown. Workloads stay where they are while others come and go.
export class Graph {
  private cy: cytoscape.Core;
  private shown: Shown | undefined;
  private span = 60;
  private places = new Map<string, Point>(); // also of those that have gone
  private down: Arranged["down"] = { inner: false, outer: false };
  private big: boolean | undefined;
  private moved = false; // by the user
  private selected = "";
  private cursor = ""; // of the keyboard

  constructor(private box: HTMLElement, private select: (id: string) => void, private say: (text: string) => void) {
    this.cy = cytoscape({
      container: box, style: this.style(), layout: { name: "preset" }, minZoom: 0.03, maxZoom: 3,
      textureOnViewport: true, hideEdgesOnViewport: false, boxSelectionEnabled: false, pixelRatio: "auto",
    });
    this.cy.on("dragpan scrollzoom pinchzoom", () => { this.moved = true; });
    this.cy.on("tap", "node[workload]", e => select(e.target.id()));
    this.cy.on("tap", "edge[pair]", e => select(`p:${e.target.data("pair")}`));
    this.cy.on("tap", "edge[bundle]", e => select(`b:${e.target.data("bundle")}`));
    this.cy.on("tap", e => { if (e.target === this.cy) select(""); });
    this.cy.on("mouseover", "node[workload], edge", e => {
      box.title = String(e.target.data("title") ?? "");
      box.style.cursor = "pointer";
    });
    this.cy.on("mouseout", "node, edge", () => { box.title = box.style.cursor = ""; });
    this.cy.on("dragfree", "node", () => {
      this.moved = true;
      this.cy.nodes("[workload]").forEach(n => { this.places.set(n.id(), { ...n.position() }); });
      this.lead();
    });
    for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", () => this.cy.style(this.style()));
    box.addEventListener("keydown", e => this.key(e));
    box.addEventListener("blur", () => this.point(""));
  }

  private style(): cytoscape.StylesheetJson {
    const css = getComputedStyle(document.documentElement);
    const colour = (name: string) => css.getPropertyValue(`--${name}`).trim();
    const line = (kind: Kind) => ({ "line-color": colour(kind), "target-arrow-color": colour(kind), "color": colour(kind) });
    const point = (key: string) => (e: cytoscape.EdgeSingular) => { const p = e.data(key) as Point | undefined; return p ? `${p.x}px ${p.y}px` : "outside-to-node"; };
    return [
      { selector: "node[workload]", style: {
        "shape": "round-rectangle", "corner-radius": "6px", "width": "data(w)", "height": "data(h)", "label": "data(label)",
        "font-family": family, "font-size": 13, "color": colour("text"), "text-valign": "center", "text-halign": "center",
        "text-max-width": `${widest - 20}px`, "text-wrap": "ellipsis", "min-zoomed-font-size": 5,
        "background-color": colour("card"), "border-width": 1, "border-color": colour("rim"),
      } },
      { selector: "node[kind = 'entity']", style: { "corner-radius": "15px", "border-style": "dashed", "border-width": 1.5 } },
      { selector: "node[?service]", style: { "border-style": "double", "border-width": 4 } },
      { selector: "node[?hit]", style: { "border-color": colour("dropped") } },
      { selector: "node[?frame]", style: {
        "background-color": colour("group"), "border-width": 1, "border-color": colour("line"), "shape": "round-rectangle", "corner-radius": "10px", "padding": `${card.pad}px`,
      } },
      { selector: "node[?heading]", style: {
        "shape": "rectangle", "background-opacity": 0, "border-width": 0, "width": "data(w)", "height": "data(h)", "label": "data(label)", "font-family": family, "font-size": "data(font)",
        "font-weight": "bold", "color": colour("faint"), "text-valign": "center", "text-halign": "center", "text-max-width": "data(most)", "text-wrap": "ellipsis", "min-zoomed-font-size": 5, "events": "no",
      } },
      { selector: "edge", style: {
        "curve-style": "unbundled-bezier", "edge-distances": "endpoints", "target-arrow-shape": "triangle", "arrow-scale": 0.8, "width": "data(width)",
        ...line("forwarded"), "font-family": family, "font-size": 11, "min-zoomed-font-size": 6,
        "text-background-color": colour("back"), "text-background-opacity": 0.85, "text-background-padding": "1px", "text-background-shape": "round-rectangle",
      } },
      { selector: "edge[?routed]", style: {
        "source-endpoint": point("from"), "target-endpoint": point("to"), "control-point-distances": "data(distances)", "control-point-weights": "data(weights)",
      } },
      { selector: "edge[?labelled]", style: { "label": "data(labelled)", "text-margin-x": "data(dx)", "text-margin-y": "data(dy)" } },
      { selector: "edge[!routed]", style: { "curve-style": "bezier" } },
      { selector: "edge[kind = 'audited']", style: { ...line("audited"), "line-style": "dotted" } },
      // Refused: the line does not arrive.
      { selector: "edge[kind = 'dropped']", style: { ...line("dropped"), "line-style": "dashed", "line-dash-pattern": [7, 4], "target-arrow-shape": "tee", "arrow-scale": 1.1, "opacity": 1, "z-index": 2, "font-weight": "bold" } },
      { selector: "edge[?over]", style: { "z-index": 3 } },
      { selector: "edge[?bundle]", style: { "curve-style": "straight", "opacity": 0.3, "arrow-scale": 1.6, "line-cap": "round" } },
      { selector: "edge[?many]", style: { "curve-style": "straight", "opacity": 0.35, "width": 1.5, "arrow-scale": 0.6 } },
      { selector: "edge[?many][kind = 'dropped']", style: { "opacity": 1, "width": 3, "arrow-scale": 1 } },
      { selector: "edge[?many].near", style: { "opacity": 0.95, "width": 2.5 } },
      { selector: "edge.far", style: { "opacity": 0.12, "text-opacity": 0, "text-background-opacity": 0 } },
      { selector: "node.far[workload]", style: { "text-opacity": 0.45, "border-opacity": 0.35 } },
      { selector: ".picked", style: { "overlay-color": colour("forwarded"), "overlay-opacity": 0.14, "overlay-padding": 5 } },
      { selector: ".cursor", style: { "outline-width": 3, "outline-color": colour("forwarded"), "outline-offset": 3 } },
    ] as unknown as cytoscape.StylesheetJson;
  }

  // show brings the map to what is given, of so many seconds.
  show(shown: Shown, span: number): void {
    this.shown = shown;
    this.span = span;
    const cy = this.cy, big = shown.workloads.size > grown, fresh: cytoscape.ElementDefinition[] = [], wanted = new Set<string>();
    const put = (data: { id: string } & Record<string, unknown>, group: "nodes" | "edges") => {
      wanted.add(data.id);
      const have = cy.getElementById(data.id);
      if (have.empty()) fresh.push({ group, data });
      else if (Object.entries(data).some(([k, v]) => have.data(k) !== v)) have.data(data);
    };
    const hit = new Set<string>();
    for (const p of shown.pairs.values()) if (p.dropped) hit.add(p.destination);
    if (big !== this.big) this.places.clear(); // another sort of map
    this.big = big;
    let added = false;
    cy.batch(() => {
      const spaces = new Set<string>();
      for (const w of shown.workloads.values()) if (w.namespace) spaces.add(w.namespace);
      for (const ns of spaces) {
        const font = big ? 52 : 12, most = big ? 480 : 240;
        put({ id: groupId(ns), frame: true, title: ns }, "nodes");
        put({ id: titleId(ns), heading: true, parent: groupId(ns), label: ns, font, most: `${most}px`, w: Math.min(most, wide(ns, font, "bold")) + 4, h: font * 1.5 }, "nodes");
      }
      for (const w of shown.workloads.values()) {
        const label = w.kind === "entity" ? `◇ ${w.name}` : w.name;
        put({ id: nodeId(w.id), workload: true, label: label.slice(0, 80), kind: w.kind, service: (w.services ?? []).length > 0, hit: hit.has(w.id), parent: w.namespace ? groupId(w.namespace) : undefined,
          w: Math.max(64, Math.min(widest, wide(label, 13) + 24)), h: card.h, title: full(w) }, "nodes");
      }
      for (const e of this.lines(shown)) put(e, "edges");
      cy.elements().filter(e => !wanted.has(e.id())).remove();
      fresh.sort((a, b) => rankOf(a) - rankOf(b));
      added = cy.add(fresh).nonempty();
    });
    const unplaced = cy.nodes("[workload]").filter(n => !this.places.has(n.id()));
    if (unplaced.nonempty()) this.place(unplaced);
    else if (added || !this.inPlace()) this.position();
    if (big) this.pick(this.selected);
    else this.lead();
  }

  // inPlace reports whether all stand where they are to.
  private inPlace(): boolean { return this.cy.nodes("[workload]").toArray().every(n => { const p = this.places.get(n.id()), at = (n as cytoscape.NodeSingular).position(); return !p || p.x === at.x && p.y === at.y; }); }

  // lines are the edges that there are to be.
  private lines(shown: Shown): ({ id: string } & Record<string, unknown>)[] {
    const out: ({ id: string } & Record<string, unknown>)[] = [], bundles = new Map<string, { source: string; target: string; n: number }>();
    const end = (id: string) => { const ns = shown.workloads.get(id)?.namespace; return ns ? groupId(ns) : nodeId(id); };
    const picked = this.selected.slice(2);
    for (const p of shown.pairs.values()) {
      const strokes = strokesOf(p, this.span);
      const own = !this.big || p.source === picked || p.destination === picked || p.id === picked;
      const a = end(p.source), b = end(p.destination);
      for (const s of strokes) {
        if (a === b && !own && s.kind !== "dropped") continue;
        if (own || s.kind === "dropped") {
          out.push({ id: s.id, source: nodeId(s.source), target: nodeId(s.target), kind: s.kind, pair: s.pair, many: this.big, width: thick(s.n, this.span), label: s.label,
            title: `${name(shown, p.source)} → ${name(shown, p.destination)}: ${s.label}` });
          continue;
        }
        const key = `${a}>${b}`, have = bundles.get(key);
        bundles.set(key, { source: a, target: b, n: (have?.n ?? 0) + s.n });
      }
    }
    for (const [key, b] of bundles) out.push({ id: `b:${key}`, source: b.source, target: b.target, bundle: key, kind: "forwarded", width: 2 + 2 * thick(b.n, this.span),
      title: `${b.source.slice(2)} → ${b.target.slice(2)}: ${rate(b.n, this.span)}` });
    return out;
  }

  // place puts workloads that have come below those of their namespace, and leaves the others alone,
  // unless there is no room or half of them are new.
  private place(fresh: cytoscape.NodeCollection): void {
    const all = this.cy.nodes("[workload]"), rest = all.difference(fresh);
    if (rest.length < fresh.length * 2) return this.arrange();
    this.position();
    fresh.forEach((n, i) => {
      const near = n.parent().children("[workload]").intersection(rest), box = (near.nonempty() ? near : rest).boundingBox({ includeLabels: false, includeOverlays: false });
      this.places.set(n.id(), { x: box.x1 + Number(n.data("w")) / 2, y: box.y2 + (near.nonempty() ? 18 : 80) + card.h / 2 + i * (card.h + 18) });
    });
    this.position();
    const boxes = this.cy.nodes("[?frame], [workload]").filter(n => n.isOrphan()).map(n => n.boundingBox({ includeLabels: false, includeOverlays: false }));
    if (boxes.some((a, i) => boxes.some((b, j) => i < j && a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2))) this.arrange();
    else if (!this.moved) this.fit();
  }

  // arrange lays everything out again.
  arrange(): void {
    const cy = this.cy, boxes: Box[] = cy.nodes("[workload]").map(n => ({ id: n.id(), group: String(n.data("parent") ?? ""), w: Number(n.data("w")), h: Number(n.data("h")) }));
    if (!boxes.length || !this.shown) return;
    const titles = new Map(cy.nodes("[?heading]").toArray().map(n => [String(n.data("parent")), { w: Number(n.data("w")), h: Number(n.data("h")) + headed }]));
    const lines = [...this.shown.pairs.values()].map(p => ({ from: nodeId(p.source), to: nodeId(p.destination) }));
    ({ places: this.places, down: this.down } = arrange(boxes, lines, titles, { w: this.box.clientWidth - 2 * margin, h: this.box.clientHeight - 2 * margin }));
    this.position();
    if (!this.big) this.lead();
    this.fit();
  }

  // position moves everything to its place, names of namespaces above what is in them.
  private position(): void {
    this.cy.batch(() => {
      this.cy.nodes("[workload]").forEach(n => { const p = this.places.get(n.id()); if (p) n.position({ ...p }); });
      this.cy.nodes("[?heading]").forEach(t => {
        let left = Infinity, top = Infinity;
        t.siblings("[workload]").forEach(n => {
          left = Math.min(left, n.position("x") - Number(n.data("w")) / 2);
          top = Math.min(top, n.position("y") - card.h / 2);
        });
        t.position({ x: left + Number(t.data("w")) / 2, y: top - Number(t.data("h")) / 2 - headed });
      });
    });
  }

  // lead routes the lines of a small map.
  private lead(): void {
    if (this.big || !this.shown) return;
    const cards = new Map(this.cy.nodes("[workload], [?heading]").map(n => [n.id(), { ...n.position(), w: Number(n.data("w")), h: Number(n.data("h")), group: String(n.data("parent") ?? "") }]));
    const edges = this.cy.edges("[pair]"), first = { dropped: 0, audited: 1, forwarded: 2 };
    const asks: Ask[] = edges.map(e => {
      const kind = e.data("kind") as Kind, dropped = kind === "dropped", shown = dropped || edges.length <= labelled;
      return { id: e.id(), source: String(e.data("source")), target: String(e.data("target")), rank: first[kind],
        label: shown ? { w: wide(String(e.data("label")), 11) + 10, h: 16, must: dropped, above: dropped } : undefined };
    }).sort((a, b) => a.rank - b.rank || a.id.localeCompare(b.id));
    const routes = route(cards, asks, this.down);
    this.cy.batch(() => edges.forEach(e => {
      const r = routes.get(e.id());
      e.data(r ? { routed: true, ...relative(r, cards.get(String(e.data("source")))!, cards.get(String(e.data("target")))!), labelled: r.label ? e.data("label") : undefined, over: r.over }
        : { routed: false, labelled: asks.length <= labelled / 4 ? e.data("label") : undefined, dx: 0, dy: 0 });
    }));
  }

  fit(): void {
    this.moved = false;
    this.cy.resize();
    this.cy.fit(undefined, margin);
    if (this.cy.zoom() > 1.25) {
      this.cy.zoom(1.25);
      this.cy.center();
    }
  }

  // pick marks what is selected, and its neighbours.
  pick(selected: string): void {
    const cy = this.cy, again = this.big && selected !== this.selected;
    this.selected = selected;
    if (again && this.shown) return this.show(this.shown, this.span); // it has lines of its own
    cy.batch(() => {
      cy.elements().removeClass("far picked near");
      const e = selected.startsWith("p:") ? cy.edges().filter(x => x.data("pair") === selected.slice(2)) : cy.getElementById(selected);
      if (!selected || e.empty()) return;
      const near = e.union(e.connectedEdges()).union(e.connectedEdges().connectedNodes()).union(e.connectedNodes());
      cy.elements().difference(near).addClass("far");
      near.edges().addClass("near");
      e.addClass("picked");
    });
  }

  // resize follows the size of the box; all stays in sight unless the user has moved the map.
  resize(): void {
    if (this.box.hidden) return;
    if (this.moved) this.cy.resize();
    else this.fit();
  }

  // key leads from workload to workload by arrows, and Enter selects.
  private key(e: KeyboardEvent): void {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[e.key];
    if (e.key === "Enter" && this.cursor) return this.select(this.cursor);
    if (!way) return;
    e.preventDefault();
    e.stopPropagation();
    const all = this.cy.nodes("[workload]"), now = this.cy.getElementById(this.cursor || this.selected);
    if (all.empty()) return;
    if (now.empty() || !now.data("workload")) return this.point(all.sort((a, b) => (a as cytoscape.NodeSingular).position("x") - (b as cytoscape.NodeSingular).position("x"))[0]!.id());
    let best = "", least = Infinity;
    all.forEach(n => {
      const dx = n.position("x") - now.position("x"), dy = n.position("y") - now.position("y"), ahead = dx * way[0]! + dy * way[1]!, aside = Math.abs(dx * way[1]!) + Math.abs(dy * way[0]!);
      if (n.id() !== now.id() && ahead > 1 && ahead + 2 * aside < least) [best, least] = [n.id(), ahead + 2 * aside];
    });
    if (best) this.point(best);
  }

  // point has the keyboard be at a workload.
  private point(id: string): void {
    this.cy.nodes(".cursor").removeClass("cursor");
    this.cursor = id;
    const n = this.cy.getElementById(id);
    if (!id || n.empty()) return;
    n.addClass("cursor");
    const box = n.renderedBoundingBox({}), inside = box.x1 >= 0 && box.y1 >= 0 && box.x2 <= this.cy.width() && box.y2 <= this.cy.height();
    if (!inside) this.cy.center(n);
    this.say(String(n.data("title")));
  }
}

const rankOf = (e: cytoscape.ElementDefinition) => e.group === "edges" ? 2 : e.data.frame ? 0 : 1;

function name(shown: Shown, id: string): string {
  const w = shown.workloads.get(id);
  return w ? full(w) : id;
}

function full(w: Workload): string { return (w.namespace ? `${w.namespace}/${w.name}` : w.name).slice(0, 300); }

function strokesOf(p: Pair, span: number): Stroke[] {
  const kinds = (["dropped", "audited", "forwarded"] as const).filter(k => p[k] > 0);
  // Open for longer than the time shown: let in then.
  return (kinds.length ? kinds : ["forwarded" as const]).map(kind => ({
    id: `${kind[0]}:${p.id}`, source: p.source, target: p.destination, kind, pair: p.id, n: p[kind], label: `${signs[kind]} ${p[kind] ? rate(p[kind], span) : "open"}`,
  }));
}

function thick(n: number, span: number): number { return 1.5 + Math.min(5, Math.log2(1 + 60 * n / span) / 2.2); }

// relative is a route as the library has it: ends from the middle of cards, bends along and beside
// the straight line between the ends.
function relative(r: Route, source: Point, target: Point): Record<string, unknown> {
  const dx = r.to.x - r.from.x, dy = r.to.y - r.from.y, length = Math.hypot(dx, dy) || 1, weights: number[] = [], distances: number[] = [];
  for (const b of r.bends) {
    const x = b.x - r.from.x, y = b.y - r.from.y;
    weights.push((x * dx + y * dy) / (length * length));
    distances.push((y * dx - x * dy) / length);
  }
  return { weights, distances, from: { x: r.from.x - source.x, y: r.from.y - source.y }, to: { x: r.to.x - target.x, y: r.to.y - target.y },
    dx: (r.label?.x ?? 0) - r.middle.x, dy: (r.label?.y ?? 0) - r.middle.y };
}
