//! In: a [`Trace`]; out: the same in the Trace Event Format, which Perfetto and Chrome's tracing page open. Knows
//! nothing else of the crate.
//!
//! Complete events (`"ph": "X"`) in microseconds from the first; process 1 is the host, process 2 the device. Layers
//! enclose their dispatches. Dispatches that overlap lie on further threads of the device, since events of one thread
//! must nest.

use super::{HostSpan, Trace, layers};
use serde::Serialize;
use serde_json::{Value, json};

const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// Nanoseconds until it is written.
struct Event {
    name: String,
    category: &'static str,
    process: u32,
    thread: u32,
    begin: u64,
    end: u64,
    args: Value,
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
        events.sort_by_key(|e| (e.begin, std::cmp::Reverse(e.end)));
        let zero = events.first().map_or(0, |e| e.begin);
        let mut written = self.names(&events);
        let us = |ns: u64| ns as f64 / 1e3;
        written.extend(events.iter().map(|e| {
            let event = Written {
                name: &e.name,
                cat: e.category,
                ph: "X",
                ts: us(e.begin - zero),
                dur: us(e.end - e.begin),
                pid: e.process,
                tid: e.thread,
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
    fn names(&self, events: &[Event]) -> Vec<String> {
        let name = |what: &str, pid: u32, tid: u32, name: &str| {
            json!({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}).to_string()
        };
        let mut used: Vec<(u32, u32)> = events.iter().map(|e| (e.process, e.thread)).collect();
        used.sort_unstable();
        used.dedup();
        let device = format!("device: {}", self.device.adapter);
        let mut names = vec![name("process_name", HOST, 0, "host"), name("process_name", DEVICE, 0, &device)];
        names.extend(used.into_iter().map(|(pid, tid)| {
            let thread = match (pid, tid) {
                (HOST, 0) => "calls".into(),
                (HOST, n) => format!("compiler {n}"),
                (_, 0) => "dispatches".into(),
                (_, n) => format!("overlapping {n}"),
            };
            name("thread_name", pid, tid, &thread)
        }));
        names
    }

    fn host_events(&self) -> Vec<Event> {
        let event = |span: &HostSpan, zero: u64| Event {
            name: span.name.clone(),
            category: "host",
            process: HOST,
            thread: span.thread,
            begin: zero + span.begin,
            end: zero + span.end,
            args: Value::Null,
        };
        let around = |name: String, begin: u64, end: u64| Event {
            name,
            category: "host",
            process: HOST,
            thread: 0,
            begin,
            end,
            args: Value::Null,
        };
        let mut events: Vec<Event> = self.compile.iter().map(|s| event(s, 0)).collect();
        if let Some(end) = self.compile.iter().map(|s| s.end).max() {
            events.push(around("compile".into(), 0, end));
        }
        for (i, frame) in self.frames.iter().enumerate() {
            events.extend(frame.host.iter().map(|s| event(s, frame.begin)));
            let end = frame.host.iter().map(|s| s.end).max().unwrap_or(0).max(frame.wall_ns);
            events.push(around(format!("frame {i}"), frame.begin, frame.begin + end));
        }
        events
    }

    fn device_events(&self) -> Vec<Event> {
        let layers = layers(self.dispatches.iter().map(|d| d.name.as_str()));
        let mut events = Vec::new();
        // how far each thread is filled
        let mut reached: Vec<u64> = Vec::new();
        for (f, frame) in self.frames.iter().enumerate() {
            let zero = frame.begin + frame.gpu_at;
            let mut threads = vec![None; self.dispatches.len()];
            for (i, (dispatch, time)) in self.dispatches.iter().zip(&frame.times).enumerate() {
                let Some((begin, end)) = time.map(|(b, e)| (zero + b, zero + e)) else { continue };
                let thread = reached.iter().position(|r| *r <= begin).unwrap_or(reached.len());
                if thread == reached.len() {
                    reached.push(0);
                }
                reached[thread] = end;
                threads[i] = Some(thread);
                events.push(Event {
                    name: dispatch.name.clone(),
                    category: "dispatch",
                    process: DEVICE,
                    thread: thread as u32,
                    begin,
                    end,
                    args: json!({
                        "kernel": self.kernel_of(dispatch),
                        "grid": dispatch.grid,
                        "flops": dispatch.flops,
                        "bytes": dispatch.bytes,
                        "frame": f,
                    }),
                });
            }
            let around = |name: &str, first: usize, last: usize| {
                let together = threads[first..=last].iter().all(|t| *t == Some(0));
                let (begin, end) = (frame.times[first]?.0, frame.times[last]?.1);
                together.then(|| Event {
                    name: name.to_owned(),
                    category: "layer",
                    process: DEVICE,
                    thread: 0,
                    begin: zero + begin,
                    end: zero + end,
                    args: Value::Null,
                })
            };
            events.extend(layers.iter().filter(|l| l.last > l.first).filter_map(|l| around(&l.path, l.first, l.last)));
            if self.dispatches.len() > 1 {
                events.extend(around(&format!("frame {f}"), 0, self.dispatches.len() - 1));
            }
        }
        events
    }
}
