import type { Snapshot } from "./api";
import { byId, el, time } from "./dom";
import type { State } from "./state";

const height = 56;
const day = 24 * 3600 * 1000;

// drawTimeline shows what happened in the quarter of an hour that is kept, the time that is looked
// at, and where policies changed.
export function drawTimeline(s: Snapshot, state: State, set: (until: number) => void, select: (id: string) => void): void {
  const first = Date.parse(s.timeline[0]?.start ?? s.now), bucket = s.timeline.length > 1 ? Date.parse(s.timeline[1]!.start) - first : 10000;
  const end = first + bucket * s.timeline.length, part = (at: number) => Math.min(1, Math.max(0, (at - first) / (end - first)));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${s.timeline.length} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  const bar = (x: number, y: number, width: number, high: number, kind: string) => {
    const r = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [k, v] of Object.entries({ x, y, height: high, width, class: kind })) r.setAttribute(k, String(v));
    svg.append(r);
  };
  const from = part(Date.parse(s.from)) * s.timeline.length, to = part(Date.parse(s.to)) * s.timeline.length;
  bar(from, 0, to - from, height, "chosen");
  // A few refused ones are seen beside thousands that are let in.
  const top = Math.log2(2 + Math.max(0, ...s.timeline.map(t => t.forwarded + t.audited + t.dropped)));
  s.timeline.forEach((t, i) => {
    const all = t.forwarded + t.audited + t.dropped;
    if (!all) return;
    const high = Math.max(3, (height - 2) * Math.log2(1 + all) / top), out = t.dropped ? Math.max(3, high * Math.max(0.2, t.dropped / all)) : 0;
    bar(i + 0.08, height - high, 0.84, high, "in");
    if (out) bar(i + 0.08, height - out, 0.84, out, "out");
  });
  byId("histogram").replaceChildren(svg);
  byId("chart").onclick = e => {
    if ((e.target as HTMLElement).closest("button")) return;
    const box = byId("histogram").getBoundingClientRect();
    set(Math.floor((first + (e.clientX - box.left) / box.width * (end - first)) / 1000));
  };
  drawTicks(first, end);
  drawMarks(s, state, part, select);
  const until = byId<HTMLInputElement>("until"), now = Math.floor(Date.parse(s.now) / 1000);
  until.min = String(now - 900);
  until.max = String(now);
  until.step = "10";
  if (document.activeElement !== until || !state.until) until.value = String(state.until || now);
  until.setAttribute("aria-valuetext", state.until ? `until ${time(s.to)}` : "now");
  byId("when").textContent = state.until ? `until ${time(s.to)}` : time(s.now);
}

// drawTicks writes the hours and minutes of the day below.
function drawTicks(first: number, end: number): void {
  const offset = new Date(end).getTimezoneOffset() * 60000, step = 3 * 60000, out: HTMLElement[] = [];
  for (let at = Math.ceil(first / step) * step; at < end - 20000; at += step) {
    const t = el("span", {}, new Date((at - offset + day) % day).toISOString().slice(11, 16));
    t.style.left = `${100 * (at - first) / (end - first)}%`;
    out.push(t);
  }
  byId("ticks").replaceChildren(...out);
}

// drawMarks keeps the buttons that are there already: one of them may have the focus.
function drawMarks(s: Snapshot, state: State, part: (at: number) => number, select: (id: string) => void): void {
  const box = byId("marks"), have = new Map([...box.children].map(c => [(c as HTMLElement).dataset.mark, c as HTMLElement]));
  for (const m of s.marks ?? []) {
    const button = have.get(m.id) ?? el("button", { "data-mark": m.id, click: () => select(`c:${m.id}`) }, "◆");
    have.delete(m.id);
    const names = m.policies.slice(0, 5).map(p => `${p.policy} ${p.deleted ? "deleted" : "changed"}`).join(", ");
    const text = `${time(m.time)}: ${names}${m.policies.length > 5 || m.leftOut ? " and others" : ""}`;
    button.title = text.slice(0, 600);
    button.setAttribute("aria-label", `Change of policies at ${text}`.slice(0, 600));
    button.setAttribute("aria-current", String(state.selected === `c:${m.id}`));
    button.style.left = `${100 * part(Date.parse(m.time))}%`;
    if (!button.isConnected) box.append(button);
  }
  for (const gone of have.values()) gone.remove();
}
