// The page of one run, shown while the address ends in its name: #r-<config>-<seed>.
(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("data").textContent), make = charts.make;
  var report = document.getElementById("report"), place = document.getElementById("run");
  var known = new Map(data.runs.map(function (run) { return [run.id, run]; }));
  var title = document.title, scrolled = 0;

  function numbers(text) {
    var bytes = atob(text), found = [];
    for (var at = 0; at < bytes.length; at += 2) {
      var value = bytes.charCodeAt(at) | bytes.charCodeAt(at + 1) << 8;
      value = value > 32767 ? value - 65536 : value;
      found.push(value === -32768 ? null : value / data.scale);
    }
    return found;
  }
  function clusters(text) {
    return Array.from(text, function (letter) { return letter === "." ? -1 : data.letters.indexOf(letter); });
  }
  function three(amount) { return amount >= 99.95 ? amount.toFixed(0) : amount.toPrecision(3); }
  function size(amount) {
    var units = ["B", "kB", "MB", "GB", "TB"], at = 0;
    while (amount >= 999.5 && at < 4) { amount /= 1000; at += 1; }
    return (at ? three(amount) : amount.toFixed(0)) + " " + units[at];
  }
  function time(amount) {
    if (!amount) return "0 s";
    if (amount < 1e-3) return three(amount * 1e6) + " µs";
    if (amount < 1) return three(amount * 1e3) + " ms";
    return amount < 120 ? three(amount) + " s" : amount < 7200 ? three(amount / 60) + " min" : three(amount / 3600) + " h";
  }

  function drawings(run) {
    charts.fit();
    var found = [], accuracy = run.accuracy && numbers(run.accuracy), ari = run.ari && numbers(run.ari);
    var length = (accuracy || ari || run.over || []).length;
    var xs = run.rounds || Array.from({ length: length }, function (_, at) { return at + 1; });
    var lost = Array.from(new Set((run.lost || []).map(function (one) { return one[0]; })));
    if (accuracy) found.push(charts.line({ title: "Accuracy", values: accuracy.map(function (v) { return v === null ? null : 100 * v; }), rounds: xs, colour: run.colour, again: run.again, lost: lost }));
    if (ari) found.push(charts.line({ title: "ARI", values: ari, rounds: xs, colour: run.colour, unit: true, again: run.again }));
    if (!run.index) return found;
    function colour(cluster) {
      return cluster < 0 || run.index[cluster] === undefined ? null : data.colours[run.index[cluster] % data.colours.length];
    }
    var final = clusters(run.final), groups = run.groups && clusters(run.groups), over = [];
    (run.over || []).forEach(function (row) { over.push(row ? clusters(row) : over[over.length - 1]); });
    if (run.x) found.push(charts.map({
      title: "Clients by their metadata", x: numbers(run.x), y: numbers(run.y), groups: groups, names: run.names,
      over: over.length ? over : [final], rounds: over.length ? xs : ["last"], colour: colour, unseen: data.unseen,
      caption: "Colours are clusters" + (groups ? ", shapes are true groups" : "") + ". Grey: not yet seen."
    }));
    if (over.length) {
      var order = final.map(function (_, client) { return client; });
      var by = groups || final;
      order.sort(function (a, b) { return by[a] - by[b] || a - b; });
      var blocks = [];
      order.forEach(function (client, row) {
        var name = groups ? run.names[groups[client]] : final[client] < 0 ? "none" : String(final[client]);
        if (!blocks.length || blocks[blocks.length - 1].name !== name) blocks.push({ name: name, from: row, size: 0 });
        blocks[blocks.length - 1].size += 1;
      });
      found.push(charts.raster({
        title: "Clusters over the rounds", over: over, rounds: xs, order: order, blocks: blocks, colour: colour,
        caption: "Each client’s cluster in each round, clients by " + (groups ? "true group" : "last cluster") + ". Blank: not yet seen."
      }));
    }
    if (groups) found.push(confusion(run, groups, final));
    return found;
  }

  function confusion(run, groups, final) {
    var columns = Object.keys(run.index).map(Number).filter(function (c) { return final.indexOf(c) >= 0; });
    columns.sort(function (a, b) { return run.index[a] - run.index[b]; });
    if (final.indexOf(-1) >= 0) columns.push(-1);
    var head = make("tr", {}, [make("td", { class: "none" }, "group ↓  cluster →")].concat(columns.map(function (c) { return make("th", { scope: "col" }, c < 0 ? "not seen" : String(c)); })));
    var body = run.names.map(function (name, group) {
      var size = groups.filter(function (g) { return g === group; }).length;
      return make("tr", {}, [make("th", { scope: "row" }, name)].concat(columns.map(function (c) {
        var n = groups.filter(function (g, client) { return g === group && final[client] === c; }).length;
        return make("td", { class: n ? "" : "zero", style: "--s:" + (n / size).toFixed(3) }, String(n));
      })));
    });
    var table = make("table", { class: "confusion" }, [make("thead", {}, head), make("tbody", {}, body)]);
    return make("figure", {}, [make("figcaption", { class: "read" }, make("b", {}, "True groups and found clusters, in clients")), make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Groups and clusters" }, table)]);
  }

  function text(number) { return number ? data.texts[number - 1] : ""; }
  function folded(name, content) {
    return content ? make("details", {}, [make("summary", {}, name), make("pre", {}, content)]) : null;
  }
  function page(run) {
    var alike = data.runs.filter(function (other) { return other.place.replace(/[^/]*$/, "") === run.place.replace(/[^/]*$/, "") && other.name === run.name; });
    var parts = [
      make("a", { class: "back", href: "#runs" }, "← All runs"),
      make("h1", {}, [make("i", { class: "dot", style: "--c:" + run.colour }), run.name]),
      make("p", { class: "lead" }, run.data + ", " + run.setting + " · " + run.scheme + " · seed " + (run.seed || 0))
    ];
    if (alike.length > 1) parts.push(make("nav", { class: "seeds", "aria-label": "Seeds" }, ["seeds "].concat(alike.map(function (other) {
      return make("a", { href: "#" + other.id, "aria-current": other === run ? "page" : null }, String(other.seed || 0));
    }))));
    parts.push(make("dl", { class: "facts" }, run.facts.map(function (fact, at) { return fact ? make("div", {}, [make("dt", {}, data.facts[at]), make("dd", {}, fact)]) : null; })));
    var notes = (run.notes || []).map(text).concat((run.lost || []).map(function (one) { return "Round " + one[0] + ": node " + one[1] + " was lost (" + one[2] + ")."; }));
    if (run.lost_more) notes.push("Nodes were lost " + run.lost_more + " more times.");
    if (notes.length) parts.push(make("ul", { class: "notes quiet" }, notes.map(function (note) { return make("li", {}, note); })));
    var figures = drawings(run);
    if (run.single) parts.push(make("p", { class: "quiet" }, "This method keeps one model for all clients, so there are no clusters to show."));
    if (figures.length) parts.push(make("div", { class: "figures" }, figures));
    var clients = Number(run.facts[data.facts.indexOf("clients")] || 0);
    var ledger = [["Bytes up", run.up, size, clients], ["Bytes down", run.down, size, clients], ["Seconds of all clients", run.client, time, clients], ["Seconds of the server", run.server, time]];
    if (!run.client) ledger.push(["Seconds", run.spent, time]);
    ledger = ledger.filter(function (one) { return one[1]; });
    if (ledger.length) parts.push(make("h2", {}, "Ledger"), make("div", { class: "ledger" }, ledger.map(function (one) { return charts.bars(one[0], one[1], one[2], one[3]); })));
    if (run.leakage) parts.push(make("h2", {}, "What could be learned from the sums that were opened"), make("div", { class: "scroll" }, [make("table", {}, [
      make("thead", {}, [make("tr", {}, [make("th", { scope: "col" }, "by")].concat(data.leakage.map(function (word) { return make("th", { scope: "col" }, word); })))]),
      make("tbody", {}, run.leakage.map(function (row) {
        return make("tr", {}, row.map(function (cell, at) { return at ? make("td", {}, cell) : make("th", { scope: "row" }, cell); }));
      }))
    ])]));
    parts.push(make("p", { class: "quiet" }, "Tuning runs: " + (run.tuning || 0) + ". Known from an oracle: " + ((run.oracle || []).join(", ") || "nothing") + "."));
    parts.push(make("h2", {}, "Source"), make("p", { class: "quiet" }, [make("code", {}, run.place)]));
    parts.push(run.command ? make("pre", {}, text(run.command) + " --seed " + (run.seed || 0)) : null, folded("Configuration", text(run.config)), folded("Versions and machine", text(run.environment)));
    if (run.files) parts.push(make("p", { class: "files" }, run.files.map(function (file) { return make("a", { href: file, download: "" }, file.replace(/^.*-\d+-/, "")); })));
    return parts.filter(Boolean);
  }

  function route() {
    var run = known.get(decodeURIComponent(location.hash.slice(1)));
    if (run) {
      if (!report.hidden) scrolled = scrollY;
      place.replaceChildren.apply(place, page(run));
      document.title = run.name + ", " + run.data + " " + run.setting + " · " + title;
    } else document.title = title;
    var back = report.hidden && !run;
    report.hidden = Boolean(run);
    place.hidden = !run;
    if (run) { scrollTo({ top: 0, behavior: "instant" }); place.focus({ preventScroll: true }); }
    else if (back) {
      if (location.hash === "#runs" || !location.hash) scrollTo({ top: scrolled, behavior: "instant" });
      else { var target = document.getElementById(location.hash.slice(1)); if (target) target.scrollIntoView({ behavior: "instant" }); }
    }
  }
  addEventListener("hashchange", route);
  document.querySelectorAll("#runs tbody tr").forEach(function (row) {
    var link = row.querySelector("a");
    row.style.cursor = "pointer";
    row.addEventListener("click", function (event) { if (!event.target.closest("a") && !String(getSelection())) location.hash = link.hash; });
  });
  route();
})();
