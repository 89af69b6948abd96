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
  return new Date(text).toLocaleTimeString([], { hour12: false });
}

export function amount(n: number): string {
  return n < 10000 ? String(n) : new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(n);
}
