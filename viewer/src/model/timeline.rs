//! In: a trace; out: [`Timeline`], lanes of rows of spans, and of a row what a stretch of time shows at a width in
//! pixels. Knows neither egui nor files.
//!
//! Spans of a row are in order and do not overlap, so that [`visible`] finds the first by bisection and costs at most a
//! few steps a pixel, however many spans there are.

use super::document::Document;
use kiln::trace::{Layer, Rows, layers};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// What a span stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The compilation.
    Compile,
    /// A run.
    Frame(u32),
    /// What the host did while it compiled: index in the trace's list.
    Stage(u32),
    /// What the host did in a frame: frame and index in its list.
    Host(u32, u32),
    /// A layer of a frame: frame and index in [`Timeline::layers`].
    Layer(u32, u32),
    /// A dispatch in a frame.
    Dispatch(u32, u32),
}

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Nanoseconds from the begin of the compilation.
    pub begin: u64,
    /// Likewise.
    pub end: u64,
    /// What it stands for.
    pub what: What,
}

/// Rows under one title, outer spans above those in them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lane {
    /// Its title.
    pub title: String,
    /// Whether it is shown where it has no span, too.
    pub always: bool,
    /// Rows, each in order.
    pub rows: Vec<Vec<Span>>,
    /// The first of the rows in which dispatches lie, where uncovered time is a gap.
    pub dispatch_row: Option<usize>,
}

/// All that a trace has to show over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// From top to bottom.
    pub lanes: Vec<Lane>,
    /// The paths of layers, in the order of their dispatches.
    pub layers: Vec<String>,
    /// Whether the time of each layer is no measured one: see [`Document::has_parts`].
    pub divided: Vec<bool>,
    /// Begin and end of each frame, host and device.
    pub frames: Vec<(u64, u64)>,
    /// Where the last span ends.
    pub end: u64,
}

/// Adds a span to a row.
fn put(rows: &mut Vec<Vec<Span>>, row: usize, span: Span) {
    if rows.len() <= row {
        rows.resize_with(row + 1, Vec::new);
    }
    rows[row].push(span);
}

/// Spans of one thread in rows: each goes below those around it. Of those that begin and end at once, the first is
/// around the next.
fn nest(mut spans: Vec<Span>) -> Vec<Vec<Span>> {
    spans.sort_by_key(|s| (s.begin, Reverse(s.end)));
    let mut rows = Vec::new();
    // a span leaves only after all that came later have: the row that its place stands for is free then
    let mut open: Vec<u64> = Vec::new();
    for span in spans {
        while open.last().is_some_and(|end| *end <= span.begin) {
            open.pop();
        }
        put(&mut rows, open.len(), span);
        open.push(span.end);
    }
    rows
}

impl Timeline {
    /// Lays a trace out.
    pub fn of(document: &Document) -> Timeline {
        let trace = &document.trace;
        let mut found = layers(trace.dispatches.iter().map(|d| d.name.as_str()));
        // a dispatch says as much as a layer of its own
        found.retain(|l| l.last > l.first);
        let mut frames = Vec::new();

        // by thread: the caller's holds the compilation and the frames, others what they compiled
        let mut threads: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
        let main = trace.compile.iter().filter(|s| s.thread == 0).map(|s| s.end).max();
        let caller = threads.entry(0).or_default();
        caller.extend(main.map(|end| Span { begin: 0, end, what: What::Compile }));
        for (i, s) in trace.compile.iter().enumerate() {
            let span = Span { begin: s.begin, end: s.end, what: What::Stage(i as u32) };
            threads.entry(s.thread).or_default().push(span);
        }
        let caller = threads.entry(0).or_default();

        // frame, layers by depth, then dispatches
        let mut device = Lane { title: "GPU".into(), always: true, ..Lane::default() };
        let depth = found.iter().map(|l| l.depth + 1).max().unwrap_or(0);
        let dispatch_row = 1 + depth;
        let mut dispatches: Vec<Span> = Vec::new();
        for (f, frame) in trace.frames.iter().enumerate() {
            let f32 = f as u32;
            let ends = frame.host.iter().map(|s| s.end).chain([frame.wall_ns]);
            let mut end = frame.begin + ends.max().unwrap_or(0);
            caller.push(Span { begin: frame.begin, end, what: What::Frame(f32) });
            caller.extend(frame.host.iter().enumerate().map(|(i, s)| Span {
                begin: frame.begin + s.begin,
                end: frame.begin + s.end,
                what: What::Host(f32, i as u32),
            }));

            let zero = frame.begin + frame.gpu_at;
            // what overlaps its neighbour is not drawn: its dispatches are
            let mut around = |row: usize, first: usize, last: usize, what: What| {
                let times = || frame.times[first..=last].iter().flatten();
                let (begin, end) = (times().map(|t| t.0).min()?, times().map(|t| t.1).max()?);
                let span = Span { begin: zero + begin, end: zero + end, what };
                let free = device.rows.get(row).and_then(|r| r.last()).is_none_or(|s| s.end <= span.begin);
                free.then(|| put(&mut device.rows, row, span));
                Some(span.end)
            };
            if let Some(last) = frame.times.len().checked_sub(1) {
                end = around(0, 0, last, What::Frame(f32)).map_or(end, |last| end.max(last));
            }
            for (l, layer) in found.iter().enumerate() {
                around(1 + layer.depth, layer.first, layer.last, What::Layer(f32, l as u32));
            }
            dispatches.extend(frame.times.iter().enumerate().filter_map(|(i, time)| {
                let what = What::Dispatch(f32, i as u32);
                time.map(|(begin, end)| Span { begin: zero + begin, end: zero + end, what })
            }));
            frames.push((frame.begin, end));
        }
        dispatches.sort_by_key(|s| s.begin);
        let mut rows = Rows::default();
        for span in dispatches {
            put(&mut device.rows, dispatch_row + rows.place(span.begin, span.end), span);
        }
        if !device.rows.is_empty() {
            device.dispatch_row = Some(dispatch_row);
        }
        let mut lanes = Vec::new();
        for (thread, spans) in threads {
            let title = if thread == 0 { "CPU".into() } else { format!("compiler {thread}") };
            lanes.push(Lane { title, always: thread == 0, rows: nest(spans), dispatch_row: None });
        }
        lanes.push(device);
        let ends = lanes.iter().flat_map(|l| &l.rows).filter_map(|r| r.last()).map(|s| s.end);
        let end = ends.max().unwrap_or(0);
        let dispatches = |l: &Layer| (l.first..=l.last).collect::<Vec<_>>();
        let divided = found.iter().map(|l| document.has_parts(&dispatches(l))).collect();
        Timeline { lanes, layers: found.into_iter().map(|l| l.path).collect(), divided, frames, end }
    }

    /// What shows all.
    pub fn all(&self) -> View {
        View { begin: 0.0, end: self.end.max(1) as f64 }.widened(0.02)
    }

    /// What shows one frame.
    pub fn frame(&self, frame: usize) -> View {
        match self.frames.get(frame) {
            Some((begin, end)) => View { begin: *begin as f64, end: (*end).max(begin + 1) as f64 }.widened(0.02),
            None => self.all(),
        }
    }
}

/// The stretch of time that is shown, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// At the left.
    pub begin: f64,
    /// At the right.
    pub end: f64,
}

/// The shortest stretch that can be shown, nanoseconds.
const LEAST: f64 = 10.0;

/// The longest, nanoseconds.
const MOST: f64 = 1e16;

impl View {
    /// With a part of its length more at each side.
    pub fn widened(self, part: f64) -> View {
        let more = (self.end - self.begin) * part;
        View { begin: self.begin - more, end: self.end + more }
    }

    /// Where a time lies, in pixels from the left.
    pub fn x(&self, ns: f64, width: f32) -> f32 {
        ((ns - self.begin) / (self.end - self.begin) * f64::from(width)) as f32
    }

    /// What time lies at a pixel.
    pub fn ns(&self, x: f32, width: f32) -> f64 {
        self.begin + f64::from(x) / f64::from(width.max(1.0)) * (self.end - self.begin)
    }

    /// Zoomed around a pixel, which keeps its time; a factor above 1 shows less.
    pub fn zoomed(self, factor: f64, x: f32, width: f32) -> View {
        let length = ((self.end - self.begin) / factor).clamp(LEAST, MOST);
        let (at, part) = (self.ns(x, width), f64::from(x) / f64::from(width.max(1.0)));
        View { begin: at - length * part, end: at + length * (1.0 - part) }
    }

    /// Moved by pixels.
    pub fn moved(self, pixels: f32, width: f32) -> View {
        let by = f64::from(pixels) / f64::from(width.max(1.0)) * (self.end - self.begin);
        View { begin: self.begin + by, end: self.end + by }
    }
}

/// Spans that are drawn as one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// Pixels from the left.
    pub left: f32,
    /// Likewise.
    pub right: f32,
    /// The first span, as its position in the row.
    pub first: usize,
    /// How many.
    pub count: usize,
}

/// What a view shows of a row: spans of at least a pixel one by one, smaller neighbours together.
pub fn visible(row: &[Span], view: View, width: f32) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut i = row.partition_point(|s| (s.end as f64) < view.begin);
    while let Some(span) = row.get(i).filter(|s| s.begin as f64 <= view.end) {
        let (left, right) = (view.x(span.begin as f64, width), view.x(span.end as f64, width));
        if right - left >= 1.0 {
            blocks.push(Block { left, right, first: i, count: 1 });
            i += 1;
            continue;
        }
        // all that end within a pixel go into one block
        let until = view.ns(left + 1.0, width);
        let count = row[i..].partition_point(|s| s.end as f64 <= until).max(1);
        let right = view.x(row[i + count - 1].end as f64, width).max(left + 1.0);
        blocks.push(Block { left, right, first: i, count });
        i += count;
    }
    blocks
}

/// Marks for an axis over a view: nanoseconds, at steps of 1, 2 or 5 times a power of ten, at least `room` pixels
/// apart.
pub fn marks(view: View, width: f32, room: f32) -> (f64, Vec<f64>) {
    let least = (view.end - view.begin) * f64::from(room / width.max(1.0));
    let power = 10f64.powf(least.max(1.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= least).unwrap_or(10.0 * power);
    let first = (view.begin / step).ceil() as i64;
    let last = (view.end / step).floor() as i64;
    (step, (first..=last).map(|n| n as f64 * step).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_trace_becomes_lanes_of_nested_rows_in_order() {
        let document = sample::document();
        let timeline = Timeline::of(&document);
        let titles: Vec<&str> = timeline.lanes.iter().map(|l| l.title.as_str()).collect();
        assert_eq!(titles, ["CPU", "compiler 1", "GPU"]);
        for row in timeline.lanes.iter().flat_map(|l| &l.rows) {
            assert!(row.windows(2).all(|w| w[0].end <= w[1].begin), "{row:?}");
        }
        let gpu = &timeline.lanes[2];
        // frames, blocks.0, blocks.0.sa, dispatches
        assert_eq!(gpu.rows.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3, 3 * 7]);
        assert_eq!(gpu.dispatch_row, Some(3));
        assert_eq!(timeline.layers, ["blocks.0", "blocks.0.sa"]);
        assert_eq!(timeline.divided, [false, false]);
        // of 1 to 4 the first three are `sa`
        let mut trace = sample::trace();
        trace.frames[0].shared = vec![(3, 4)];
        assert_eq!(Timeline::of(&Document::new("", trace)).divided, [false, true]);
        let cpu = &timeline.lanes[0];
        assert_eq!(cpu.rows[0].len(), 1 + 3, "the compilation and three frames");
        assert_eq!(timeline.frames.len(), 3);
        assert!(timeline.frame(0).begin < timeline.frames[0].0 as f64);
        assert_eq!(timeline.frame(9), timeline.all());
    }

    #[test]
    fn nothing_to_show_is_no_fault() {
        let timeline = Timeline::of(&Document::new("", kiln::Trace::default()));
        assert!(timeline.lanes.iter().all(|l| l.rows.is_empty()));
        assert!(timeline.all().end > timeline.all().begin);
    }

    fn row(spans: &[(u64, u64)]) -> Vec<Span> {
        spans.iter().map(|&(begin, end)| Span { begin, end, what: What::Compile }).collect()
    }

    #[test]
    fn small_neighbours_are_one_block_and_what_is_outside_is_left_out() {
        let row = row(&[(0, 10), (20, 21), (21, 22), (22, 23), (50, 90), (200, 300)]);
        let view = View { begin: 15.0, end: 115.0 };
        let blocks = visible(&row, view, 20.0);
        let found: Vec<(usize, usize)> = blocks.iter().map(|b| (b.first, b.count)).collect();
        assert_eq!(found, [(1, 3), (4, 1)]);
        assert!(blocks.iter().all(|b| b.right - b.left >= 1.0));
        assert_eq!(visible(&row, view, 1000.0).len(), 4, "zoomed in, each stands alone");
    }

    #[test]
    fn cost_is_bounded_by_pixels() {
        let many: Vec<(u64, u64)> = (0..1_000_000).map(|i| (i * 10, i * 10 + 9)).collect();
        let row = row(&many);
        let blocks = visible(&row, View { begin: 0.0, end: 1e7 }, 800.0);
        assert!(blocks.len() <= 801, "{}", blocks.len());
        assert_eq!(blocks.iter().map(|b| b.count).sum::<usize>(), 1_000_000);
    }

    #[test]
    fn zooming_keeps_the_time_under_the_pointer() {
        let view = View { begin: 1000.0, end: 2000.0 };
        let zoomed = view.zoomed(4.0, 30.0, 100.0);
        assert!((zoomed.ns(30.0, 100.0) - view.ns(30.0, 100.0)).abs() < 1e-6);
        assert!(((zoomed.end - zoomed.begin) - 250.0).abs() < 1e-6);
        let closest = view.zoomed(1e30, 30.0, 100.0);
        assert!((closest.end - closest.begin - LEAST).abs() < 1e-6, "there is an end to it");
        assert_eq!(view.moved(10.0, 100.0), View { begin: 1100.0, end: 2100.0 });
    }

    #[test]
    fn marks_are_round_and_apart() {
        let (step, marks) = marks(View { begin: 90.0, end: 1090.0 }, 500.0, 80.0);
        assert_eq!((step, marks), (200.0, vec![200.0, 400.0, 600.0, 800.0, 1000.0]));
    }
}
