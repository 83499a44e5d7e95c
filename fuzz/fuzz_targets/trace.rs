//! In: bytes; out: a crash, a hang or too much memory where [`Trace::from_json`] or anything that is derived of a trace
//! that it accepts has a fault. Half of the changes are made to the bytes, half to a value of the JSON that they hold,
//! which come past the syntax.

#![no_main]

#[allow(dead_code, unused_imports, reason = "the viewer's own use of it is not in here")]
#[path = "../../viewer/src/model/mod.rs"]
mod model;

use kiln::trace::Trace;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use model::compare::compare;
use model::document::Document;
use model::memory::{layout, tenant_at};
use model::roofline::roofline;
use model::selection::{Marks, Selection, fits};
use model::table::{Column, Group, csv, rows};
use model::timeline::{Timeline, marks, visible};
use model::tree::Trees;
use serde_json::Value;

fuzz_target!(|text: &[u8]| {
    let Ok(trace) = Trace::from_json(text) else { return };
    Trace::from_json(trace.to_json().as_bytes()).expect("what is written is read");
    let chrome: Value = serde_json::from_str(&trace.to_chrome()).expect("the export is JSON");
    nested(&chrome);
    assert!(!trace.to_csv().is_empty() && !trace.to_string().is_empty());
    show(&Document::new("trace.json", trace));
});

/// What every panel derives.
fn show(document: &Document) {
    let trace = &document.trace;
    let timeline = Timeline::of(document);
    for view in [timeline.all(), timeline.frame(0), timeline.frame(usize::MAX)] {
        let (_, times) = marks(view, 1000.0, 90.0);
        assert!(times.len() <= 1000, "{view:?}");
        for row in timeline.lanes.iter().flat_map(|l| &l.rows) {
            assert!(row.windows(2).all(|w| w[0].end <= w[1].begin), "spans of a row overlap");
            assert!(visible(row, view, 1000.0).len() <= 2002, "more blocks than pixels");
        }
    }
    for group in [Group::Dispatch, Group::Kernel, Group::Layer, Group::Part] {
        for column in Column::ALL {
            csv(&rows(document, group, "", column, group == Group::Kernel));
        }
    }
    roofline(document, "a !b");
    let plan = layout(trace, 0.12);
    for step in 0..trace.dispatches.len().min(8) {
        tenant_at(&plan, step, 0.5);
    }
    let trees = Trees::of(trace, "", true);
    trees.after.lines(&|_, _| true);
    trees.before.lines(&|_, depth| depth == 0);
    compare(document, document, true);
    let found = Marks::of(trace.dispatches.len(), |i| fits(document, i, "matmul"));
    let layers = timeline.layers.iter().take(4).cloned().map(Selection::Layer);
    for selection in layers.chain(found.dispatches.first().map(|i| Selection::Dispatch(*i))) {
        selection.words(document);
        selection.dispatches(document);
    }
    document.caption();
}

/// Whether events of one thread lie in each other or apart, as the Trace Event Format wants.
fn nested(chrome: &Value) {
    let mut events: Vec<(u64, u64, i64, i64)> = Vec::new();
    for event in chrome["traceEvents"].as_array().expect("a list") {
        if event["ph"] == "X" {
            let id = |field: &str| event[field].as_u64().expect("a number");
            let ns = |field: &str| (event[field].as_f64().expect("a number") * 1e3).round() as i64;
            events.push((id("pid"), id("tid"), ns("ts"), -(ns("ts") + ns("dur"))));
        }
    }
    // beyond 2⁵⁰ nanoseconds, 13 days, microseconds in f64 are not exact to the nanosecond
    if events.iter().any(|e| -e.3 > 1 << 50) {
        return;
    }
    events.sort_unstable();
    let mut open: Vec<(u64, u64, i64)> = Vec::new();
    for (process, thread, begin, less) in events {
        while open.last().is_some_and(|o| (o.0, o.1) != (process, thread) || o.2 <= begin) {
            open.pop();
        }
        assert!(open.last().is_none_or(|o| o.2 >= -less), "events of thread {thread} cross");
        open.push((process, thread, -less));
    }
}

/// Numbers at edges of what is accepted.
const EDGES: [u64; 12] =
    [0, 1, 2, 31, 255, 65_535, 65_536, u32::MAX as u64, 1 << 53, (1 << 53) + 1, i64::MAX as u64, u64::MAX];

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let text = &data[..size];
    if seed % 2 == 0
        && let Ok(mut value) = serde_json::from_slice::<Value>(text)
    {
        let mut random = Random(u64::from(seed) | 1 << 40);
        for _ in 0..=random.below(3) {
            change(&mut value, &mut random);
        }
        let written = value.to_string();
        if written.len() <= max_size {
            data[..written.len()].copy_from_slice(written.as_bytes());
            return written.len();
        }
    }
    fuzzer_mutate(data, size, max_size)
});

/// Xorshift: G. Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8(14), 2003.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// Changes something in a value: goes down at random and alters what it comes to.
fn change(value: &mut Value, random: &mut Random) {
    match value {
        Value::Array(items) if !items.is_empty() && random.below(8) > 0 => {
            let at = random.below(items.len());
            change(&mut items[at], random);
        }
        Value::Array(items) => {
            let at = random.below(items.len());
            match random.below(4) {
                0 if !items.is_empty() => drop(items.remove(at)),
                1 => items.truncate(at),
                2 if !items.is_empty() => items.swap(0, at),
                _ => {
                    let item = items.get(at).cloned().unwrap_or(Value::Null);
                    let times = if random.below(16) == 0 { 200 } else { 1 };
                    items.extend(std::iter::repeat_n(item, times));
                }
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let at = random.below(fields.len());
            if let Some((name, _)) = fields.iter().nth(at).map(|(n, v)| (n.clone(), v)) {
                match random.below(40) {
                    0 => drop(fields.remove(&name)),
                    _ => change(&mut fields[&name], random),
                }
            }
        }
        Value::Number(number) => {
            let edge = EDGES[random.below(EDGES.len())];
            *value = match (number.as_u64(), random.below(4)) {
                (Some(n), 0) => n.saturating_add(1).into(),
                (Some(n), 1) => n.saturating_sub(1).into(),
                (Some(n), 2) => (n ^ 1 << random.below(20)).into(),
                (None, 0) => (-1.5e300).into(),
                _ => edge.into(),
            };
        }
        Value::String(text) => {
            *value = match random.below(5) {
                0 => ".".repeat(1 + random.below(3000)).into(),
                1 => format!("{text}.{}.a", random.below(3)).into(),
                2 => format!("blocks.{}.{text}", random.below(40)).into(),
                3 => "a.".repeat(1 + random.below(2000)).into(),
                _ => String::new().into(),
            };
        }
        Value::Null => *value = if random.below(2) == 0 { 0.into() } else { serde_json::json!([0, 9]) },
        _ => *value = Value::Null,
    }
}
