// Drawings of one run: lines over rounds, clusters over rounds, a map of clients, bars.
var charts = (function () {
  "use strict";
  var NS = "http" + "://www.w3.org/2000/svg";
  var W = 480, H = 240, LEFT = 44, RIGHT = 14, TOP = 10, BOTTOM = 34;

  function make(name, attributes, children) {
    var node = document.createElement(name);
    return fill(node, attributes, children);
  }
  function draw(name, attributes, children) {
    return fill(document.createElementNS(NS, name), attributes, children);
  }
  function fill(node, attributes, children) {
    Object.keys(attributes || {}).forEach(function (key) {
      if (attributes[key] !== undefined && attributes[key] !== null) node.setAttribute(key, attributes[key]);
    });
    [].concat(children === undefined ? [] : children).forEach(function (child) {
      if (child !== null) node.append(child);  // text stays text: nothing of a run is read as HTML
    });
    return node;
  }
  function frame(label, height) {
    return draw("svg", { viewBox: "0 0 " + W + " " + height, class: "chart", role: "img", "aria-label": label });
  }
  function ticks(low, high, wanted) {
    var raw = (high - low) / wanted, power = Math.pow(10, Math.floor(Math.log10(raw))), step = power;
    [1, 2, 5, 10].some(function (n) { step = n * power; return step >= raw; });
    var found = [];
    for (var at = Math.ceil(low / step - 1e-9) * step; at <= high + 1e-9; at += step) found.push(Number(at.toFixed(6)));
    return found;
  }
  function rounds(svg, x, from, to, height) {
    ticks(from, Math.max(to, from + 1), 6).filter(Number.isInteger).forEach(function (at) {
      if (at > to) return;
      svg.append(draw("text", { x: x(at), y: height - 16, "text-anchor": "middle", class: "soft" }, String(at)));
    });
    svg.append(draw("text", { x: W - RIGHT, y: height - 2, "text-anchor": "end", class: "soft" }, "round"));
  }

  // A phone gets narrower drawings, so that their letters keep their size.
  function fit() { W = innerWidth < 600 ? 330 : 480; }

  // Values over rounds; null where there is none.
  function line(option) {
    var figure = make("figure"), svg = frame(option.title, H);
    var xs = option.rounds, known = option.values.filter(function (v) { return v !== null; });
    var low = Math.min.apply(null, known), high = Math.max.apply(null, known);
    if (option.unit) { low = Math.min(0, low); high = Math.max(1, high); }
    else if (high - low < 5) { var middle = (low + high) / 2; low = Math.max(0, middle - 2.5); high = Math.min(100, low + 5); }
    var from = xs[0], to = xs[xs.length - 1];
    function x(at) { return to === from ? (LEFT + W - RIGHT) / 2 : LEFT + (at - from) / (to - from) * (W - LEFT - RIGHT); }
    function y(at) { return TOP + (high - at) / (high - low) * (H - TOP - BOTTOM); }
    ticks(low, high, 5).forEach(function (at) {
      svg.append(draw("line", { x1: LEFT, x2: W - RIGHT, y1: y(at), y2: y(at), class: "grid" }));
      svg.append(draw("text", { x: LEFT - 7, y: y(at) + 4, "text-anchor": "end", class: "soft" }, String(at)));
    });
    rounds(svg, x, from, to, H);
    (option.again || []).forEach(function (at) {
      svg.append(draw("line", { x1: x(at), x2: x(at), y1: TOP, y2: H - BOTTOM, stroke: "currentColor", "stroke-dasharray": "1 4", opacity: .6 }));
    });
    var path = "", pen = "M";
    option.values.forEach(function (value, at) {
      if (value === null) return;  // a round without a score is passed over
      path += pen + x(xs[at]).toFixed(1) + " " + y(value).toFixed(1);
      pen = "L";
    });
    svg.append(draw("path", { d: path, fill: "none", stroke: option.colour, "stroke-width": 2, "stroke-linejoin": "round" }));
    if (known.length < 4) option.values.forEach(function (value, at) {
      if (value !== null) svg.append(draw("circle", { cx: x(xs[at]), cy: y(value), r: 3.5, fill: option.colour }));
    });
    (option.lost || []).forEach(function (at) {
      svg.append(draw("path", { d: "M" + (x(at) - 4) + " " + (H - BOTTOM - 8) + "l8 8m0 -8l-8 8", stroke: "var(--down)", "stroke-width": 1.6 }));
    });
    var cursor = draw("line", { y1: TOP, y2: H - BOTTOM, class: "axis", visibility: "hidden" });
    var point = draw("circle", { r: 4, fill: option.colour, visibility: "hidden" });
    svg.append(cursor, point);
    var last = option.values.length - 1;
    while (last > 0 && option.values[last] === null) last -= 1;
    var value = make("span"), read = make("figcaption", { class: "read" }, [make("b", {}, option.title), value]);
    function tell(at) {
      value.textContent = option.values[at].toFixed(2) + (option.unit ? "" : " %") + " in round " + xs[at];
    }
    tell(last);
    svg.addEventListener("pointermove", function (event) {
      var box = svg.getBoundingClientRect(), place = (event.clientX - box.left) / box.width * W, best = last;
      option.values.forEach(function (value, at) {
        if (value !== null && Math.abs(x(xs[at]) - place) < Math.abs(x(xs[best]) - place)) best = at;
      });
      fill(cursor, { x1: x(xs[best]), x2: x(xs[best]), visibility: "visible" });
      fill(point, { cx: x(xs[best]), cy: y(option.values[best]), visibility: "visible" });
      tell(best);
    });
    svg.addEventListener("pointerleave", function () {
      fill(cursor, { visibility: "hidden" }); fill(point, { visibility: "hidden" }); tell(last);
    });
    var marks = [(option.again || []).length ? "dotted: reclustering" : "", (option.lost || []).length ? "crosses: nodes were lost" : ""].filter(Boolean);
    return fill(figure, {}, [read, svg, marks.length ? make("p", { class: "quiet" }, marks.join("; ")) : null]);
  }

  // A row a client, a column a round; equal neighbours are one rectangle.
  function raster(option) {
    var count = option.order.length, xs = option.rounds, height = Math.max(200, Math.min(420, 34 + count * 3));
    var svg = frame(option.title, height), deep = height - TOP - BOTTOM, wide = W - LEFT - RIGHT;
    function x(at) { return LEFT + at / option.over.length * wide; }
    function y(row) { return TOP + row / count * deep; }
    option.order.forEach(function (client, row) {
      var start = 0;
      for (var at = 1; at <= option.over.length; at++) {
        if (at < option.over.length && option.over[at][client] === option.over[start][client]) continue;
        var colour = option.colour(option.over[start][client]);
        if (colour) svg.append(draw("rect", { x: x(start).toFixed(1), y: y(row).toFixed(1), width: (x(at) - x(start)).toFixed(1), height: (deep / count + (count > 60 ? .3 : -.6)).toFixed(2), fill: colour }));
        start = at;
      }
    });
    option.blocks.forEach(function (block) {
      svg.append(draw("text", { x: LEFT - 7, y: y(block.from + block.size / 2) + 4, "text-anchor": "end", class: "soft" }, block.name));
      if (block.from) svg.append(draw("line", { x1: LEFT, x2: W - RIGHT, y1: y(block.from), y2: y(block.from), stroke: "var(--paper)", "stroke-width": 2.5 }));
    });
    rounds(svg, function (at) { return x(xs.indexOf(at) + .5); }, xs[0], xs[xs.length - 1], height);
    return fill(make("figure"), {}, [make("figcaption", { class: "read" }, make("b", {}, option.title)), svg, make("p", { class: "quiet" }, option.caption)]);
  }

  var SHAPES = [
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0", "M-4.4 -4.4h8.8v8.8h-8.8z", "M0 -5.6L5.4 4.2H-5.4z", "M0 -6L6 0L0 6L-6 0z",
    "M0 5.6L5.4 -4.2H-5.4z", "M-1.8 -5.4h3.6v3.6h3.6v3.6h-3.6v3.6h-3.6v-3.6h-3.6v-3.6h3.6z"
  ];
  // Clients where their metadata put them, coloured by their cluster in the round that the slider shows.
  function map(option) {
    var height = 300, svg = frame(option.title, height), marks = [], big = option.x.length > 60 ? 1 : 1.35;
    svg.classList.add("map");
    option.x.forEach(function (x, client) {
      var y = option.y[client];
      if (x === null || y === null) { marks.push(null); return; }
      var mark = draw("path", {
        d: SHAPES[option.groups ? option.groups[client] % SHAPES.length : 0], stroke: "var(--paper)", "stroke-width": .8,
        transform: "translate(" + (20 + x * (W - 40)).toFixed(1) + " " + (height - 20 - y * (height - 40)).toFixed(1) + ") scale(" + big + ")"
      }, draw("title", {}, "client " + client + (option.groups ? ", group " + option.names[option.groups[client]] : "")));
      marks.push(mark);
      svg.append(mark);
    });
    var slider = make("input", { type: "range", min: 0, max: option.over.length - 1, value: option.over.length - 1, "aria-label": "Round" });
    var output = make("output"), play = make("button", { type: "button" }, "Play"), timer = null;
    function show() {
      var at = Number(slider.value);
      output.textContent = "round " + option.rounds[at];
      marks.forEach(function (mark, client) {
        if (mark) fill(mark, { fill: option.colour(option.over[at][client]) || option.unseen, opacity: option.colour(option.over[at][client]) ? .95 : .45 });
      });
    }
    function stop() { clearInterval(timer); timer = null; play.textContent = "Play"; }
    slider.addEventListener("input", function () { stop(); show(); });
    play.addEventListener("click", function () {
      if (timer) { stop(); return; }
      if (Number(slider.value) === option.over.length - 1) slider.value = 0;
      play.textContent = "Stop";
      timer = setInterval(function () {
        if (!svg.isConnected || Number(slider.value) === option.over.length - 1) { stop(); return; }
        slider.value = Number(slider.value) + 1;
        show();
      }, Math.max(60, 4000 / option.over.length));
      show();
    });
    show();
    var player = option.over.length > 1 ? make("div", { class: "player" }, [play, slider, output]) : null;
    return fill(make("figure"), {}, [make("figcaption", { class: "read" }, make("b", {}, option.title)), svg, player, make("p", { class: "quiet" }, option.caption)]);
  }

  function bars(title, parts, form, clients) {
    var kinds = Object.keys(parts), most = Math.max.apply(null, kinds.map(function (kind) { return parts[kind]; }));
    var sum = kinds.reduce(function (all, kind) { return all + parts[kind]; }, 0), list = make("dl", { class: "bars" });
    kinds.sort(function (a, b) { return parts[b] - parts[a]; }).forEach(function (kind) {
      list.append(make("dt", {}, kind), make("span", { class: "line", style: "--s:" + (most ? parts[kind] / most : 0).toFixed(4) }), make("dd", {}, form(parts[kind])));
    });
    if (kinds.length > 1) list.append(make("dt", { class: "sum" }, "in all"), make("span"), make("dd", { class: "sum" }, form(sum)));
    if (clients) list.append(make("dt", {}, "a client"), make("span"), make("dd", {}, form(sum / clients)));
    return make("div", {}, [make("h4", {}, title), list]);
  }

  return { fit: fit, make: make, line: line, raster: raster, map: map, bars: bars };
})();
