// el makes an element. Names come from the cluster, so text is only ever set as text.
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K, props: { [name: string]: string | number | boolean | ((e: Event) => void) | undefined } = {}, ...children: (Node | string | undefined)[]
): HTMLElementTagNameMap[K] {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === false && !name.startsWith("aria-")) continue;
    if (typeof value === "function") e.addEventListener(name, value);
    else e.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
  }
  for (const c of children) if (c !== undefined) e.append(c);
  return e;
}

export function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  const e = document.getElementById(id);
  if (!e) throw new Error(`the page has no ${id}`);
  return e as T;
}

export function time(text: string): string {
  return new Date(text).toLocaleTimeString([], { hourCycle: "h23" });
}

// dateTime is a time that may be on another day.
export function dateTime(text: string): string {
  return new Date(text).toLocaleString([], { hourCycle: "h23" });
}

export function amount(n: number): string {
  return n < 10000 ? String(n) : new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(n);
}

// rate is how often something happens, of what happened in some seconds.
export function rate(n: number, seconds: number): string {
  const each = n / seconds, round = (x: number) => x < 10 ? String(Math.max(0.1, Math.round(x * 10) / 10)) : amount(Math.round(x));
  return each >= 1 ? `${round(each)}/s` : `${round(each * 60)}/min`;
}

// renew replaces what is in a box if it is otherwise than before. What has the focus keeps it, and
// what was scrolled to stays in sight: pages are redrawn every two seconds.
export function renew(box: HTMLElement, children: Node[]): void {
  const fresh = el("div", {}, ...children);
  if (fresh.innerHTML === box.innerHTML) return;
  const focusable = () => [...box.querySelectorAll<HTMLElement>("button, input, summary, a, [tabindex]")];
  const at = focusable().indexOf(document.activeElement as HTMLElement), key = keyOf(document.activeElement), alike = () => focusable().filter(e => keyOf(e) === key);
  const nth = alike().indexOf(document.activeElement as HTMLElement), scrolled = box.scrollTop;
  box.replaceChildren(...fresh.childNodes);
  box.scrollTop = scrolled;
  if (at >= 0) (alike()[nth] ?? focusable()[at])?.focus({ preventScroll: true });
}

// keyOf identifies a button or field of a box, wherever it is, apart from others of its kind.
function keyOf(e: Element | null): string { return e instanceof HTMLElement ? e.dataset.edge ?? e.dataset.pair ?? e.dataset.namespace ?? e.className : ""; }

// isolated keeps a name that is written from right to left from turning what is around it.
export function isolated(name: string): string { return /^[\x20-\x7e]*$/.test(name) ? name : `\u2068${name}\u2069`; }
