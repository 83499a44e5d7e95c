//! In: a [`Trace`] or a text; out: the text or the trace, checked. Knows nothing else of the crate.
//!
//! What [`Trace::from_json`] accepts can be shown without further checks: indices are within their lists, times run
//! forwards, sums of numbers stay within what f64 holds.

use super::{FORMAT, HostSpan, OLDEST, Trace, TraceError, VERSION};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::cmp::Reverse;

/// 2⁵³: whole numbers up to here are exact in f64. As nanoseconds, 104 days.
const MOST: u64 = 1 << 53;

/// FLOPs, FLOP/s and the like up to here.
const MOST_RATE: f64 = 1e24;

/// What every version says of itself. The first had no `format`.
#[derive(Deserialize)]
struct Header {
    format: Option<String>,
    version: Option<u64>,
    spans: Option<IgnoredAny>,
}

fn json_error(text: &[u8], e: &serde_json::Error) -> TraceError {
    // a number that is cut off is bad syntax, not an early end
    let open = text.trim_ascii_start().starts_with(b"{") && !text.trim_ascii_end().ends_with(b"}");
    match e.is_eof() || (e.is_syntax() && open) {
        true => TraceError::Truncated { line: e.line() },
        false => TraceError::Malformed { reason: e.to_string() },
    }
}

impl Trace {
    /// The file format of docs/trace-format.md.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a trace has no map with keys other than text")
    }

    /// Reads the file format, and gives the newest version of what it holds.
    ///
    /// # Errors
    /// If the text is cut off, not JSON, not a trace, of another version, or holds what no run gives.
    pub fn from_json(text: &[u8]) -> Result<Trace, TraceError> {
        let header: Header = serde_json::from_slice(text).map_err(|e| json_error(text, &e))?;
        let ours = header.format.as_deref() == Some(FORMAT) || (header.format.is_none() && header.spans.is_some());
        match header.version {
            Some(found) if ours && !(u64::from(OLDEST)..=u64::from(VERSION)).contains(&found) => {
                return Err(TraceError::Version { found, oldest: OLDEST, newest: VERSION });
            }
            Some(_) if ours => {}
            None if ours => return Err(TraceError::Malformed { reason: "\"version\" is missing".into() }),
            _ => return Err(TraceError::Malformed { reason: format!("\"format\" is not \"{FORMAT}\"") }),
        }
        let mut trace: Trace = serde_json::from_slice(text).map_err(|e| json_error(text, &e))?;
        trace.version = VERSION;
        trace.check()?;
        Ok(trace)
    }

    /// Whether all that a file must hold is so.
    ///
    /// # Errors
    /// The first thing that is not.
    pub fn check(&self) -> Result<(), TraceError> {
        if let Some(peaks) = self.device.peaks {
            rate("the peak of FLOP/s", peaks.flops)?;
            rate("the peak of bytes/s", peaks.bytes)?;
        }
        for (i, d) in self.dispatches.iter().enumerate() {
            let place = || format!("dispatch {i} (\"{}\")", d.name);
            index(place, "kernel", d.kernel, self.kernels.len())?;
            index(place, "node", d.node, self.graph.after.len())?;
            rate(&format!("FLOPs of {}", place()), d.flops)?;
            rate(&format!("bytes of {}", place()), d.bytes)?;
        }
        self.check_graph()?;
        self.check_memory()?;
        nest(&self.compile, |span| format!("\"{}\" of the compilation", span.name))?;
        for (f, frame) in self.frames.iter().enumerate() {
            let (found, expected) = (frame.times.len(), self.dispatches.len());
            if found != expected {
                return Err(TraceError::Count { frame: f, found, expected });
            }
            let (begin, at, wall) = (frame.begin, frame.gpu_at, frame.wall_ns);
            for (what, ns) in [("begin", begin), ("gpu_at", at), ("wall_ns", wall), ("encode_ns", frame.encode_ns)] {
                whole(|| format!("{what} of frame {f}"), ns)?;
            }
            nest(&frame.host, |span| format!("\"{}\" of frame {f}", span.name))?;
            let mut next = 0;
            for &(first, last) in &frame.shared {
                let place = || format!("a group that frame {f} times together");
                index(place, "dispatch", last, expected)?;
                // at least two, behind the ones before
                if first < next || first >= last {
                    return Err(TraceError::Group { frame: f, first, last, least: next });
                }
                next = last + 1;
            }
            for (time, dispatch) in frame.times.iter().zip(&self.dispatches) {
                if let Some((begin, end)) = time {
                    forwards(|| format!("\"{}\" of frame {f}", dispatch.name), *begin, *end)?;
                }
            }
        }
        Ok(())
    }

    fn check_graph(&self) -> Result<(), TraceError> {
        let (before, after) = (&self.graph.before, &self.graph.after);
        for (words, nodes) in [("before", before), ("after", after)] {
            for (i, node) in nodes.iter().enumerate() {
                let place = || format!("node {i} (\"{}\") of the graph {words}", node.name);
                for &input in &node.inputs {
                    index(place, "node", input, i)?;
                }
                if let Some(to) = node.becomes {
                    index(place, "node", to, after.len())?;
                }
            }
        }
        Ok(())
    }

    fn check_memory(&self) -> Result<(), TraceError> {
        let memory = &self.memory;
        whole(|| "resident memory".into(), memory.resident)?;
        whole(|| "naive memory".into(), memory.naive)?;
        for (i, bytes) in memory.slots.iter().enumerate() {
            whole(|| format!("slot {i}"), *bytes)?;
        }
        for (i, tensor) in memory.tensors.iter().enumerate() {
            let place = || format!("tensor {i} (\"{}\")", tensor.name);
            whole(|| format!("bytes of {}", place()), tensor.bytes)?;
            if let Some(slot) = tensor.slot {
                index(place, "slot", slot, memory.slots.len())?;
            }
            if let Some((first, last)) = tensor.alive {
                // an output lives one past the last dispatch
                index(place, "dispatch", last, self.dispatches.len() + 1)?;
                forwards(|| format!("the life of {}", place()), first as u64, last as u64)?;
            }
        }
        Ok(())
    }
}

/// Whether spans run forwards, and those of each thread lie in each other or apart.
fn nest(spans: &[HostSpan], place: impl Fn(&HostSpan) -> String) -> Result<(), TraceError> {
    for span in spans {
        forwards(|| place(span), span.begin, span.end)?;
    }
    let mut order: Vec<&HostSpan> = spans.iter().collect();
    order.sort_by_key(|s| (s.thread, s.begin, Reverse(s.end)));
    let mut around: Vec<&HostSpan> = Vec::new();
    for span in order {
        while around.last().is_some_and(|a| a.thread != span.thread || a.end <= span.begin) {
            around.pop();
        }
        if let Some(outer) = around.last().filter(|a| a.end < span.end) {
            return Err(TraceError::Crossing { place: place(outer), end: outer.end, other: span.name.clone() });
        }
        around.push(span);
    }
    Ok(())
}

fn index(place: impl Fn() -> String, what: &'static str, index: usize, count: usize) -> Result<(), TraceError> {
    match index < count {
        true => Ok(()),
        false => Err(TraceError::Index { place: place(), what, index, count }),
    }
}

fn forwards(place: impl Fn() -> String, begin: u64, end: u64) -> Result<(), TraceError> {
    whole(&place, end)?;
    match begin <= end {
        true => Ok(()),
        false => Err(TraceError::Backwards { place: place(), begin, end }),
    }
}

fn whole(place: impl Fn() -> String, value: u64) -> Result<(), TraceError> {
    match value <= MOST {
        true => Ok(()),
        false => Err(TraceError::Number { place: place(), value: value.to_string(), most: MOST as f64 }),
    }
}

fn rate(place: &str, value: f64) -> Result<(), TraceError> {
    match (0.0..=MOST_RATE).contains(&value) {
        true => Ok(()),
        false => Err(TraceError::Number { place: place.into(), value: format!("{value:e}"), most: MOST_RATE }),
    }
}
