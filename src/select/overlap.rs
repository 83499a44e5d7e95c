//! In: launches in order; out: the same launches with those side by side that need not wait for each other. Knows of a
//! launch what it reads and writes and what it costs.
//!
//! A device begins a dispatch while the one before it ends if it need not wait for it: cores that have no workgroup left
//! of the one go on with the other. In a backward pass the gradients of a product's two operands are such a pair, and so
//! are an optimiser's step and the next layer's product.

use super::{Selected, Step, TensorId};
use crate::kernel::{Access, Estimate};
use std::collections::{HashSet, VecDeque};

/// Which launches may run side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// None: each waits for the one before.
    Never,
    /// Those of so much work that starting them together pays, on devices that run several at once: not on a CPU, and not
    /// where it takes over a two-hundredth more memory.
    #[default]
    Long,
    /// All that may, for tests.
    Always,
}

/// Less work than either is done before a device could begin with another launch.
const LONG: Estimate = Estimate { flops: 5e8, bytes: 16e6 };

/// A launch is moved before at most so many others, so that what it makes does not take memory much earlier.
const REACH: usize = 8;

/// Launches of much work that run side by side: two fill a device.
const MOST: usize = 2;

/// At most so much work has a launch that is kept until the end: its operands stay alive as long.
const LITTLE: Estimate = Estimate { flops: 1e7, bytes: 1e6 };

/// So many of them pay for a pass.
const LEAST: usize = 8;

/// Brings launches together that may run side by side and marks all but the first of such a group: those of much work, a
/// few at a time, many of one node, such as those that look at all gradients, and at the end those of little work that
/// nothing waits for, such as an optimiser's steps of vectors.
pub fn overlap(selected: Selected, which: Overlap) -> Selected {
    if which == Overlap::Never {
        return selected;
    }
    let is_long = |step: &Step| {
        let Estimate { flops, bytes } = step.launch.estimate;
        which == Overlap::Always || flops >= LONG.flops || bytes >= LONG.bytes
    };
    let least = if which == Overlap::Always { 2 } else { LEAST };
    let (steps, last) = last_of_little_work(selected.steps, least);
    let mut rest = VecDeque::from(steps);
    let mut steps = Vec::with_capacity(rest.len() + last.len());
    while let Some(first) = rest.pop_front() {
        let begin = steps.len();
        let may_have_others = is_long(&first);
        let mut before = vec![Touched::by(&first)];
        steps.push(first);
        let of_node = of_one_node(&steps[begin], &rest);
        if of_node + 1 >= least {
            steps.extend(rest.drain(..of_node));
        }
        let mut at = 0;
        while may_have_others && at < rest.len().min(REACH) && steps.len() - begin < MOST {
            let touched = Touched::by(&rest[at]);
            if is_long(&rest[at]) && before.iter().all(|b| b.is_apart(&touched)) {
                steps.extend(rest.remove(at));
            } else {
                at += 1;
            }
            before.push(touched);
        }
        // what computes most begins first: what moves bytes fills the cores that it leaves idle at its end
        steps[begin..].sort_by(|a, b| b.launch.estimate.flops.total_cmp(&a.launch.estimate.flops));
        steps[begin + 1..].iter_mut().for_each(|s| s.beside = true);
    }
    let begin = steps.len();
    steps.extend(last);
    steps.iter_mut().skip(begin + 1).for_each(|s| s.beside = true);
    Selected { steps, ..selected }
}

/// How many of the launches that follow one are of its node and apart from each other.
fn of_one_node(first: &Step, rest: &VecDeque<Step>) -> usize {
    let mut before = vec![Touched::by(first)];
    for next in rest.iter().take_while(|next| next.node == first.node) {
        let touched = Touched::by(next);
        if !before.iter().all(|b| b.is_apart(&touched)) {
            break;
        }
        before.push(touched);
    }
    before.len() - 1
}

/// Parts steps into those that keep their places and those of little work, each apart from all that come after it; all
/// keep theirs unless there are at least so many of the latter.
fn last_of_little_work(steps: Vec<Step>, least: usize) -> (Vec<Step>, Vec<Step>) {
    // what later launches read and write
    let (mut reads, mut writes) = (HashSet::new(), HashSet::new());
    let mut keeps: Vec<bool> = Vec::with_capacity(steps.len());
    for step in steps.iter().rev() {
        let touched = Touched::by(step);
        let waited_for = touched.writes.iter().any(|t| reads.contains(t) || writes.contains(t));
        let waits = touched.reads.iter().any(|t| writes.contains(t));
        let Estimate { flops, bytes } = step.launch.estimate;
        keeps.push(waited_for || waits || flops > LITTLE.flops || bytes > LITTLE.bytes);
        reads.extend(touched.reads);
        writes.extend(touched.writes);
    }
    if keeps.iter().filter(|k| !**k).count() < least {
        return (steps, Vec::new());
    }
    let mut keeps = keeps.into_iter().rev();
    steps.into_iter().partition(|_| keeps.next().unwrap_or(true))
}

/// The tensors that a launch reads and writes.
struct Touched {
    reads: Vec<TensorId>,
    writes: Vec<TensorId>,
}

impl Touched {
    fn by(step: &Step) -> Touched {
        let mut touched = Touched { reads: Vec::new(), writes: step.in_place.into_iter().collect() };
        for (operand, access) in step.launch.operands.iter().zip(step.launch.key.bindings()) {
            match access {
                Access::Read => touched.reads.push(operand.tensor),
                Access::ReadWrite => touched.writes.push(operand.tensor),
            }
        }
        touched
    }

    /// Whether neither writes what the other touches.
    fn is_apart(&self, other: &Touched) -> bool {
        let hits =
            |writes: &[TensorId], of: &Touched| writes.iter().any(|t| of.reads.contains(t) || of.writes.contains(t));
        !hits(&self.writes, other) && !hits(&other.writes, self)
    }
}

impl Selected {
    /// For each launch the first and the last of those that it runs side by side with, itself where it is alone.
    pub fn groups(&self) -> Vec<(usize, usize)> {
        let mut groups: Vec<(usize, usize)> = Vec::with_capacity(self.steps.len());
        for (at, step) in self.steps.iter().enumerate() {
            let first = if step.beside { groups.last().map_or(at, |g| g.0) } else { at };
            groups.push((first, at));
            groups[first..at].iter_mut().for_each(|g| g.1 = at);
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{DType, NodeId};
    use crate::kernel::matmul::Matmul;
    use crate::kernel::{Launch, View};
    use crate::select::{TensorKind, TensorSpec};

    /// A product that reads two tensors and writes a third, which numbers its node.
    fn step(name: &str, [a, b, c]: [usize; 3], flops: f64) -> Step {
        let view = View::dense(&[4, 4].into());
        let caps = crate::caps::DeviceCaps::PORTABLE;
        let product = Matmul {
            dtype: DType::F32,
            out: DType::F32,
            a: &view,
            b: &view,
            c: &view,
            epilogue: &crate::graph::Chain::identity(),
            extras: &[],
            in_place: None,
            slice: None,
            sums: None,
            units: None,
        };
        let launch = product.launches(&caps).unwrap().remove(0);
        let launch = Launch { estimate: Estimate { flops, bytes: 0.0 }, ..launch.map(|o| TensorId([a, b, c][o])) };
        Step { node: NodeId(c), name: name.into(), launch, in_place: None, beside: false }
    }

    fn selected(steps: Vec<Step>) -> Selected {
        let spec = |i: usize| TensorSpec { name: format!("t{i}"), bytes: 64, kind: TensorKind::Temp };
        Selected { tensors: (0..20).map(spec).collect(), steps, ..Selected::default() }
    }

    fn names(selected: &Selected) -> Vec<String> {
        selected.steps.iter().map(|s| format!("{}{}", if s.beside { "+" } else { "" }, s.name)).collect()
    }

    #[test]
    fn what_need_not_wait_comes_beside_and_the_most_work_first() {
        // dw and dx both read dy; the sum of dw's parts waits for them, the next dw for dx
        let steps = || {
            vec![
                step("dw", [0, 1, 2], 2e9),
                step("sum", [2, 2, 3], 6e8),
                step("dx", [0, 4, 5], 3e9),
                step("next dw", [5, 1, 6], 2e9),
            ]
        };
        let long = overlap(selected(steps()), Overlap::Long);
        assert_eq!(names(&long), ["dx", "+dw", "next dw", "+sum"]);
        assert_eq!(long.groups(), [(0, 1), (0, 1), (2, 3), (2, 3)]);
        assert_eq!(names(&overlap(selected(steps()), Overlap::Never)), ["dw", "sum", "dx", "next dw"]);
    }

    #[test]
    fn nothing_passes_what_it_waits_for_or_what_waits_for_it() {
        let reads_old = |last: usize| {
            vec![step("a", [0, 1, 2], 1e9), step("reads 3", [3, 1, 4], 1.0), step("writes", [0, 1, last], 1e9)]
        };
        assert_eq!(names(&overlap(selected(reads_old(3)), Overlap::Long)), ["a", "reads 3", "writes"]);
        assert_eq!(names(&overlap(selected(reads_old(5)), Overlap::Long)), ["a", "+writes", "reads 3"]);
        // an operand that is taken over is written
        let mut over = reads_old(5);
        over[2].in_place = Some(TensorId(3));
        assert_eq!(names(&overlap(selected(over), Overlap::Long)), ["a", "reads 3", "writes"]);
    }

    #[test]
    fn many_launches_of_one_node_run_beside_each_other() {
        let of = |node: usize, name: &str, operands| Step { node: NodeId(20 + node), ..step(name, operands, 1e3) };
        let looks = |count: usize| (0..count).map(|i| of(1, &format!("{i}"), [0, 1, 4 + i])).collect::<Vec<_>>();
        let last = [of(1, "all", [4, 5, 3]), of(2, "use", [3, 3, 2])];
        let many = overlap(selected([&looks(8)[..], &last].concat()), Overlap::Long);
        assert_eq!(names(&many), ["0", "+1", "+2", "+3", "+4", "+5", "+6", "+7", "all", "use"]);
        let few = overlap(selected([&looks(7)[..], &last].concat()), Overlap::Long);
        assert!(few.steps.iter().all(|s| !s.beside));
    }

    #[test]
    fn short_launches_that_nothing_waits_for_come_last() {
        let short = |name: &str, operands| step(name, operands, 1e3);
        let mut steps = vec![short("a", [0, 1, 2]), short("b", [2, 1, 3]), step("c", [0, 1, 4], 1e9)];
        assert_eq!(names(&overlap(selected(steps.clone()), Overlap::Always)), ["c", "+a", "b"]);
        // a is read by b, and d overwrites what e reads
        let more = [("d", [0, 1, 5]), ("e", [5, 1, 6]), ("f", [0, 1, 5])];
        steps.extend(more.map(|(name, operands)| short(name, operands)));
        assert_eq!(names(&overlap(selected(steps.clone()), Overlap::Always)), ["c", "+a", "d", "e", "b", "+f"]);
        assert_eq!(names(&overlap(selected(steps.clone()), Overlap::Long)), ["a", "b", "c", "d", "e", "f"]);
        // so many pay
        let first = steps.len();
        steps.extend((0..8).map(|i| short(&format!("{i}"), [0, 1, first + i])));
        let many = overlap(selected(steps), Overlap::Long);
        assert_eq!(names(&many)[..6], ["a", "c", "d", "e", "b", "+f"]);
        assert!(names(&many)[6..].iter().all(|n| n.starts_with('+')));
    }
}
