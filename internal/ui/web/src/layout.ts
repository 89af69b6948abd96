// Where things are on the map: clients stand before servers, left or above, namespaces as well as
// the workloads in them. The same graph always looks the same.

export interface Point { x: number; y: number }
export interface Box { id: string; group: string; w: number; h: number }
export interface Line { from: string; to: string }

interface Item { id: string; w: number; h: number }
interface Layered { places: Map<string, Point>; w: number; h: number } // corners, from 0,0

export const card = { h: 30, pad: 16 };
// Gaps between those that ask and those that are asked, where lines have their labels, and between
// neighbours; from left to right, and downwards.
const gaps = { inner: { right: [108, 22], down: [48, 30] }, outer: { right: [92, 34], down: [64, 44] } } as const;
const sweeps = 6;

// ranks returns the column of each: one more than those that ask it. What closes a circle does not
// count.
function ranks(ids: string[], lines: Line[]): Map<string, number> {
  const next = new Map<string, string[]>(ids.map(id => [id, []])), asked = new Map<string, number>(), asks = new Map<string, number>();
  for (const l of lines) {
    next.get(l.from)?.push(l.to);
    asks.set(l.from, (asks.get(l.from) ?? 0) + 1);
    asked.set(l.to, (asked.get(l.to) ?? 0) + 1);
  }
  const score = (id: string) => (asked.get(id) ?? 0) - (asks.get(id) ?? 0);
  const order = [...ids].sort((a, b) => score(a) - score(b) || a.localeCompare(b));
  for (const list of next.values()) list.sort((a, b) => a.localeCompare(b));
  const state = new Map<string, "open" | "done">(), forward = new Map<string, string[]>(), done: string[] = [];
  // Depth first, without recursion: a chain may be long.
  for (const root of order) {
    if (state.has(root)) continue;
    const path: [string, number][] = [[root, 0]];
    state.set(root, "open");
    while (path.length) {
      const top = path[path.length - 1]!, to = next.get(top[0])?.[top[1]++];
      if (to === undefined) {
        state.set(top[0], "done");
        done.push(top[0]);
        path.pop();
      } else if (state.get(to) !== "open") {
        forward.set(top[0], [...forward.get(top[0]) ?? [], to]);
        if (!state.has(to)) {
          state.set(to, "open");
          path.push([to, 0]);
        }
      }
    }
  }
  const rank = new Map<string, number>(ids.map(id => [id, 0])), entered = new Set<string>();
  for (const id of done.reverse()) for (const to of forward.get(id) ?? []) {
    entered.add(to);
    rank.set(to, Math.max(rank.get(to)!, rank.get(id)! + 1));
  }
  // One without clients stands right before its servers.
  for (const id of ids) {
    const to = forward.get(id);
    if (to && !entered.has(id)) rank.set(id, Math.min(...to.map(t => rank.get(t)!)) - 1);
  }
  return rank;
}

// flow is layered from left to right, or downwards.
function flow(items: Item[], lines: Line[], [along, beside]: readonly [number, number], down: boolean): Layered {
  if (!down) return layered(items, lines, along, beside);
  const l = layered(items.map(i => ({ id: i.id, w: i.h, h: i.w })), lines, along, beside);
  return { places: new Map([...l.places].map(([id, p]) => [id, { x: p.y, y: p.x }])), w: l.h, h: l.w };
}

// layered sets items in columns by who asks whom, and each near those it talks to. Columns that
// would be much higher than all is wide are split.
function layered(items: Item[], lines: Line[], gapX: number, gapY: number): Layered {
  const byId = new Map(items.map(i => [i.id, i])), own = lines.filter(l => l.from !== l.to && byId.has(l.from) && byId.has(l.to));
  const rank = ranks(items.map(i => i.id), own);
  const area = items.reduce((sum, i) => sum + (i.w + gapX) * (i.h + gapY), 0), tallest = Math.max(...items.map(i => i.h));
  const limit = Math.max(tallest, Math.sqrt(area / 1.7), Math.min(6, items.length) * (area / items.length) ** 0.5 / 2);
  // Many columns of few items would be a thin strip.
  const columnsMost = Math.max(5, Math.floor(2.4 * limit / (area / items.length / (tallest + gapY) + gapX / 2)));
  const squeeze = Math.min(1, columnsMost / (Math.max(...rank.values()) + 1));
  const near = new Map<string, string[]>(items.map(i => [i.id, []]));
  for (const l of own) {
    near.get(l.from)!.push(l.to);
    near.get(l.to)!.push(l.from);
  }
  const byRank = new Map<number, Item[]>();
  for (const i of [...items].sort((a, b) => a.id.localeCompare(b.id))) {
    const r = Math.floor(rank.get(i.id)! * squeeze);
    byRank.set(r, [...byRank.get(r) ?? [], i]);
  }
  const y = new Map<string, number>(); // of the middle
  const stack = (column: Item[]) => {
    let at = -column.reduce((sum, i) => sum + i.h + gapY, -gapY) / 2;
    for (const i of column) {
      y.set(i.id, at + i.h / 2);
      at += i.h + gapY;
    }
  };
  const wish = (i: Item) => {
    const n = near.get(i.id)!;
    return n.length ? n.reduce((sum, other) => sum + y.get(other)!, 0) / n.length : y.get(i.id)!;
  };
  let columns = [...byRank].sort(([a], [b]) => a - b).map(([, column]) => column);
  columns.forEach(stack);
  for (let s = 0; s < sweeps; s++) for (const column of s % 2 ? [...columns].reverse() : columns) {
    const wishes = new Map(column.map(i => [i.id, wish(i)]));
    column.sort((a, b) => wishes.get(a.id)! - wishes.get(b.id)! || a.id.localeCompare(b.id));
    stack(column);
  }
  columns = columns.flatMap(column => {
    const height = column.reduce((sum, i) => sum + i.h + gapY, 0), parts = Math.ceil(height / (limit * 1.25));
    if (parts === 1) return [column];
    const out: Item[][] = [[]];
    let used = 0;
    for (const i of column) {
      if (used > 0 && used + i.h > height / parts && out.length < parts) {
        out.push([]);
        used = 0;
      }
      out[out.length - 1]!.push(i);
      used += i.h + gapY;
    }
    return out;
  });
  columns.forEach(stack);
  // As near to their wish as the others of the column let them.
  for (let s = 0; s < 4; s++) for (const column of s % 2 ? [...columns].reverse() : columns) {
    let bottom = -Infinity, moved = 0;
    const wishes = column.map(wish);
    column.forEach((i, n) => {
      const at = Math.max(wishes[n]!, bottom + i.h / 2);
      y.set(i.id, at);
      moved += at - wishes[n]!;
      bottom = at + i.h / 2 + gapY;
    });
    for (const i of column) y.set(i.id, y.get(i.id)! - moved / column.length);
  }
  const places = new Map<string, Point>(), top = Math.min(...items.map(i => y.get(i.id)! - i.h / 2));
  let x = 0;
  columns.forEach((column, n) => {
    const w = Math.max(...column.map(i => i.w));
    for (const i of column) places.set(i.id, { x: x + (w - i.w) / 2, y: y.get(i.id)! - i.h / 2 - top });
    x += w + (n + 1 < columns.length ? gapX : 0);
  });
  return { places, w: x, h: Math.max(...items.map(i => places.get(i.id)!.y + i.h)) };
}

// Arranged is where the middle of each box is, and whether those of a group, and groups, are one
// below the other.
export interface Arranged { places: Map<string, Point>; down: { inner: boolean; outer: boolean } }

// arrange lays boxes out for a window of a size, in whichever direction shows them largest. Groups
// have names above, as wide and high as titles returns.
export function arrange(boxes: Box[], lines: Line[], titles: Map<string, { w: number; h: number }>, window: { w: number; h: number }): Arranged {
  let best: Arranged | undefined, scale = 0;
  // A large map takes its time: it has one try, in which namespaces are near to squares.
  for (const [inner, outer] of boxes.length > 150 ? [[false, false]] as const : [[false, false], [true, false], [false, true], [true, true]] as const) {
    const { places, w, h } = nested(boxes, lines, titles, { inner, outer }), fits = Math.min(1.25, window.w / w, window.h / h);
    if (best && fits <= scale * 1.05) continue;
    [best, scale] = [{ places, down: { inner, outer } }, fits];
  }
  return best ?? { places: new Map(), down: { inner: false, outer: false } };
}

function nested(boxes: Box[], lines: Line[], titles: Map<string, { w: number; h: number }>, down: { inner: boolean; outer: boolean }): Layered {
  const out = new Map<string, Point>();
  if (!boxes.length) return { places: out, w: 1, h: 1 };
  const groups = new Map<string, Box[]>(), of = new Map<string, string>();
  for (const b of boxes) {
    const name = b.group ? `g:${b.group}` : `b:${b.id}`, have = groups.get(name);
    of.set(b.id, name);
    if (have) have.push(b);
    else groups.set(name, [b]);
  }
  const inside = new Map<string, Layered>(), items: Item[] = [], own = new Map<string, Line[]>(), between = new Map<string, Line>();
  for (const l of lines) {
    const from = of.get(l.from)!, to = of.get(l.to)!, have = own.get(from);
    if (from !== to) between.set(`${from}>${to}`, { from, to });
    else if (have) have.push(l);
    else own.set(from, [l]);
  }
  for (const [name, members] of groups) {
    // Where lines have no labels, they need less room.
    const l = flow(members, own.get(name) ?? [], boxes.length > 60 ? [44, 16] : gaps.inner[down.inner ? "down" : "right"], down.inner), title = titles.get(name.slice(2));
    inside.set(name, l);
    const framed = title && name.startsWith("g:");
    items.push({ id: name, w: framed ? Math.max(l.w, title.w) + 2 * card.pad : l.w, h: framed ? l.h + 2 * card.pad + title.h : l.h });
  }
  const all = flow(items, [...between.values()], gaps.outer[down.outer ? "down" : "right"], down.outer);
  for (const [name, members] of groups) {
    const l = inside.get(name)!, corner = all.places.get(name)!, title = name.startsWith("g:") ? titles.get(name.slice(2)) : undefined;
    const left = title ? card.pad + Math.max(0, (title.w - l.w) / 2) : 0, top = title ? card.pad + title.h : 0;
    for (const b of members) {
      const p = l.places.get(b.id)!;
      out.set(b.id, { x: corner.x + left + p.x + b.w / 2, y: corner.y + top + p.y + b.h / 2 });
    }
  }
  return { places: out, w: all.w, h: all.h };
}

// Route is where a line goes; its label is left out where there is no room for it. It is over other
// lines if the label hides some of them.
export interface Route { from: Point; to: Point; bends: [Point, Point]; middle: Point; label: Point | undefined; over: boolean }

interface Rect { x1: number; y1: number; x2: number; y2: number }
const rect = (at: Point, w: number, h: number): Rect => ({ x1: at.x - w / 2, y1: at.y - h / 2, x2: at.x + w / 2, y2: at.y + h / 2 });
const overlap = (a: Rect, b: Rect) => a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2;

// along is the point of a route at a part of it, from 0 to 1: two curves that meet in the middle of
// both bends.
function along(from: Point, to: Point, [a, b]: [Point, Point], t: number): Point {
  const mid = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 };
  const [p, q, r, u] = t < 0.5 ? [from, a, mid, t * 2] : [mid, b, to, t * 2 - 1], v = 1 - u;
  return { x: v * v * p.x + 2 * v * u * q.x + u * u * r.x, y: v * v * p.y + 2 * v * u * q.y + u * u * r.y };
}

// Ask is a line to be led; one that must have its label has it also where it hides others.
export interface Ask { id: string; source: string; target: string; label: { w: number; h: number; must: boolean; above: boolean } | undefined }

export interface Card extends Point { w: number; h: number; group: string }

// sidesOf returns the sides by which a line leaves one card and enters another, as unit vectors:
// along the direction in which they are laid out if there is room between them.
function sidesOf(a: Card, b: Card, down: Arranged["down"]): [Point, Point] {
  const gapX = Math.abs(a.x - b.x) - (a.w + b.w) / 2, gapY = Math.abs(a.y - b.y) - (a.h + b.h) / 2;
  let vertical = a.group && a.group === b.group ? down.inner : down.outer;
  if ((vertical ? gapY : gapX) < 16 && (vertical ? gapX : gapY) >= 16) vertical = !vertical;
  const away = vertical ? (b.y > a.y ? 1 : -1) : b.x > a.x ? 1 : -1, beside = (vertical ? gapY : gapX) < 16;
  const one = vertical ? { x: 0, y: away } : { x: away, y: 0 };
  return [one, beside ? one : { x: -one.x, y: -one.y }];
}

// route leads lines from card to card: out of one side, into the other, around cards that are
// between, and with their labels where nothing else is. The first lines choose first.
export function route(cards: Map<string, Card>, asks: Ask[], down: Arranged["down"]): Map<string, Route> {
  const sides = new Map<string, { ask: Ask; end: "source" | "target"; side: Point; at: number }[]>(), ends = new Map<Ask, [Point, Point]>();
  for (const ask of asks) {
    const a = cards.get(ask.source), b = cards.get(ask.target);
    if (!a || !b || a === b) continue;
    const both = sidesOf(a, b, down);
    ends.set(ask, both);
    for (const [end, id, other, side] of [["source", ask.source, b, both[0]], ["target", ask.target, a, both[1]]] as const) {
      const key = JSON.stringify([id, side]), one = { ask, end, side, at: side.x ? other.y : other.x }, have = sides.get(key);
      if (have) have.push(one);
      else sides.set(key, [one]);
    }
  }
  const ports = new Map<Ask, { source?: number; target?: number }>();
  for (const [key, list] of sides) {
    const me = cards.get((JSON.parse(key) as [string])[0])!, side = list[0]!.side;
    list.sort((a, b) => a.at - b.at || a.ask.id.localeCompare(b.ask.id));
    const step = side.x ? Math.min(8, (me.h - 8) / list.length) : Math.min(18, (me.w - 16) / list.length);
    list.forEach((s, i) => ports.set(s.ask, { ...ports.get(s.ask), [s.end]: (i - (list.length - 1) / 2) * step }));
  }
  const rects = new Map([...cards].map(([id, c]) => [id, rect(c, c.w + 8, c.h + 8)])), out = new Map<string, Route>();
  for (const ask of asks) {
    const a = cards.get(ask.source), b = cards.get(ask.target), port = ports.get(ask), both = ends.get(ask);
    if (!a || !b || !port || !both) continue;
    const at = (c: Card, side: Point, by: number, off: number): Point => ({ x: c.x + side.x * (c.w / 2 + off) + (side.x ? 0 : by), y: c.y + side.y * (c.h / 2 + off) + (side.x ? by : 0) });
    const from = at(a, both[0], port.source ?? 0, 0), to = at(b, both[1], port.target ?? 0, 1);
    const away = both[0].x ? Math.abs(to.x - from.x) : Math.abs(to.y - from.y), turns = both[0].x === both[1].x && both[0].y === both[1].y;
    const reach = turns ? 56 : Math.max(24, away * 0.45);
    let best: { bends: [Point, Point]; cost: number } | undefined;
    for (const lift of [0, -44, 44, -88, 88, -140, 140, -200, 200]) {
      const far = lift ? reach * 0.5 : reach; // a wide bend around what is between
      const bend = (p: Point, side: Point): Point => ({ x: p.x + side.x * far + (side.x ? 0 : lift * 1.6), y: p.y + side.y * far + (side.x ? lift : 0) });
      const bends: [Point, Point] = [bend(from, both[0]), bend(to, both[1])];
      let cost = Math.abs(lift) / 60;
      for (let t = 0.06; t < 1; t += 0.06) {
        const p = along(from, to, bends, t);
        for (const [id, r] of rects) if (id !== ask.source && id !== ask.target && p.x > r.x1 && p.x < r.x2 && p.y > r.y1 && p.y < r.y2) cost += 10;
      }
      if (!best || cost < best.cost) best = { bends, cost };
      if (best.cost === 0) break;
    }
    const { bends } = best!;
    out.set(ask.id, { from, to, bends, middle: along(from, to, bends, 0.5), label: undefined, over: false });
  }
  label(asks, ends, out, [...rects.values()]);
  return out;
}

// crowded is how many labels there must be for them not to hide anything either.
const crowded = 8;

// label finds places for the labels of lines: beside the line or on it, where no card is, no other
// label and no other line. One that there must be is where it hides least.
function label(asks: Ask[], ends: Map<Ask, [Point, Point]>, routes: Map<string, Route>, cards: Rect[]): void {
  const crowd = asks.filter(a => a.label?.must).length > crowded;
  const taken: Rect[] = [], drawn = new Map([...routes].map(([id, r]) => [id, trace(r)]));
  for (const ask of asks) {
    const r = routes.get(ask.id), side = ends.get(ask)?.[0];
    if (!r || !side || !ask.label) continue;
    const { w, h } = ask.label, must = ask.label.must && !crowd, turn = ask.label.above ? -1 : 1, off = side.x ? { x: 0, y: turn * (h / 2 + 3) } : { x: turn * (w / 2 + 4), y: 0 };
    const near = [0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82, 0.1, 0.9].map(t => along(r.from, r.to, r.bends, t));
    let least = must ? Infinity : 1;
    for (const p of [1, 0, -1].flatMap(s => near.map(p => ({ x: p.x + s * off.x, y: p.y + s * off.y })))) {
      const box = rect(p, w, h);
      if (taken.some(other => overlap(box, other)) || cards.some(other => overlap(box, other))) continue;
      let hidden = 0;
      for (const [id, line] of drawn) if (id !== ask.id && overlap(box, line.box)) for (const q of line.points) if (q.x > box.x1 && q.x < box.x2 && q.y > box.y1 && q.y < box.y2) hidden++;
      if (hidden >= least) continue;
      [least, r.label] = [hidden, p];
      if (!hidden) break;
    }
    if (must) r.label ??= r.middle;
    r.over = !!r.label && least > 0;
    if (r.label) taken.push(rect(r.label, w, h));
  }
}

// trace is where a line is drawn: points so near to each other that none leaps over a label.
function trace(r: Route): { box: Rect; points: Point[] } {
  const n = Math.min(200, Math.ceil((Math.hypot(r.bends[0].x - r.from.x, r.bends[0].y - r.from.y) + Math.hypot(r.bends[1].x - r.bends[0].x, r.bends[1].y - r.bends[0].y) + Math.hypot(r.to.x - r.bends[1].x, r.to.y - r.bends[1].y)) / 8) + 2);
  const points = Array.from({ length: n + 1 }, (_, i) => along(r.from, r.to, r.bends, i / n)), xs = points.map(p => p.x), ys = points.map(p => p.y);
  return { box: { x1: Math.min(...xs), y1: Math.min(...ys), x2: Math.max(...xs) + 1, y2: Math.max(...ys) + 1 }, points };
}
