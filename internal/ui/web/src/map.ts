import cytoscape from "cytoscape";
// @ts-expect-error the layout has no types of its own
import fcose from "cytoscape-fcose";
import type { Shown, Pair } from "./state";
import type { Workload } from "./api";

cytoscape.use(fcose);

// From so many workloads on the map is a grid: forces take long then, and leave a knot.
const grown = 150;

const group = (w: Workload) => w.namespace ? `ns:${w.namespace}` : undefined;

// Graph draws what is shown. Workloads stay where they are while others come and go.
export class Graph {
  private cy: cytoscape.Core;
  private arranged = false;
  private moved = false; // by the user

  constructor(private box: HTMLElement, select: (id: string) => void) {
    this.cy = cytoscape({
      container: box, style: this.style(), layout: { name: "preset" }, minZoom: 0.05, maxZoom: 3,
      textureOnViewport: true, boxSelectionEnabled: false, pixelRatio: "auto",
    });
    this.cy.on("dragpan scrollzoom pinchzoom", () => { this.moved = true; });
    this.cy.on("tap", "node[!group]", e => select(`w:${e.target.id()}`));
    this.cy.on("tap", "edge", e => select(`p:${e.target.id().slice(2)}`));
    this.cy.on("tap", e => { if (e.target === this.cy) select(""); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.cy.style(this.style()));
  }

  private style(): cytoscape.StylesheetJson {
    const css = getComputedStyle(document.documentElement);
    const colour = (name: string) => css.getPropertyValue(`--${name}`).trim();
    return [
      { selector: "node", style: {
        "label": "data(label)", "font-size": 11, "color": colour("text"), "text-valign": "bottom", "text-margin-y": 3, "min-zoomed-font-size": 7,
        "background-color": colour("faint"), "width": 22, "height": 22, "text-max-width": "130px", "text-wrap": "ellipsis",
      } },
      { selector: "node[kind = 'entity']", style: { "shape": "diamond" } },
      { selector: "node[kind = 'pod']", style: { "shape": "round-rectangle" } },
      { selector: "node[?service]", style: { "border-width": 3, "border-color": colour("text") } },
      { selector: "node[?group]", style: {
        "background-color": colour("group"), "border-width": 1, "border-color": colour("line"), "shape": "round-rectangle", "text-valign": "top",
        "font-size": 13, "font-weight": "bold", "padding": "14px", "text-max-width": "900px", "color": colour("faint"), "min-zoomed-font-size": 4,
      } },
      { selector: "edge", style: {
        "curve-style": "bezier", "target-arrow-shape": "triangle", "arrow-scale": 0.8, "width": "data(width)",
        "line-color": colour("forwarded"), "target-arrow-color": colour("forwarded"), "opacity": 0.75,
      } },
      { selector: "edge[?audited]", style: { "line-color": colour("audited"), "target-arrow-color": colour("audited"), "line-style": "dotted" } },
      { selector: "edge[?dropped]", style: {
        "line-color": colour("dropped"), "target-arrow-color": colour("dropped"), "line-style": "dashed", "opacity": 0.95, "z-index": 2,
      } },
      { selector: "node.many", style: { "font-size": 48, "text-margin-y": 0 } },
      { selector: "edge.many", style: { "curve-style": "haystack", "opacity": 0.35, "width": 1 } },
      { selector: "edge.many[?dropped]", style: { "curve-style": "straight", "opacity": 0.9, "width": 2 } },
      // Refused, and nothing let in: the arrow does not arrive.
      { selector: "edge[?refused]", style: { "target-arrow-shape": "tee" } },
      { selector: ".far", style: { "opacity": 0.15 } },
      { selector: "node[?group].far", style: { "opacity": 1, "text-opacity": 0.3 } },
      { selector: ".picked", style: { "overlay-color": colour("pick"), "overlay-opacity": 0.5, "overlay-padding": 6 } },
    ] as unknown as cytoscape.StylesheetJson;
  }

  // show brings the map to what is given.
  show(shown: Shown): void {
    const cy = this.cy;
    const fresh: cytoscape.ElementDefinition[] = [];
    const wanted = new Set<string>();
    cy.batch(() => {
      for (const w of shown.workloads.values()) {
        const parent = group(w);
        if (parent && !wanted.has(parent)) {
          wanted.add(parent);
          if (cy.getElementById(parent).empty()) fresh.push({ group: "nodes", data: { id: parent, label: w.namespace, group: true } });
        }
        wanted.add(w.id);
        const data = { id: w.id, label: w.name, kind: w.kind, service: (w.services ?? []).length > 0, parent };
        const have = cy.getElementById(w.id);
        if (have.empty()) fresh.push({ group: "nodes", data });
        else have.data(data);
      }
      for (const p of shown.pairs.values()) {
        const id = `p:${p.id}`;
        wanted.add(id);
        const data = { id, source: p.source, target: p.destination, ...look(p) };
        const have = cy.getElementById(id);
        if (have.empty()) fresh.push({ group: "edges", data });
        else have.data(data);
      }
      cy.elements().filter(e => !wanted.has(e.id())).remove();
    });
    const before = cy.nodes("[!group]").length;
    fresh.sort((a, b) => Number(a.group === "edges") - Number(b.group === "edges") || Number(!a.data.group) - Number(!b.data.group));
    const added = cy.add(fresh);
    cy.edges().toggleClass("many", cy.edges().length > grown * 3);
    cy.nodes("[?group]").toggleClass("many", cy.nodes("[!group]").length > grown);
    const nodes = added.nodes("[!group]");
    if (nodes.empty()) return;
    if (!this.arranged || nodes.length > before) this.arrange();
    else this.place(nodes);
  }

  // place puts new workloads below those of their namespace, and leaves the others alone.
  private place(nodes: cytoscape.NodeCollection): void {
    const rest = this.cy.nodes("[!group]").difference(nodes);
    const box = rest.boundingBox();
    nodes.forEach((n, i) => {
      const siblings = n.siblings("[!group]").intersection(rest);
      const near = siblings.nonempty() ? siblings.boundingBox() : { x1: box.x1, y2: box.y2 + 80, w: 400 };
      const columns = Math.max(1, Math.floor(near.w / 90));
      n.position({ x: near.x1 + 30 + (i % columns) * 90, y: near.y2 + 30 + Math.floor(i / columns) * 60 });
    });
  }

  // arrange lays everything out anew.
  arrange(): void {
    const n = this.cy.nodes("[!group]").length;
    if (!n) return;
    this.arranged = true;
    if (n > grown) this.grid();
    else this.cy.layout({
      name: "fcose", animate: false, randomize: true, nodeSeparation: 90, idealEdgeLength: 110, nodeRepulsion: 9000, packComponents: true, padding: 40,
      nodeDimensionsIncludeLabels: true,
    } as unknown as cytoscape.LayoutOptions).run();
    this.fit();
  }

  // grid sets namespaces side by side, in rows, and the workloads of each in rows.
  private grid(): void {
    const step = 90, gap = 70;
    const groups = new Map<string, cytoscape.NodeSingular[]>();
    this.cy.nodes("[!group]").sort((a, b) => a.id().localeCompare(b.id())).forEach(n => {
      const key = String(n.data("parent") ?? "");
      groups.set(key, [...(groups.get(key) ?? []), n]);
    });
    const columns = (nodes: unknown[]) => Math.ceil(Math.sqrt(nodes.length * 1.6));
    let area = 0;
    for (const nodes of groups.values()) area += (columns(nodes) * step + gap) * (Math.ceil(nodes.length / columns(nodes)) * step + gap);
    const width = Math.sqrt(area * 1.7);
    let x = 0, y = 0, row = 0;
    this.cy.batch(() => {
      for (const [, nodes] of [...groups].sort(([a], [b]) => a.localeCompare(b))) {
        const across = columns(nodes), down = Math.ceil(nodes.length / across);
        if (x > 0 && x + across * step > width) {
          x = 0;
          y += row + gap;
          row = 0;
        }
        nodes.forEach((n, i) => n.position({ x: x + (i % across) * step, y: y + Math.floor(i / across) * step }));
        x += across * step + gap;
        row = Math.max(row, down * step);
      }
    });
  }

  fit(): void {
    this.moved = false;
    this.cy.resize();
    this.cy.fit(undefined, 40);
    if (this.cy.zoom() > 1.4) {
      this.cy.zoom(1.4);
      this.cy.center();
    }
  }

  // pick marks what is selected, and its neighbours.
  pick(selected: string): void {
    const cy = this.cy;
    cy.batch(() => {
      cy.elements().removeClass("far picked");
      const e = cy.getElementById(selected.startsWith("p:") ? selected : selected.slice(2));
      if (!selected || e.empty()) return;
      const near = e.closedNeighborhood().union(cy.edges().filter(other => other.same(e)).connectedNodes());
      cy.elements().difference(near).difference(near.nodes().parent()).addClass("far");
      e.addClass("picked");
    });
  }

  // resize follows the size of the box; all stays in sight unless somebody has moved the map.
  resize(): void {
    if (this.box.hidden) return;
    if (this.moved) this.cy.resize();
    else this.fit();
  }
}

function look(p: Pair): { width: number; dropped: boolean; audited: boolean; refused: boolean } {
  return {
    width: 1.2 + Math.min(6, Math.log2(1 + p.forwarded + p.dropped + p.audited) / 1.6),
    dropped: p.dropped > 0, audited: p.audited > 0, refused: p.dropped > 0 && p.forwarded === 0,
  };
}
