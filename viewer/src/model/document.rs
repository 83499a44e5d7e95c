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
}

impl Document {
    /// Derives what panels need.
    pub fn new(name: impl Into<String>, trace: Trace) -> Document {
        let mut document = Document { name: name.into(), trace, stats: Vec::new(), frames: Vec::new(), total_ns: None };
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
