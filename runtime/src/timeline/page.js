"use strict";
(() => {
  const root = document.querySelector(".timeline .picture");
  const canvas = root.querySelector("canvas"), tip = root.querySelector(".tip");
  const { lanes, texts, marks, warnings, length } = TIMELINE;
  const LEFT = 200, TOP = 44, LANE = 34, BAR = 22, LETTER = 6.6;
  const whole = Math.max(length, 1e-3);
  let view = [0, whole], pointer = null, dragged = null;
  for (const lane of lanes) {
    // Long spans first, so that what is inside another one is drawn over it; what has no length in the order of time.
    lane.spans.sort((a, b) => (b[1] - b[0]) - (a[1] - a[0]) || a[0] - b[0]);
  }
  const height = TOP + lanes.length * LANE + 8;
  canvas.style.height = height + "px";

  const words = (micros) => {
    const size = Math.abs(micros);
    const cut = (value, unit) => `${+value.toPrecision(6)} ${unit}`;
    return size >= 1e6 ? cut(micros / 1e6, "s") : size >= 1e3 ? cut(micros / 1e3, "ms") : cut(micros, "µs");
  };
  const across = () => canvas.clientWidth - LEFT;
  const x = (at) => LEFT + (at - view[0]) / (view[1] - view[0]) * across();
  const at = (x) => view[0] + (x - LEFT) / across() * (view[1] - view[0]);

  function draw() {
    const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const style = getComputedStyle(root.parentElement), colour = (name) => style.getPropertyValue("--" + name).trim();
    const c = canvas.getContext("2d");
    c.scale(scale, scale);
    c.fillStyle = colour("paper") || "#fff";
    c.fillRect(0, 0, width, height);
    c.font = "11px ui-monospace, Menlo, Consolas, monospace";
    c.textBaseline = "middle";
    // The scale: steps of 1, 2 or 5, about 110 pixels apart.
    const rough = (view[1] - view[0]) / Math.max(1, across() / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => power * factor >= rough);
    for (let tick = Math.ceil(view[0] / step) * step; tick <= view[1]; tick += step) {
      c.fillStyle = colour("line");
      c.fillRect(x(tick), 18, 1, height);
      c.fillStyle = colour("soft");
      c.fillText(words(tick), x(tick) + 3, 10);
    }
    lanes.forEach((lane, index) => {
      const y = TOP + index * LANE, cover = new Map(), pixel = (view[1] - view[0]) / across();
      let tick = -9;
      c.fillStyle = colour("line");
      c.fillRect(0, y - 2, width, 1);
      for (const [from, to, kind, title] of lane.spans) {
        if (to < view[0] || from > view[1]) continue;
        const left = Math.max(LEFT, x(from)), right = Math.min(width, x(to));
        if (kind === "end") {
          // Where there are many, they only show that there are.
          const place = Math.round(left), dense = place - tick < 3;
          if (place === tick) continue;
          tick = place;
          c.fillStyle = colour("ink");
          c.fillRect(place, dense ? y + BAR : y + 2, 1, dense ? 6 : BAR + 4);
          continue;
        }
        if (right - left < 1) {
          // Spans in one column of pixels have their shares of it.
          const place = Math.floor(left), shares = cover.get(place) || {};
          shares[kind] = (shares[kind] || 0) + (to - from) / pixel;
          cover.set(place, shares);
          continue;
        }
        c.fillStyle = colour(kind);
        c.fillRect(left, y + 4, right - left - (right - left > 4 ? 1 : 0), BAR);
        const room = Math.floor((right - left - 8) / LETTER);
        if (room > 3) {
          c.fillStyle = colour("ink");
          c.fillText(title.length > room ? title.slice(0, room - 1) + "…" : title, left + 4, y + 5 + BAR / 2);
        }
      }
      for (const [place, shares] of cover) {
        const all = Object.values(shares).reduce((sum, share) => sum + share, 0);
        // What is there is to be seen, however little it is.
        const scale = Math.min(BAR, Math.max(6, all * BAR)) / all;
        let top = y + 4 + BAR;
        for (const [kind, share] of Object.entries(shares)) {
          top -= share * scale;
          c.fillStyle = colour(kind);
          c.fillRect(place, top, 1, share * scale);
        }
      }
    });
    c.fillStyle = colour("panel") || "#eee";
    c.fillRect(0, 0, LEFT - 4, height);
    c.fillStyle = colour("ink");
    lanes.forEach((lane, index) => {
      const most = Math.floor((LEFT - 16) / LETTER);
      const name = lane.name.length > most ? lane.name.slice(0, most - 1) + "…" : lane.name;
      c.fillText(name, 8, TOP + index * LANE + 5 + BAR / 2);
    });
    for (const [list, name] of [[marks, "soft"], [warnings, "alarm"]]) {
      let free = LEFT, last = -9;
      for (const [when, text] of list) {
        if (when < view[0] || when > view[1]) continue;
        const left = Math.round(x(when)), label = list === warnings ? "!" : text;
        c.fillStyle = colour(name);
        c.globalAlpha = list === warnings ? 1 : 0.5;
        // Marks that are too close to be told apart are one.
        if (left - last >= 6) {
          c.fillRect(left, 20, 1, list === warnings || left - last >= 24 ? height : 6);
          last = left;
        }
        c.globalAlpha = 1;
        if (left >= free && left + label.length * LETTER < width) {
          c.fillText(label, left + 3, 28);
          free = left + 9 + label.length * LETTER;
        }
      }
    }
  }

  /// What the pointer is on: of spans in one place the shortest, and warnings before them.
  function found() {
    if (!pointer || pointer.x < LEFT) return null;
    const near = warnings.find(([when]) => Math.abs(x(when) - pointer.x) < 4);
    if (near && pointer.y < TOP) return near[1];
    const lane = lanes[Math.floor((pointer.y - TOP) / LANE)];
    if (!lane) return null;
    const when = at(pointer.x), slack = 3 * (view[1] - view[0]) / across();
    for (let index = lane.spans.length - 1; index >= 0; index--) {
      const [from, to, , title, text] = lane.spans[index];
      const grace = Math.max(0, slack - (to - from) / 2);
      if (when >= from - grace && when <= to + grace) {
        const when = to > from ? `${words(from)} to ${words(to)}: ${words(+(to - from).toPrecision(3))}` : words(from);
        return `${title}\n${texts[text]}\n${when}`;
      }
    }
    return null;
  }

  function show() {
    const text = found();
    tip.style.display = text ? "block" : "none";
    if (!text) return;
    tip.textContent = text;
    const right = pointer.x + 16 + tip.offsetWidth > canvas.clientWidth;
    tip.style.left = Math.max(4, right ? pointer.x - tip.offsetWidth - 12 : pointer.x + 16) + "px";
    tip.style.top = Math.max(2, Math.min(pointer.y + 14, height - tip.offsetHeight - 4)) + "px";
  }

  function look(from, to) {
    const span = Math.min(whole, Math.max(1e-2, to - from)), start = Math.min(Math.max(0, from), whole - span);
    view = [start, start + span];
    draw();
    show();
  }

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const span = view[1] - view[0], center = at(place(event).x);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const shift = event.deltaX / across() * span;
      return look(view[0] + shift, view[1] + shift);
    }
    const factor = Math.exp(event.deltaY * 0.002);
    look(center - (center - view[0]) * factor, center + (view[1] - center) * factor);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    dragged = { x: place(event).x, view };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    pointer = place(event);
    if (!dragged) return show();
    const shift = (dragged.x - pointer.x) / across() * (dragged.view[1] - dragged.view[0]);
    look(dragged.view[0] + shift, dragged.view[1] + shift);
  });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointerleave", () => { pointer = null; show(); });
  canvas.addEventListener("dblclick", () => look(0, whole));
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
