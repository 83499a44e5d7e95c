//! In: two documents; out: what each part of the model costs in both, ordered by what changed the total. Knows neither
//! egui nor files.
//!
//! A part is the least set of ops as written that both programs compute in nodes of their own: the ops of a head and
//! the attention that took them in are one part. Where the two were not compiled from the same graph, nodes are matched
//! by their names.

use super::document::Document;
use super::selection::Selection;
use super::tree::{is_source, subject};
use kiln::trace::Finding;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A part of the model, in both programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// The node of the second program that takes most of its time, else of the first.
    pub name: String,
    /// How many parts of equal name but for the layer's number are in it.
    pub parts: usize,
    /// Time in the first and in the second, nanoseconds; `None` where it has dispatches without times.
    pub ns: [Option<f64>; 2],
    /// Dispatches in the first and in the second.
    pub calls: [usize; 2],
    /// What the second's passes say of it beyond the first's, each once.
    pub findings: Vec<String>,
    /// The dispatches of each, in order.
    pub dispatches: [Vec<usize>; 2],
    /// Whether the time in the first and in the second is no measured one: see [`Document::has_parts`].
    pub divided: [bool; 2],
}

/// Two programs side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The largest change first.
    pub parts: Vec<Part>,
    /// Sums of the dispatches' medians, nanoseconds.
    pub total: [Option<f64>; 2],
    /// Median from the first begin to the last end on the device, nanoseconds.
    pub gpu: [Option<f64>; 2],
    /// Median from submit to results, nanoseconds.
    pub wall: [Option<f64>; 2],
    /// Whether both were compiled from the same graph.
    pub same_graph: bool,
}

impl Part {
    /// The second less the first, nanoseconds; what a program does not have costs nothing.
    pub fn change(&self) -> Option<f64> {
        Some(self.ns[1]? - self.ns[0]?)
    }

    /// Its name, and how many it is.
    pub fn title(&self) -> String {
        if self.parts > 1 { format!("{}  ×{}", self.name, self.parts) } else { self.name.clone() }
    }

    /// What a click on it selects in the second.
    pub fn selection(&self) -> Selection {
        Selection::of(self.dispatches[1].clone(), || self.title())
    }

    /// The first over the second, where both take time.
    pub fn speed_up(&self) -> Option<f64> {
        let [first, second] = self.ns.map(|ns| ns.filter(|ns| *ns > 0.0));
        first.zip(second).map(|(a, b)| a / b)
    }
}

/// Sets that grow together.
struct Sets(Vec<usize>);

impl Sets {
    fn find(&mut self, mut i: usize) -> usize {
        while self.0[i] != i {
            self.0[i] = self.0[self.0[i]];
            i = self.0[i];
        }
        i
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a.max(b)] = a.min(b);
    }
}

/// A name with `*` in place of the numbers of layers: `blocks.*.sa`.
pub fn folded(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let number = |(i, part): (usize, &&str)| -> String {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if digits && i + 1 < parts.len() { "*".into() } else { (*part).to_owned() }
    };
    parts.iter().enumerate().map(number).collect::<Vec<_>>().join(".")
}

/// Compares; with `fold` parts whose names differ by a layer's number alone are one.
pub fn compare(first: &Document, second: &Document, fold: bool) -> Comparison {
    let graphs = [&first.trace.graph, &second.trace.graph];
    let names = |g: &kiln::trace::Graphs| g.before.iter().map(|n| n.name.clone()).collect::<Vec<_>>();
    let same_graph = !graphs[0].before.is_empty() && names(graphs[0]) == names(graphs[1]);

    // nodes of the first, then of the second
    let count = graphs[0].after.len();
    let mut sets = Sets((0..count + graphs[1].after.len()).collect());
    if same_graph {
        for (a, b) in graphs[0].before.iter().zip(&graphs[1].before).filter(|(a, _)| !is_source(a)) {
            if let (Some(a), Some(b)) = (a.becomes, b.becomes) {
                sets.join(a, count + b);
            }
        }
    } else {
        let mut seen: HashMap<(&str, usize), usize> = HashMap::new();
        let mut times: HashMap<&str, usize> = HashMap::new();
        for (i, node) in graphs[0].after.iter().enumerate() {
            let nth = times.entry(&node.name).or_default();
            seen.insert((&node.name, *nth), i);
            *nth += 1;
        }
        times.clear();
        for (i, node) in graphs[1].after.iter().enumerate() {
            let nth = times.entry(&node.name).or_default();
            if let Some(a) = seen.get(&(node.name.as_str(), *nth)) {
                sets.join(*a, count + i);
            }
            *nth += 1;
        }
    }

    let mut parts: BTreeMap<usize, Part> = BTreeMap::new();
    let mut members: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (side, document) in [first, second].into_iter().enumerate() {
        for (i, d) in document.trace.dispatches.iter().enumerate() {
            if d.node >= graphs[side].after.len() {
                continue;
            }
            let set = sets.find(side * count + d.node);
            let part = parts.entry(set).or_insert_with(|| Part { parts: 1, ns: [Some(0.0); 2], ..Part::default() });
            part.ns[side] = part.ns[side].zip(document.median_ns(i)).map(|(a, b)| a + b);
            part.calls[side] += 1;
            part.dispatches[side].push(i);
            members.entry(set).or_default().push(graphs[side].after[d.node].name.clone());
        }
    }
    for (side, graph) in graphs.into_iter().enumerate() {
        for node in graph.before.iter().filter(|n| !is_source(n)) {
            if let Some(to) = node.becomes {
                members.entry(sets.find(side * count + to)).or_default().push(node.name.clone());
            }
        }
    }
    // what the second's passes say beyond the first's, by the name that it speaks of
    let known: HashSet<&Finding> = graphs[0].findings.iter().collect();
    let mut new: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, finding) in graphs[1].findings.iter().enumerate().filter(|(_, f)| !known.contains(f)) {
        new.entry(subject(&finding.what)).or_default().push(i);
    }
    for (set, part) in &mut parts {
        let (side, document) = if part.calls[1] > 0 { (1, second) } else { (0, first) };
        let slowest = part.dispatches[side].iter().max_by(|a, b| {
            let ns = |i: usize| document.median_ns(i).unwrap_or(0.0);
            ns(**a).total_cmp(&ns(**b)).then(b.cmp(a))
        });
        part.name =
            slowest.map_or(String::new(), |i| graphs[side].after[document.trace.dispatches[*i].node].name.clone());
        let of = members.get(set).map_or(&[][..], Vec::as_slice);
        let of: BTreeSet<usize> = of.iter().filter_map(|name| new.get(name.as_str())).flatten().copied().collect();
        let findings = of.into_iter().map(|i| &graphs[1].findings[i]);
        // the part's name says of what
        let rest = |what: &str| what.strip_prefix(subject(what)).unwrap_or(what).trim_start_matches(": ").to_owned();
        part.findings = findings.map(|f| format!("{}: {}", f.pass, rest(&f.what))).collect();
    }
    let mut parts: Vec<Part> = parts.into_values().collect();
    if fold {
        parts = fold_parts(parts);
    }
    for part in &mut parts {
        for (side, document) in [first, second].into_iter().enumerate() {
            part.dispatches[side].sort_unstable();
            part.divided[side] = document.has_parts(&part.dispatches[side]);
        }
    }
    parts.sort_by(|a, b| {
        let size = |p: &Part| p.change().map_or(-1.0, f64::abs);
        size(b).total_cmp(&size(a)).then_with(|| a.name.cmp(&b.name))
    });
    Comparison {
        parts,
        total: [first.total_ns, second.total_ns],
        gpu: [first, second].map(|d| d.trace.gpu_stats().map(|s| s.median)),
        wall: [first, second].map(|d| d.trace.wall_stats().map(|s| s.median)),
        same_graph,
    }
}

fn fold_parts(parts: Vec<Part>) -> Vec<Part> {
    let mut folds: Vec<Part> = Vec::new();
    let mut at: HashMap<String, usize> = HashMap::new();
    for part in parts {
        let name = folded(&part.name);
        let Some(fold) = at.get(&name).map(|i| &mut folds[*i]) else {
            at.insert(name, folds.len());
            folds.push(part);
            continue;
        };
        fold.name = name;
        fold.parts += 1;
        for side in 0..2 {
            fold.ns[side] = fold.ns[side].zip(part.ns[side]).map(|(a, b)| a + b);
            fold.calls[side] += part.calls[side];
            fold.dispatches[side].extend(&part.dispatches[side]);
        }
        // the same words of another layer say nothing new
        for finding in part.findings {
            if !fold.findings.contains(&finding) {
                fold.findings.push(finding);
            }
        }
    }
    folds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use kiln::Trace;

    #[test]
    fn a_part_is_what_both_compute_and_the_fusions_are_named() {
        let (eager, fused) = (Document::new("a", sample::eager()), sample::document());
        let comparison = compare(&eager, &fused, false);
        assert!(comparison.same_graph);
        let part = |name: &str| comparison.parts.iter().find(|p| p.name == name).unwrap_or_else(|| panic!("{name}"));
        let attention = part("blocks.0.sa.attention");
        assert_eq!(attention.calls, [3, 1]);
        assert_eq!(attention.findings, ["attention: 1 head → one causal attention"]);
        assert!(attention.speed_up().unwrap() > 1.0);
        assert_eq!(part("blocks.0.sa.qkv").calls, [3, 1]);
        assert_eq!(part("blocks.0.ffwd.0").findings, ["epilogues: matmul + relu in one kernel"]);
        assert_eq!(part("ln").calls, [1, 1]);
        let changes: f64 = comparison.parts.iter().filter_map(Part::change).sum();
        let total = comparison.total[1].unwrap() - comparison.total[0].unwrap();
        assert!((changes - total).abs() < 1e-6, "parts make the whole");
        let sizes: Vec<f64> = comparison.parts.iter().map(|p| p.change().unwrap().abs()).collect();
        assert!(sizes.windows(2).all(|w| w[0] >= w[1]));
    }

    #[test]
    fn a_part_of_a_time_that_others_share_says_so() {
        let mut trace = sample::trace();
        trace.frames[0].shared = vec![(1, 2)];
        let comparison = compare(&Document::new("a", sample::eager()), &Document::new("b", trace), true);
        let divided: Vec<&str> =
            comparison.parts.iter().filter(|p| p.divided == [false, true]).map(|p| p.name.as_str()).collect();
        assert_eq!(divided, ["blocks.0.sa.attention", "blocks.0.sa.qkv"]);
        assert_eq!(comparison.parts.iter().filter(|p| p.divided[0]).count(), 0);
    }

    #[test]
    fn with_itself_nothing_changes() {
        let document = sample::document();
        let comparison = compare(&document, &document, true);
        assert!(comparison.parts.iter().all(|p| p.change() == Some(0.0) && p.findings.is_empty()));
        assert_eq!(comparison.parts.len(), 7);
        for part in &comparison.parts {
            assert_eq!(part.selection().dispatches(&document), part.dispatches[1], "a click selects what its row sums");
        }
    }

    #[test]
    fn other_graphs_are_matched_by_name_and_missing_times_are_no_zero() {
        let mut other = sample::trace();
        other.graph.before.pop();
        other.frames.iter_mut().for_each(|f| f.times[6] = None);
        let comparison = compare(&sample::document(), &Document::new("b", other), true);
        assert!(!comparison.same_graph);
        let head = comparison.parts.iter().find(|p| p.name == "head").unwrap();
        assert_eq!((head.calls, head.ns[1], head.change(), head.speed_up()), ([1, 1], None, None, None));
        let none = compare(&Document::new("", Trace::default()), &sample::document(), true);
        assert_eq!(none.parts.len(), 7);
        assert!(none.parts.iter().all(|p| p.calls[0] == 0));
    }

    #[test]
    fn layers_of_equal_names_fold() {
        assert_eq!(folded("blocks.3.ffwd.net.0"), "blocks.*.ffwd.net.0");
        assert_eq!(folded("head"), "head");
        let part = |name: &str, ns: f64| Part {
            name: name.into(),
            parts: 1,
            ns: [Some(ns), Some(1.0)],
            calls: [1, 1],
            ..Part::default()
        };
        let folds = fold_parts(vec![part("b.0.x", 1.0), part("b.1.x", 2.0), part("c", 3.0)]);
        assert_eq!(folds.len(), 2);
        assert_eq!((folds[0].name.as_str(), folds[0].parts, folds[0].ns[0]), ("b.*.x", 2, Some(3.0)));
    }
}
