//! In: a document and a filter; out: points and the roof of a roofline plot. Knows neither egui nor files.
//!
//! A point is all dispatches of one kernel that have the same cost; its place is FLOPs a byte and FLOP/s.

use super::document::Document;
use super::selection::{Selection, fits};
use super::table::bound_ns;
use kiln::trace::Peaks;

/// Dispatches of one kernel and cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The kernel.
    pub kernel: String,
    /// The dispatches.
    pub dispatches: Vec<usize>,
    /// FLOPs a byte.
    pub intensity: f64,
    /// FLOP/s of the median.
    pub rate: f64,
    /// Time of all of them in a run, nanoseconds.
    pub total_ns: f64,
    /// Part of the time of all dispatches.
    pub share: f64,
    /// The least time that the hardware allows over the time, where peaks were measured.
    pub of_roof: Option<f64>,
    /// Whether its time is no measured one: see [`Document::has_parts`].
    pub parts: bool,
}

impl Point {
    /// What a click on it selects.
    pub fn selection(&self) -> Selection {
        Selection::of(self.dispatches.clone(), || format!("{} of equal cost", self.kernel))
    }
}

/// What a roofline plot shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Roofline {
    /// The largest first, so that small ones are drawn on top.
    pub points: Vec<Point>,
    /// Points that take too little time to be drawn beside so many others.
    pub more: usize,
    /// Kernels that have points, their parts of the time, and whether these are no measured ones.
    pub kernels: Vec<(String, f64, bool)>,
    /// Dispatches without FLOPs, which have no place in it, their time in a run, and whether that is no measured one.
    pub without: (usize, f64, bool),
}

/// Points that are drawn.
const MOST: usize = 400;

/// Points of the dispatches that fit a filter and have times.
pub fn roofline(document: &Document, filter: &str) -> Roofline {
    let trace = &document.trace;
    let mut groups: Vec<((usize, u64, u64), Vec<usize>)> = Vec::new();
    let mut at = std::collections::HashMap::new();
    let mut without = (Vec::new(), 0.0);
    for (i, d) in trace.dispatches.iter().enumerate().filter(|(i, _)| fits(document, *i, filter)) {
        let Some(ns) = document.median_ns(i).filter(|ns| *ns > 0.0) else { continue };
        if d.flops <= 0.0 || d.bytes <= 0.0 {
            without.0.push(i);
            without.1 += ns;
            continue;
        }
        let key = (d.kernel, d.flops.to_bits(), d.bytes.to_bits());
        let group = *at.entry(key).or_insert_with(|| {
            groups.push((key, Vec::new()));
            groups.len() - 1
        });
        groups[group].1.push(i);
    }
    let mut points: Vec<Point> = groups.into_iter().map(|(_, dispatches)| point(document, dispatches)).collect();
    points.sort_by(|a, b| b.total_ns.total_cmp(&a.total_ns));
    let more = points.len().saturating_sub(MOST);
    points.truncate(MOST);
    let mut kernels: Vec<(&str, f64, Vec<usize>)> = Vec::new();
    for p in &points {
        match kernels.iter_mut().find(|k| k.0 == p.kernel) {
            Some((_, share, dispatches)) => {
                *share += p.share;
                dispatches.extend(&p.dispatches);
            }
            None => kernels.push((&p.kernel, p.share, p.dispatches.clone())),
        }
    }
    let of_kernel = |(kernel, share, mut dispatches): (&str, f64, Vec<usize>)| {
        dispatches.sort_unstable();
        (kernel.to_owned(), share, document.has_parts(&dispatches))
    };
    let kernels = kernels.into_iter().map(of_kernel).collect();
    let without = (without.0.len(), without.1, document.has_parts(&without.0));
    Roofline { points, more, kernels, without }
}

fn point(document: &Document, dispatches: Vec<usize>) -> Point {
    let d = &document.trace.dispatches[dispatches[0]];
    let total_ns: f64 = dispatches.iter().filter_map(|i| document.median_ns(*i)).sum();
    let each = total_ns / dispatches.len() as f64;
    Point {
        kernel: document.trace.kernel_of(d).to_owned(),
        intensity: d.flops / d.bytes,
        rate: d.flops / each * 1e9,
        total_ns,
        share: document.total_ns.map_or(0.0, |all| total_ns / all),
        of_roof: document.trace.device.peaks.map(|peaks| bound_ns(d.flops, d.bytes, peaks) / each),
        parts: document.has_parts(&dispatches),
        dispatches,
    }
}

/// FLOP/s that the hardware allows at so many FLOPs a byte.
pub fn roof(peaks: Peaks, intensity: f64) -> f64 {
    peaks.flops.min(peaks.bytes * intensity)
}

/// FLOPs a byte from which on arithmetic is the limit.
pub fn ridge(peaks: Peaks) -> f64 {
    peaks.flops / peaks.bytes.max(1.0)
}

/// Radius of a point by its share of the time: the area tells.
pub fn radius(share: f64) -> f32 {
    (4.0 + 26.0 * share.clamp(0.0, 1.0).sqrt()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn equal_costs_are_one_point_under_the_roof() {
        let document = sample::document();
        let found = roofline(&document, "");
        assert_eq!(found.points.iter().map(|p| p.dispatches.len()).sum::<usize>() + found.without.0, 7);
        assert_eq!(found.without.0, 1, "the gather has no FLOPs");
        let peaks = document.trace.device.peaks.unwrap();
        for point in &found.points {
            assert_eq!(point.selection().dispatches(&document), point.dispatches, "a click selects what is there");
            assert!(point.rate <= roof(peaks, point.intensity) * 1.0001, "{point:?}");
            assert!((point.of_roof.unwrap() - point.rate / roof(peaks, point.intensity)).abs() < 1e-9);
        }
        assert!(found.points.windows(2).all(|w| w[0].total_ns >= w[1].total_ns));
        assert!(roofline(&document, "attention").points.len() == 1);
        let total: f64 = found.kernels.iter().map(|(_, share, _)| share).sum();
        assert!((total - found.points.iter().map(|p| p.share).sum::<f64>()).abs() < 1e-9);
    }

    #[test]
    fn figures_of_a_kernel_say_whether_others_share_their_time() {
        let divided = |shared: (usize, usize)| {
            let mut trace = sample::trace();
            trace.frames[0].shared = vec![shared];
            let found = roofline(&Document::new("", trace), "");
            let kernels = found.kernels.into_iter().filter(|k| k.2).map(|k| k.0).collect::<Vec<_>>();
            (kernels, found.without.2)
        };
        // the two are of one kernel; one is the gather
        assert_eq!(divided((3, 4)), (vec![], false));
        assert_eq!(divided((1, 2)).0.len(), 2);
        assert!(divided((0, 1)).1);
    }

    #[test]
    fn of_very_many_points_the_costly_ones_are_drawn() {
        let document = Document::new("large", sample::large(3_000, 1));
        let found = roofline(&document, "");
        assert_eq!((found.points.len(), found.more), (MOST, 3_000 - MOST));
    }

    #[test]
    fn the_roof_bends_at_the_ridge() {
        let peaks = Peaks { flops: 100.0, bytes: 10.0 };
        assert_eq!(ridge(peaks), 10.0);
        assert_eq!((roof(peaks, 5.0), roof(peaks, 10.0), roof(peaks, 50.0)), (50.0, 100.0, 100.0));
        assert!(radius(0.5) > radius(0.1) && radius(7.0) == radius(1.0));
    }
}
