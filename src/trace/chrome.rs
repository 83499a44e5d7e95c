//! In: a [`Trace`]; out: the same in the Trace Event Format, which Perfetto and Chrome's tracing page open. Knows
//! nothing else of the crate.
//!
//! Complete events (`"ph": "X"`) in microseconds from the first, the host and the device as two processes. Layers
//! enclose their dispatches. Dispatches that overlap lie on further threads of the device, since events of one thread
//! must nest. One whose time is a part of what several took together has their number in its arguments.
//!
//! Perfetto takes thread 0 for the first of its process, and threads of equal number for one, whatever their process: so
//! a process counts its threads from its own number.

use super::{HostSpan, Rows, Trace, layers};
use serde::Serialize;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What an event is of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Process {
    Host,
    Device,
}

/// The number of the host's process and of its first thread.
const HOST: u32 = 1;

/// The device's, where the host has fewer threads.
const DEVICE: u32 = 1000;

/// Nanoseconds until it is written.
struct Event {
    name: String,
    category: &'static str,
    process: Process,
    thread: Thread,
    begin: u64,
    end: u64,
    args: Value,
}

/// Threads of a process, in the order in which they are numbered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Thread {
    /// Further ones take what overlaps.
    row: usize,
    /// The host's own number.
    number: u32,
}

#[derive(Serialize)]
struct Written<'a> {
    name: &'a str,
    cat: &'a str,
    ph: &'a str,
    ts: f64,
    dur: f64,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: &'a Value,
}

impl Trace {
    /// A JSON text for ui.perfetto.dev or chrome://tracing.
    pub fn to_chrome(&self) -> String {
        let mut events = self.host_events();
        events.extend(self.device_events());
        // what encloses others comes first
        events.sort_by_key(|e| (e.begin, Reverse(e.end)));
        let used: BTreeSet<(Process, Thread)> = events.iter().map(|e| (e.process, e.thread)).collect();
        let hosts = used.iter().filter(|t| t.0 == Process::Host).count() as u32;
        let device = DEVICE.max(HOST + hosts);
        let (host_ids, device_ids) = (HOST.., device..);
        let ids = host_ids.take(hosts as usize).chain(device_ids);
        let threads: BTreeMap<(Process, Thread), u32> = used.into_iter().zip(ids).collect();
        let pid = |process: Process| if process == Process::Host { HOST } else { device };
        let zero = events.first().map_or(0, |e| e.begin);
        let mut written = self.names(&threads, device);
        let us = |ns: u64| ns as f64 / 1e3;
        written.extend(events.iter().map(|e| {
            let event = Written {
                name: &e.name,
                cat: e.category,
                ph: "X",
                ts: us(e.begin - zero),
                dur: us(e.end - e.begin),
                pid: pid(e.process),
                tid: threads[&(e.process, e.thread)],
                args: &e.args,
            };
            serde_json::to_string(&event).expect("numbers and texts are JSON")
        }));
        let device = &self.device;
        let other = json!({
            "title": self.title,
            "adapter": device.adapter,
            "driver": format!("{}, {}", device.backend, device.driver),
            "mode": self.options.mode,
        });
        format!("{{\"displayTimeUnit\":\"ns\",\"otherData\":{other},\"traceEvents\":[\n{}\n]}}\n", written.join(",\n"))
    }

    /// Names of processes and threads.
    fn names(&self, threads: &BTreeMap<(Process, Thread), u32>, device: u32) -> Vec<String> {
        let said = |what: &str, pid: u32, tid: u32, args: Value| {
            json!({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}).to_string()
        };
        let name = |what: &str, pid: u32, tid: u32, name: &str| said(what, pid, tid, json!({"name": name}));
        let mut names = Vec::new();
        for (order, pid, words) in [(0, HOST, "host"), (1, device, &format!("device: {}", self.device.adapter))] {
            names.push(name("process_name", pid, pid, words));
            names.push(said("process_sort_index", pid, pid, json!({"sort_index": order})));
        }
        names.extend(threads.iter().map(|((process, thread), id)| {
            let words = match (*process, thread.number) {
                (Process::Host, 0) => "calls".into(),
                (Process::Host, n) => format!("compiler {n}"),
                (Process::Device, _) => "dispatches".to_owned(),
            };
            let words = if thread.row > 0 { format!("{words}, overlapping {}", thread.row) } else { words };
            let pid = if *process == Process::Host { HOST } else { device };
            name("thread_name", pid, *id, &words)
        }));
        names
    }

    fn host_events(&self) -> Vec<Event> {
        let event = |name: &str, thread: Thread, begin: u64, end: u64| Event {
            name: name.to_owned(),
            category: "host",
            process: Process::Host,
            thread,
            begin,
            end,
            args: Value::Null,
        };
        // the compilation and each frame, by their begins
        let mut parts: Vec<(u64, u64, String, u64, &[HostSpan])> = Vec::new();
        if let Some(end) = self.compile.iter().map(|s| s.end).max() {
            parts.push((0, end, "compile".into(), 0, &self.compile));
        }
        parts.extend(self.frames.iter().enumerate().map(|(i, frame)| {
            let end = frame.host.iter().map(|s| s.end).max().unwrap_or(0).max(frame.wall_ns);
            (frame.begin, frame.begin + end, format!("frame {i}"), frame.begin, &frame.host[..])
        }));
        parts.sort_by_key(|part| part.0);
        let mut rows = Rows::default();
        let mut events = Vec::new();
        for (begin, end, name, zero, spans) in parts {
            let row = rows.place(begin, end);
            events.push(event(&name, Thread { row, number: 0 }, begin, end));
            events.extend(spans.iter().map(|s| {
                let thread = Thread { row, number: s.thread };
                event(&s.name, thread, zero + s.begin, zero + s.end)
            }));
        }
        events
    }

    fn device_events(&self) -> Vec<Event> {
        let layers = layers(self.dispatches.iter().map(|d| d.name.as_str()));
        let layers: Vec<_> = layers.into_iter().filter(|l| l.last > l.first).collect();
        // frame, dispatch, begin, end
        let mut timed: Vec<(usize, usize, u64, u64)> = Vec::new();
        for (f, frame) in self.frames.iter().enumerate() {
            let zero = frame.begin + frame.gpu_at;
            let times = frame.times.iter().enumerate();
            timed.extend(times.filter_map(|(i, t)| t.map(|(begin, end)| (f, i, zero + begin, zero + end))));
        }
        timed.sort_by_key(|t| t.2);
        let mut rows = Rows::default();
        let mut first_row: Vec<Vec<bool>> = self.frames.iter().map(|f| vec![false; f.times.len()]).collect();
        let mut around: Vec<Event> = Vec::new();
        let mut events: Vec<Event> = Vec::new();
        for (f, i, begin, end) in timed {
            let row = rows.place(begin, end);
            first_row[f][i] = row == 0;
            let dispatch = &self.dispatches[i];
            let mut args = json!({
                "kernel": self.kernel_of(dispatch),
                "grid": dispatch.grid,
                "flops": dispatch.flops,
                "bytes": dispatch.bytes,
                "frame": f,
            });
            if let Some((first, last)) = self.frames[f].timed_with(i) {
                args["timed_together"] = json!(last - first + 1);
            }
            events.push(Event {
                name: dispatch.name.clone(),
                category: "dispatch",
                process: Process::Device,
                thread: Thread { row, number: 0 },
                begin,
                end,
                args,
            });
        }
        for (f, frame) in self.frames.iter().enumerate() {
            let zero = frame.begin + frame.gpu_at;
            let mut add = |name: &str, first: usize, last: usize| {
                let times = || frame.times[first..=last].iter().flatten();
                if first_row[f][first..=last].iter().all(|on| *on)
                    && let (Some(begin), Some(end)) = (times().map(|t| t.0).min(), times().map(|t| t.1).max())
                {
                    around.push(Event {
                        name: name.to_owned(),
                        category: "layer",
                        process: Process::Device,
                        thread: Thread { row: 0, number: 0 },
                        begin: zero + begin,
                        end: zero + end,
                        args: Value::Null,
                    });
                }
            };
            if self.dispatches.len() > 1 {
                add(&format!("frame {f}"), 0, self.dispatches.len() - 1);
            }
            layers.iter().for_each(|l| add(&l.path, l.first, l.last));
        }
        let mut kept = enclosing(around, &events);
        kept.append(&mut events);
        kept
    }
}

/// Of events around others, in which an outer one stands before those in it, those that nest with each other and with
/// the dispatches of their thread. Dispatches that did not run in their order may leave some out.
fn enclosing(mut around: Vec<Event>, dispatches: &[Event]) -> Vec<Event> {
    around.sort_by_key(|e| (e.begin, Reverse(e.end)));
    let mut cross = vec![false; around.len()];
    let mut open: Vec<usize> = Vec::new();
    let mut inner = dispatches.iter().filter(|d| d.thread.row == 0).peekable();
    let mut next = around.iter().enumerate().peekable();
    loop {
        // at one begin what is around comes first
        let layer = match (next.peek(), inner.peek()) {
            (None, None) => break,
            (Some((_, a)), Some(d)) => a.begin <= d.begin,
            (some, _) => some.is_some(),
        };
        let (at, begin, end) = match layer {
            true => next.next().map(|(at, e)| (Some(at), e.begin, e.end)),
            false => inner.next().map(|e| (None, e.begin, e.end)),
        }
        .expect("it was peeked at");
        while open.last().is_some_and(|at| around[*at].end <= begin) {
            open.pop();
        }
        while let Some(outer) = open.last().copied().filter(|outer| around[*outer].end < end) {
            // of two layers the later goes, of a layer and a dispatch the layer
            match at {
                Some(at) => {
                    cross[at] = true;
                    break;
                }
                None => cross[outer] = true,
            }
            open.pop();
        }
        open.extend(at.filter(|at| !cross[*at]));
    }
    let mut cross = cross.into_iter();
    around.retain(|_| !cross.next().unwrap_or(false));
    around
}
