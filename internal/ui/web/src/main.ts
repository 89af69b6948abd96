import { type Edge, type Effect, type Explanation, type Flow, type Health, type Reach, type Snapshot, type Status, get } from "./api";
import { amount, byId, el, renew } from "./dom";
import { Graph } from "./map";
import { May, accessPanel, matrixView } from "./matrix";
import { nodesView } from "./nodes";
import { byPolicy, edgeRow, edgesPanel, flowTable, whyPanel, workloadPanel } from "./panel";
import { WhatIf } from "./whatif";
import { markPanel } from "./changes";
import { drawTimeline } from "./timeline";
import { type Shown, type State, filter, fromAddress, pairId, toAddress, views } from "./state";

const poll = 2000; // milliseconds
const listed = 200; // connections in the list
const reachPoll = 15000;

let state: State = fromAddress();
let snapshot: Snapshot | undefined;
let shown: Shown = { workloads: new Map(), edges: [], pairs: new Map() };
let flows: Flow[] | undefined; // of what is selected
let asked = "";
let last: Status | undefined;
let may: May | undefined;
let health: Health | undefined; // of nodes, when they were last looked at
const whatIf = new WhatIf(byId("whatif"));
const graph = new Graph(byId("map"), select, text => { byId("spoken").textContent = text; });
let effect: Effect | undefined; // of the change of policies that is selected
let effectProblem = "";
let why: { edge: string; at: number; found?: Explanation } = { edge: "", at: 0 }; // of what is selected and refused

// set changes what is shown; `again` asks the server for it.
function set(change: Partial<State>, again = false): void {
  state = { ...state, ...change };
  toAddress(state);
  if (again) void refresh();
  else draw();
}

function select(id: string): void {
  if (id !== state.selected) [flows, effect, effectProblem] = [undefined, undefined, ""];
  set({ selected: id });
  void refreshFlows();
  void refreshReach();
  void refreshWhy();
}

let busy: AbortController | undefined;

// refresh asks the server for what happened.
async function refresh(): Promise<void> {
  busy?.abort();
  const mine = busy = new AbortController();
  try {
    const span = { span: state.span, until: state.until || undefined };
    const [map, status, reach] = await Promise.all([get<Snapshot>("map", span, mine.signal), get<Status>("status", {}, mine.signal),
      state.view === "nodes" ? get<Health>("health", {}, mine.signal) : health]);
    health = reach;
    snapshot = map;
    showStatus(status);
    draw();
    void refreshWhy();
    void refreshReach(); // a server that takes its time for that does not hold up the rest
    await refreshFlows();
  } catch (e) {
    if (mine.signal.aborted) return;
    byId("status").textContent = e instanceof TypeError ? "hawser ui does not answer" : String((e as Error).message);
    byId("status").className = "bad";
  }
}

// refreshFlows asks for the latest flows of what is selected, or of all.
async function refreshFlows(): Promise<void> {
  const all = state.view === "flows";
  if (state.selected.startsWith("c:")) void refreshEffect();
  if (!all && !/^[wpe]:/.test(state.selected)) return;
  const key = `${state.view}|${state.selected}|${state.verdict}|${state.until}`;
  const [kind, id] = [state.selected.slice(0, 2), state.selected.slice(2)];
  const verdict = { dropped: "DROPPED", forwarded: "FORWARDED", audited: "AUDIT" }[state.verdict];
  asked = key;
  try {
    const pair = shown.pairs.get(id);
    const edges = kind === "p:" && pair ? pair.edges.map(e => e.id) : [kind === "e:" ? id : ""];
    const limit = all ? 300 : 50;
    const found = await Promise.all(edges.slice(0, 8).map(edge => get<Flow[]>("flows", { edge, workload: kind === "w:" ? id : "", verdict, until: state.until || undefined, limit })));
    if (asked !== key) return;
    flows = found.flat().sort((a, b) => b.time.localeCompare(a.time)).slice(0, limit);
    if (all) drawFlows();
    drawPanel();
  } catch { /* refresh shows what is wrong */ }
}

// chosen are the edges that are selected.
function chosen(): Edge[] {
  const [kind, id] = [state.selected.slice(0, 2), state.selected.slice(2)];
  return kind === "p:" ? shown.pairs.get(id)?.edges ?? [] : kind === "e:" ? shown.edges.filter(e => e.id === id) : [];
}

// refreshWhy asks, now and then, why policy refuses what is selected.
async function refreshWhy(): Promise<void> {
  const edge = byPolicy(chosen())?.id ?? "";
  if (!edge || edge === why.edge && Date.now() - why.at < reachPoll) return;
  why = { edge, at: Date.now(), found: edge === why.edge ? why.found : undefined };
  try {
    const found = await get<Explanation>("explain", { edge });
    if (why.edge === edge) why.found = found;
  } catch (e) {
    if (why.edge === edge) why.found = { error: e instanceof TypeError ? "hawser ui does not answer" : String((e as Error).message), refused: true, sides: null, suggestions: null };
  }
  drawPanel();
}

// refreshEffect asks what a change of policies has changed.
async function refreshEffect(): Promise<void> {
  const mine = state.selected;
  try {
    const found = await get<Effect>("change", { id: mine.slice(2) });
    if (mine !== state.selected) return;
    [effect, effectProblem] = [found, ""];
  } catch (e) {
    if (mine === state.selected) effectProblem = e instanceof TypeError ? "hawser ui does not answer" : String((e as Error).message);
  }
  drawPanel();
}

function showStatus(s: Status): void {
  const e = byId("status"), connected = s.nodes.filter(n => n.state === "connected").length;
  const bad = !s.connected || connected < s.nodes.length;
  const missed = snapshot && snapshot.lost + snapshot.notShown;
  e.className = bad ? "bad" : "";
  e.textContent = (s.connected ? `${connected} of ${s.nodes.length} nodes` : `no flows: ${s.error ?? "connecting"}`) + (missed ? `; ${missed} events missed, numbers are at least so many` : "");
  byId("marks").dataset.note = s.marks ? "Changes of policies are not known: the server does not report them."
    : snapshot?.marksLost ? `Changes of policies may be missing: ${amount(snapshot.marksLost)} events of agents were lost.` : "";
  last = s;
  drawNodes();
}

function drawNodes(): void {
  if (state.view !== "nodes" || !last) return;
  const box = byId("nodes"), open = box.querySelector("details")?.open;
  box.replaceChildren(...nodesView(last, health));
  const details = box.querySelector("details");
  if (details && open) details.open = true;
}

function draw(): void {
  for (const b of byId("views").children) b.setAttribute("aria-selected", String((b as HTMLElement).dataset.view === state.view));
  for (const v of views) byId(v).hidden = state.view !== v;
  byId("legend").hidden = state.view !== "map";
  byId<HTMLInputElement>("search").value = state.query;
  byId<HTMLSelectElement>("verdict").value = state.verdict;
  byId<HTMLSelectElement>("span").value = String(state.span);
  byId("live").setAttribute("aria-pressed", String(!state.until));
  if (!snapshot) return;
  shown = filter(snapshot, state);
  drawNamespaces(snapshot);
  drawTimeline(snapshot, state, at => set({ until: at >= now() - 5 ? 0 : at }, true), select);
  drawList();
  if (state.view === "map") {
    graph.show(shown, Math.max(1, (Date.parse(snapshot.to) - Date.parse(snapshot.from)) / 1000));
    const edge = state.selected.startsWith("e:") && shown.edges.find(e => e.id === state.selected.slice(2));
    graph.pick(edge ? `p:${pairId(edge)}` : state.selected);
  }
  if (state.view === "matrix") drawMatrix();
  drawNodes();
  const empty = byId("empty");
  empty.hidden = shown.edges.length > 0 || state.view === "nodes" || state.view === "flows" || state.view === "whatif" || state.view === "matrix" && !!may?.reach.parties.length;
  empty.textContent = snapshot.edges.length ? "Nothing passes these filters." : "No traffic has been seen in this time.";
  drawPanel();
  document.body.dataset.workloads = String(shown.workloads.size);
  document.body.dataset.edges = String(shown.edges.length);
}

function drawNamespaces(s: Snapshot): void {
  const names = [...new Set([...s.workloads.filter(w => w.id !== ":link-local").map(w => w.namespace ?? ""), ...state.namespaces])].sort();
  byId("namespaces").querySelector("summary")!.textContent =
    state.namespaces.length === 0 ? "All namespaces" : state.namespaces.length === 1 ? state.namespaces[0] || "outside" : `${state.namespaces.length} namespaces`;
  const box = byId("namespace-list");
  const content = JSON.stringify([names, state.namespaces, state.local]);
  if (box.dataset.names === content) return;
  box.dataset.names = content;
  box.replaceChildren(...names.map(name => el("label", {}, el("input", {
    type: "checkbox", checked: state.namespaces.includes(name),
    change: () => set({ namespaces: state.namespaces.includes(name) ? state.namespaces.filter(n => n !== name) : [...state.namespaces, name] }),
  }), " ", name || "outside of namespaces")), el("label", {}, el("input", { type: "checkbox", checked: state.local, change: () => set({ local: !state.local }) }),
  " multicast and neighbour discovery"));
}

function drawList(): void {
  const order = [...shown.edges].sort((a, b) => b.dropped - a.dropped || b.audited - a.audited || b.forwarded - a.forwarded || a.id.localeCompare(b.id));
  const rows: HTMLElement[] = order.slice(0, listed).map(e => edgeRow(e, shown, state.selected === `e:${e.id}`, select));
  if (order.length > listed) rows.push(el("div", { class: "more" }, `and ${order.length - listed} more: search for them`));
  renew(byId("list"), rows);
}

// bundled are the edges of one line of a large map, between namespaces.
function bundled(key: string): Edge[] {
  const end = (id: string) => { const ns = shown.workloads.get(id)?.namespace; return ns ? `g:${ns}` : `w:${id}`; };
  return shown.edges.filter(e => `${end(e.source)}>${end(e.destination)}` === key);
}

function panelOf(kind: string, id: string): HTMLElement[] {
  switch (kind) {
    case "w:": {
      const w = shown.workloads.get(id);
      return w ? workloadPanel(w, shown, may?.selecting(id) ?? [], select) : [];
    }
    case "c:": {
      const mark = snapshot?.marks.find(m => m.id === id);
      return mark ? markPanel(mark, effect, effectProblem, shown, select, at => set({ until: at >= now() - 5 ? 0 : at, view: "map" }, true))
        : [el("p", {}, "This change of policies is more than a quarter of an hour ago.")];
    }
    case "b:": {
      const edges = bundled(id), [from = "", to = ""] = id.split(">").map(end => end.slice(2).replace(/^:/, ""));
      return edges.length ? [el("h2", {}, `${from} → ${to}`), el("p", { class: "more" }, `${edges.length} kinds of connections`), ...edges.slice(0, listed).map(e => edgeRow(e, shown, false, select))] : [];
    }
  }
  const edges = chosen(), refused = byPolicy(edges);
  const [from = "", to = ""] = edges[0] ? [edges[0].source, edges[0].destination] : may?.ends(id) ?? [];
  const access = accessPanel(may?.access(from, to));
  if (edges.length) return edgesPanel(edges, flows, access, refused ? whyPanel(refused, why.edge === refused.id ? why.found : undefined, tryOut) : [], shown, select);
  return access.length ? [el("h2", {}, `${from.replace(/^:/, "")} → ${to.replace(/^:/, "")}`), el("p", {}, "Not seen in this time, or the filters leave it out."), ...access] : [];
}

// tryOut has What if evaluate a policy that is suggested.
function tryOut(document: string): void {
  show("whatif");
  whatIf.put(document);
}

function drawPanel(): void {
  const panel = byId("panel"), [kind, id] = [state.selected.slice(0, 2), state.selected.slice(2)], was = panel.hidden;
  let content = id ? panelOf(kind, id) : [];
  if (state.selected && !content.length) content = [el("p", {}, "What is selected has no traffic in this time, or the filters leave it out.")];
  panel.hidden = !content.length;
  renew(panel, [el("button", { class: "close", title: "Close (Esc)", "aria-label": "Close", click: () => select("") }, "✕"), ...content]);
  if (was !== panel.hidden) graph.resize();
}

function drawMatrix(): void {
  const box = byId("matrix"), focused = (document.activeElement as HTMLElement | null)?.dataset.pair;
  const [x, y] = [box.querySelector(".grid")?.scrollLeft ?? 0, box.querySelector(".grid")?.scrollTop ?? 0];
  box.replaceChildren(...matrixView(shown, state, may, mode => set({ matrix: mode }), select));
  box.querySelector(".grid")?.scrollTo(x, y);
  if (!focused) return;
  const button = [...box.querySelectorAll<HTMLElement>("td button")].find(b => b.dataset.pair === focused);
  if (!button) return;
  box.querySelector("td button")?.setAttribute("tabindex", "-1");
  button.setAttribute("tabindex", "0");
  button.focus();
}

let reached = 0, reachedOf = "";

// refreshReach periodically requests the allowed connections, while they are shown.
async function refreshReach(): Promise<void> {
  if (state.view !== "matrix" && !state.selected) return;
  const of = JSON.stringify(state.namespaces);
  if (of === reachedOf && Date.now() - reached < reachPoll) return;
  [reached, reachedOf] = [Date.now(), of];
  try {
    may = new May(await get<Reach>("reach", { ns: state.namespaces }));
    draw();
  } catch { /* refresh shows what is wrong */ }
}

function drawFlows(): void { renew(byId("flows"), [flowTable(flows ?? [], false)]); }

function show(view: State["view"]): void {
  set({ view });
  if (view === "flows") void refreshFlows();
  if (view === "nodes" || view === "matrix") void refresh();
  if (view === "whatif") whatIf.focus();
}

function step(by: number): void {
  const rows = [...byId("list").querySelectorAll<HTMLElement>(".row")];
  const at = rows.findIndex(r => r.getAttribute("aria-current") === "true");
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + by))];
  if (!next) return;
  next.scrollIntoView({ block: "nearest" });
  select(`e:${next.dataset.edge}`);
}

// now is the server's time: the browser's clock may be another.
function now(): number { return Math.floor(Date.parse(snapshot?.now ?? new Date().toISOString()) / 1000); }

// stepMark leads from a change of policies to the one before it, from none to the latest.
function stepMark(): void {
  const marks = snapshot?.marks ?? [], at = marks.findIndex(m => `c:${m.id}` === state.selected), next = marks[at > 0 ? at - 1 : marks.length - 1];
  if (next) select(`c:${next.id}`);
}

function hold(): void {
  set({ until: state.until ? 0 : now() }, true);
}

const names = { map: "Map", matrix: "Matrix", flows: "Flows", nodes: "Nodes", whatif: "What if" };
byId("views").append(...views.map((v, i) => el("button", { role: "tab", "data-view": v, title: `${i + 1}`, click: () => show(v) }, names[v])));
byId("search").addEventListener("input", e => set({ query: (e.target as HTMLInputElement).value }));
byId("verdict").addEventListener("change", e => { set({ verdict: (e.target as HTMLSelectElement).value }); void refreshFlows(); });
byId("span").addEventListener("change", e => set({ span: Number((e.target as HTMLSelectElement).value) }, true));
byId("until").addEventListener("input", e => { const at = Number((e.target as HTMLInputElement).value); set({ until: at >= now() - 5 ? 0 : at }, true); });
byId("live").addEventListener("click", hold);
byId("arrange").addEventListener("click", () => graph.arrange());
byId("help-button").addEventListener("click", () => byId<HTMLDialogElement>("help").showModal());
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) location.reload(); // of a server that was restarted
  state = fromAddress();
  void refresh();
});
addEventListener("resize", () => graph.resize());
addEventListener("keydown", e => {
  const typing = e.target instanceof HTMLTextAreaElement || e.target instanceof HTMLInputElement && e.target.type === "search";
  if (e.key === "Escape") {
    if (typing) (e.target as HTMLElement).blur();
    else select("");
    return;
  }
  if (typing || e.ctrlKey || e.metaKey || e.altKey || e.target instanceof HTMLSelectElement || byId<HTMLDialogElement>("help").open) return;
  const keys: Record<string, () => void> = {
    "/": () => byId("search").focus(), "j": () => step(1), "k": () => step(-1), "l": hold, "a": () => graph.arrange(), "f": () => graph.fit(),
    "d": () => set({ verdict: state.verdict === "dropped" ? "" : "dropped" }), "?": () => byId<HTMLDialogElement>("help").showModal(),
    "1": () => show("map"), "2": () => show("matrix"), "3": () => show("flows"), "4": () => show("nodes"), "5": () => show("whatif"),
    "c": stepMark,
    "m": () => set({ view: "matrix", matrix: state.matrix === "differences" ? "" : "differences" }),
  };
  const key = keys[e.key];
  if (!key) return;
  e.preventDefault();
  key();
});

async function loop(): Promise<void> {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise(done => setTimeout(done, poll));
  }
}
draw();
void loop();
