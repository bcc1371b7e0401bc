// Colours, sorting and searching.
(function () {
  "use strict";
  var root = document.documentElement;

  var switcher = document.getElementById("theme");
  var looks = ["auto", "light", "dark"];
  function paint(look) {
    if (look === "auto") delete root.dataset.theme; else root.dataset.theme = look;
    switcher.querySelector("span").textContent = look;
    switcher.setAttribute("aria-label", "Colours: " + (look === "auto" ? "follow the system" : look));
  }
  paint(root.dataset.theme || "auto");
  switcher.addEventListener("click", function () {
    var look = looks[(looks.indexOf(root.dataset.theme || "auto") + 1) % looks.length];
    paint(look);
    try {
      if (look === "auto") localStorage.removeItem("flameche-theme"); else localStorage.setItem("flameche-theme", look);
    } catch (e) { /* a page that may keep nothing still has the colours */ }
  });

  var collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  function sortable(table) {
    var body = table.tBodies[0], rows = table.tHead.rows, heads = rows[rows.length - 1].cells;
    var original = Array.from(body.rows);
    Array.from(heads).forEach(function (head, column) {
      var numeric = head.classList.contains("num"), link = head.querySelector("a");
      var button = document.createElement("button");
      button.type = "button";
      if (link) {  // a heading that leads somewhere keeps doing so
        button.setAttribute("aria-label", "Sort by " + head.textContent.trim());
        head.appendChild(button);
      } else {
        while (head.firstChild) button.appendChild(head.firstChild);
        head.appendChild(button);
      }
      head.setAttribute("aria-sort", "none");
      function key(row) {
        var cell = row.cells[column];
        if (!numeric) return cell.textContent.trim();
        if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
        var text = cell.textContent.trim(), number = Number(text);
        return text && !isNaN(number) ? number : null;
      }
      button.addEventListener("click", function () {
        var state = head.getAttribute("aria-sort");
        var first = numeric ? "descending" : "ascending", second = numeric ? "ascending" : "descending";
        var next = state === "none" ? first : state === first ? second : "none";
        Array.from(heads).forEach(function (other) { other.setAttribute("aria-sort", "none"); });
        head.setAttribute("aria-sort", next);
        var order = original.slice(), way = next === "ascending" ? 1 : -1;
        if (next !== "none") order.sort(function (a, b) {
          var x = key(a), y = key(b);
          if (x === null || y === null) return (x === null) - (y === null);  // what was not measured comes last
          return way * (numeric ? x - y : collator.compare(x, y));
        });
        body.append.apply(body, order);
      });
    });
  }
  document.querySelectorAll("#report table").forEach(sortable);

  document.querySelectorAll(".search").forEach(function (label) {
    var input = label.querySelector("input"), output = label.querySelector("output");
    var rows = Array.from(label.nextElementSibling.querySelectorAll("tbody tr"));
    var texts = rows.map(function (row) {
      return Array.from(row.cells, function (cell) { return cell.textContent; }).join(" ").toLowerCase();
    });
    function search() {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean), shown = 0;
      rows.forEach(function (row, at) {
        var fits = words.every(function (word) { return texts[at].indexOf(word) >= 0; });
        row.hidden = !fits;
        shown += fits;
      });
      output.textContent = words.length ? shown + " of " + rows.length : rows.length + " rows";
    }
    input.addEventListener("input", search);
    search();
  });

  addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (one) { one.open = true; });
  });
})();
