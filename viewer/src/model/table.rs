//! In: a document, a grouping, an order and a filter; out: the rows of the table. Knows neither egui nor files.

use super::document::Document;
use super::selection::{Selection, fits};
use kiln::trace::{Peaks, stats};
use std::collections::BTreeMap;

/// What a row stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Group {
    /// A dispatch.
    Dispatch,
    /// All dispatches of a kernel.
    #[default]
    Kernel,
    /// All dispatches of a layer, `blocks.3`.
    Layer,
    /// All dispatches of a part of a layer, `blocks.3.sa`.
    Part,
}

/// Parts of a layer's name, and of a part's.
const LAYER: usize = 1;
const PART: usize = 2;

/// What rows are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Column {
    /// The row's name.
    Name,
    /// Dispatches a run.
    Calls,
    /// Time a run.
    #[default]
    Total,
    /// Time a dispatch.
    Mean,
    /// The time that 95 % of the dispatches of all runs do not exceed.
    P95,
    /// Part of the time of all dispatches.
    Share,
    /// FLOP/s.
    Flops,
    /// Bytes/s.
    Bytes,
    /// The least time that the hardware allows over the time.
    Roofline,
}

impl Column {
    /// All, from left to right.
    pub const ALL: [Column; 9] = [
        Column::Name,
        Column::Calls,
        Column::Total,
        Column::Mean,
        Column::P95,
        Column::Share,
        Column::Flops,
        Column::Bytes,
        Column::Roofline,
    ];

    /// Points that it needs.
    pub fn width(self) -> f32 {
        match self {
            Column::Bytes => 48.0,
            Column::Share | Column::Flops => 62.0,
            Column::Roofline => 80.0,
            _ => 66.0,
        }
    }

    /// Its heading.
    pub fn title(self) -> &'static str {
        match self {
            Column::Name => "name",
            Column::Calls => "calls",
            Column::Total => "total",
            Column::Mean => "mean",
            Column::P95 => "p95",
            Column::Share => "share",
            Column::Flops => "GFLOP/s",
            Column::Bytes => "GB/s",
            Column::Roofline => "of roofline",
        }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Dispatch, kernel or layer.
    pub name: String,
    /// What clicking it selects.
    pub selection: Selection,
    /// The kernel that takes most of its time.
    pub kernel: String,
    /// Dispatches a run.
    pub calls: usize,
    /// The sum of their medians, nanoseconds; `None` where one has no times.
    pub total_ns: Option<f64>,
    /// Over all dispatches and runs, nanoseconds.
    pub p95_ns: Option<f64>,
    /// FLOPs a run.
    pub flops: f64,
    /// Bytes a run.
    pub bytes: f64,
    /// The least time that the hardware allows, nanoseconds; `None` without measured peaks.
    pub bound_ns: Option<f64>,
    /// Part of the time of all dispatches.
    pub share: Option<f64>,
    /// Whether its time as a whole is no measured one: see [`Document::has_parts`].
    pub parts: bool,
    /// Whether the time of one of its dispatches is a part of what several took together.
    pub divided: bool,
}

/// The least time for so many FLOPs and bytes, nanoseconds.
pub fn bound_ns(flops: f64, bytes: f64, peaks: Peaks) -> f64 {
    let over = |amount: f64, rate: f64| if rate > 0.0 { amount / rate } else { 0.0 };
    over(flops, peaks.flops).max(over(bytes, peaks.bytes)) * 1e9
}

impl Row {
    /// Nanoseconds a dispatch.
    pub fn mean_ns(&self) -> Option<f64> {
        self.total_ns.map(|ns| ns / self.calls as f64)
    }

    /// FLOP/s.
    pub fn flops_rate(&self) -> Option<f64> {
        self.total_ns.filter(|ns| *ns > 0.0).map(|ns| self.flops / ns * 1e9)
    }

    /// Bytes/s.
    pub fn bytes_rate(&self) -> Option<f64> {
        self.total_ns.filter(|ns| *ns > 0.0).map(|ns| self.bytes / ns * 1e9)
    }

    /// The least time that the hardware allows over the time.
    pub fn roofline(&self) -> Option<f64> {
        self.bound_ns.zip(self.total_ns.filter(|ns| *ns > 0.0)).map(|(bound, ns)| bound / ns)
    }

    fn key(&self, column: Column) -> Option<f64> {
        match column {
            Column::Name => None,
            Column::Calls => Some(self.calls as f64),
            Column::Total | Column::Share => self.total_ns,
            Column::Mean => self.mean_ns(),
            Column::P95 => self.p95_ns,
            Column::Flops => self.flops_rate(),
            Column::Bytes => self.bytes_rate(),
            Column::Roofline => self.roofline(),
        }
    }
}

/// The rows of the dispatches that fit a filter. Numbers fall, names rise, unless `reversed`; what has no number comes
/// last.
pub fn rows(document: &Document, group: Group, filter: &str, order: Column, reversed: bool) -> Vec<Row> {
    let trace = &document.trace;
    let mut groups: BTreeMap<(String, usize), Vec<usize>> = BTreeMap::new();
    for (i, d) in trace.dispatches.iter().enumerate().filter(|(i, _)| fits(document, *i, filter)) {
        let key = match group {
            Group::Dispatch => (d.name.clone(), i),
            Group::Kernel => (trace.kernel_of(d).to_owned(), 0),
            Group::Layer => (document.layer(i, LAYER).to_owned(), 0),
            Group::Part => (document.layer(i, PART).to_owned(), 0),
        };
        groups.entry(key).or_default().push(i);
    }
    let mut rows: Vec<Row> = groups.into_iter().map(|((name, _), of)| row(document, group, name, &of)).collect();
    rows.sort_by(|a, b| {
        let order = match (a.key(order), b.key(order)) {
            (Some(a), Some(b)) if reversed => a.total_cmp(&b),
            (Some(a), Some(b)) => b.total_cmp(&a),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) if reversed => b.name.cmp(&a.name),
            (None, None) => a.name.cmp(&b.name),
        };
        order.then_with(|| a.name.cmp(&b.name))
    });
    rows
}

fn row(document: &Document, group: Group, name: String, of: &[usize]) -> Row {
    let trace = &document.trace;
    let sum = |pick: &dyn Fn(usize) -> f64| of.iter().map(|i| pick(*i)).sum::<f64>();
    let total_ns = of.iter().map(|i| document.median_ns(*i)).sum::<Option<f64>>();
    let slowest = of.iter().max_by(|a, b| {
        let ns = |i: usize| document.median_ns(i).unwrap_or(0.0);
        ns(**a).total_cmp(&ns(**b))
    });
    let selection = match group {
        Group::Dispatch => Selection::Dispatch(of[0]),
        Group::Kernel => Selection::Kernel(name.clone()),
        Group::Layer => Selection::Part(name.clone(), LAYER),
        Group::Part => Selection::Part(name.clone(), PART),
    };
    Row {
        selection,
        kernel: slowest.map_or(String::new(), |i| trace.kernel_of(&trace.dispatches[*i]).to_owned()),
        calls: of.len(),
        total_ns,
        p95_ns: stats(of.iter().flat_map(|i| trace.durations(*i))).map(|s| s.p95 as f64),
        flops: sum(&|i| trace.dispatches[i].flops),
        bytes: sum(&|i| trace.dispatches[i].bytes),
        bound_ns: trace.device.peaks.map(|peaks| {
            of.iter().map(|i| bound_ns(trace.dispatches[*i].flops, trace.dispatches[*i].bytes, peaks)).sum()
        }),
        parts: document.has_parts(of),
        divided: of.iter().any(|i| document.is_part(*i)),
        share: total_ns.zip(document.total_ns).filter(|(_, all)| *all > 0.0).map(|(ns, all)| ns / all),
        name,
    }
}

/// The rows as comma-separated values, in nanoseconds, FLOP/s and bytes/s; empty where unavailable.
pub fn csv(rows: &[Row]) -> String {
    const HEADING: [&str; 11] = [
        "name",
        "kernel",
        "calls",
        "total_ns",
        "mean_ns",
        "p95_ns",
        "share",
        "flops_per_s",
        "bytes_per_s",
        "of_roofline",
        "measured_as_a_whole",
    ];
    let mut writer = csv::Writer::from_writer(Vec::new());
    let number = |n: Option<f64>| n.map_or(String::new(), |n| n.to_string());
    let mut write = |row: &[String; 11]| writer.write_record(row).expect("memory takes every row");
    write(&HEADING.map(str::to_owned));
    for row in rows {
        write(&[
            row.name.clone(),
            row.kernel.clone(),
            row.calls.to_string(),
            number(row.total_ns),
            number(row.mean_ns()),
            number(row.p95_ns),
            number(row.share),
            number(row.flops_rate()),
            number(row.bytes_rate()),
            number(row.roofline()),
            row.total_ns.map_or(String::new(), |_| (!row.parts).to_string()),
        ]);
    }
    String::from_utf8(writer.into_inner().expect("memory takes every row")).expect("it was made of texts")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn names(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|r| r.name.as_str()).collect()
    }

    #[test]
    fn kernels_sum_their_dispatches_and_shares_make_one() {
        let document = sample::document();
        let rows = rows(&document, Group::Kernel, "", Column::Total, false);
        assert_eq!(names(&rows), ["matmul", "attention", "norm", "gather"]);
        assert_eq!(rows[0].calls, 4);
        let total = document.total_ns.unwrap();
        assert!((rows.iter().filter_map(|r| r.total_ns).sum::<f64>() - total).abs() < 1e-6);
        assert!((rows.iter().filter_map(|r| r.share).sum::<f64>() - 1.0).abs() < 1e-12);
        let m = &rows[0];
        assert_eq!(m.mean_ns(), m.total_ns.map(|ns| ns / 4.0));
        assert!(m.roofline().unwrap() > 0.0 && m.roofline().unwrap() < 1.0);
    }

    #[test]
    fn layers_parts_and_dispatches() {
        let document = sample::document();
        let by = |group| rows(&document, group, "", Column::Name, false);
        assert_eq!(names(&by(Group::Layer)), ["blocks.0", "emb", "head", "ln"]);
        assert_eq!(names(&by(Group::Part)), ["blocks.0.ffwd", "blocks.0.sa", "emb", "head", "ln"]);
        assert_eq!(by(Group::Dispatch).len(), 7);
    }

    #[test]
    fn a_click_selects_what_its_row_sums() {
        let mut trace = sample::trace();
        // beside `blocks.0.sa` and what lies in it a norm of the block; the head twice, once as a copy
        trace.dispatches[4].name = "blocks.0.ln1".into();
        trace.dispatches[5].name = "head (copy)".into();
        let document = Document::new("", trace);
        for group in [Group::Dispatch, Group::Kernel, Group::Layer, Group::Part] {
            let rows = rows(&document, group, "", Column::Name, false);
            let chosen = rows.iter().map(|row| row.selection.dispatches(&document));
            let flops = |i: &usize| document.trace.dispatches[*i].flops;
            for (row, chosen) in rows.iter().zip(chosen) {
                assert_eq!(
                    (row.calls, row.flops),
                    (chosen.len(), chosen.iter().map(flops).sum()),
                    "{group:?} {}",
                    row.name
                );
            }
        }
    }

    #[test]
    fn orders_turn_and_filters_narrow() {
        let document = sample::document();
        let falling = rows(&document, Group::Dispatch, "matmul", Column::Mean, false);
        let rising = rows(&document, Group::Dispatch, "matmul", Column::Mean, true);
        assert_eq!(falling.len(), 4);
        let turned: Vec<&Row> = rising.iter().rev().collect();
        assert_eq!(falling.iter().collect::<Vec<_>>(), turned);
    }

    #[test]
    fn without_times_nothing_is_zero() {
        let mut trace = sample::trace();
        trace.frames.iter_mut().for_each(|f| f.times = vec![None; 7]);
        let document = Document::new("", trace);
        let rows = rows(&document, Group::Kernel, "", Column::Total, false);
        assert!(rows.iter().all(|r| r.total_ns.is_none() && r.share.is_none() && r.flops_rate().is_none()));
        assert!(csv(&rows).lines().nth(1).unwrap().ends_with("attention,1,,,,,,,,"), "{}", csv(&rows));
    }

    #[test]
    fn rows_of_parts_of_a_time_say_so() {
        let mut trace = sample::trace();
        trace.frames[0].shared = vec![(1, 2)];
        let document = Document::new("", trace);
        let found = |group| rows(&document, group, "", Column::Name, false);
        let parts: Vec<(String, bool, bool)> =
            found(Group::Kernel).into_iter().map(|r| (r.name, r.parts, r.divided)).collect();
        let row = |name: &str, part: bool| (name.to_owned(), part, part);
        assert_eq!(parts, [row("attention", true), row("gather", false), row("matmul", true), row("norm", false)]);
        let layer = &found(Group::Layer)[0];
        assert_eq!(
            (layer.name.as_str(), layer.parts, layer.divided),
            ("blocks.0", false, true),
            "all of it is in there"
        );
        let text = csv(&found(Group::Kernel));
        let whole: Vec<&str> = text.lines().map(|l| l.rsplit(',').next().unwrap()).collect();
        assert_eq!(whole, ["measured_as_a_whole", "false", "true", "false", "true"]);
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        let document = sample::document();
        let mut row = rows(&document, Group::Kernel, "", Column::Total, false).remove(0);
        row.name = "a, \"b\"".into();
        assert!(csv(&[row]).lines().nth(1).unwrap().starts_with("\"a, \"\"b\"\"\",matmul,4,"));
    }
}
