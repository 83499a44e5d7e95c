//! In: a trace and where it came from; out: [`Document`], the trace with what every panel needs of it, derived once.
//! Knows neither egui nor files.

use super::table::bound_ns;
use kiln::trace::{Frame, Stats, Trace, layer_of};

/// Times of a frame on the device, nanoseconds; `None` without timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FrameTimes {
    /// From the first begin to the last end.
    pub gpu: Option<u64>,
    /// The sum of the dispatches.
    pub busy: Option<u64>,
    /// In which none ran.
    pub gaps: Option<u64>,
}

/// An open trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// What it is called in lists: a file's name, or a live run's number.
    pub name: String,
    /// The trace.
    pub trace: Trace,
    /// Of each dispatch over the frames.
    pub stats: Vec<Option<Stats>>,
    /// Of each frame.
    pub frames: Vec<FrameTimes>,
    /// The sum of the dispatches' medians, nanoseconds; `None` if none has times.
    pub total_ns: Option<f64>,
    /// For each dispatch that was timed together with others in some frame, the first and the last of them.
    pub timed_with: Vec<Option<(usize, usize)>>,
}

impl Document {
    /// Derives what panels need.
    pub fn new(name: impl Into<String>, trace: Trace) -> Document {
        let (stats, frames, timed_with) = (Vec::new(), Vec::new(), Vec::new());
        let mut document = Document { name: name.into(), trace, stats, frames, total_ns: None, timed_with };
        document.refresh();
        document
    }

    /// To be called when frames were added.
    pub fn refresh(&mut self) {
        self.stats = (0..self.trace.dispatches.len()).map(|i| self.trace.dispatch_stats(i)).collect();
        let times = |f: &Frame| FrameTimes { gpu: f.gpu_ns(), busy: f.busy_ns(), gaps: f.gaps_ns() };
        self.frames = self.trace.frames.iter().map(times).collect();
        let medians = self.stats.iter().flatten().map(|s| s.median);
        self.total_ns = self.stats.iter().any(Option::is_some).then(|| medians.sum());
        self.timed_with = vec![None; self.trace.dispatches.len()];
        for &(first, last) in self.trace.frames.iter().flat_map(|f| &f.shared) {
            self.timed_with[first..=last].fill(Some((first, last)));
        }
    }

    /// Whether the time of a dispatch is a part of what several took together, in some frame.
    pub fn is_part(&self, dispatch: usize) -> bool {
        self.timed_with.get(dispatch).is_some_and(Option::is_some)
    }

    /// Whether the time of some dispatches, in order, is not measured as a whole: one was timed together with another
    /// that is not among them.
    pub fn has_parts(&self, of: &[usize]) -> bool {
        of.iter().enumerate().any(|(at, i)| match self.timed_with[*i] {
            None => false,
            Some((first, last)) => {
                let before = i - first;
                at < before || of.get(at - before) != Some(&first) || of.get(at + last - i) != Some(&last)
            }
        })
    }

    /// A dispatch's median, nanoseconds.
    pub fn median_ns(&self, dispatch: usize) -> Option<f64> {
        self.stats.get(dispatch).copied().flatten().map(|s| s.median)
    }

    /// A dispatch's layer, or its own name at the top.
    pub fn layer(&self, dispatch: usize, depth: usize) -> &str {
        let name = &self.trace.dispatches[dispatch].name;
        match layer_of(name, depth) {
            "" => name,
            layer => layer,
        }
    }

    /// How much of the least time that the hardware allows a dispatch needs; `None` without times or peaks.
    pub fn roofline_share(&self, dispatch: usize) -> Option<f64> {
        let d = &self.trace.dispatches[dispatch];
        let bound = bound_ns(d.flops, d.bytes, self.trace.device.peaks?);
        self.median_ns(dispatch).filter(|ns| *ns > 0.0).map(|ns| bound / ns)
    }

    /// `t.json: fused on llvmpipe`.
    pub fn caption(&self) -> String {
        let adapter = &self.trace.device.adapter;
        let adapter = adapter.split(" (").next().unwrap_or(adapter);
        let mode = &self.trace.options.mode;
        // a live run's name tells its mode
        match self.name.ends_with(mode.as_str()) {
            true => format!("{} on {adapter}", self.name),
            false => format!("{}: {mode} on {adapter}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_sum_over_whole_groups_is_measured() {
        let mut trace = sample::trace();
        trace.frames[1].shared = vec![(1, 3), (5, 6)];
        let document = Document::new("", trace);
        let parts: Vec<usize> = (0..7).filter(|i| document.is_part(*i)).collect();
        assert_eq!(parts, [1, 2, 3, 5, 6]);
        for whole in [&[][..], &[0], &[4], &[1, 2, 3], &[0, 5, 6], &[0, 1, 2, 3, 4, 5, 6]] {
            assert!(!document.has_parts(whole), "{whole:?}");
        }
        for part in [&[1][..], &[3], &[1, 3], &[0, 2, 3], &[1, 2, 3, 6], &[1, 2, 4, 5, 6]] {
            assert!(document.has_parts(part), "{part:?}");
        }
        assert!(!sample::document().has_parts(&[1]));
    }
}
