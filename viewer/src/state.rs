//! In: opened traces and what was clicked; out: [`State`], all that panels share. Knows neither files nor windows.

use crate::live::panel::Live;
use crate::memo::Memo;
use crate::model::compare::Comparison;
use crate::model::document::Document;
use crate::model::memory::Layout;
use crate::model::roofline::Roofline;
use crate::model::selection::{self, Marks, Selection};
use crate::model::table::{Column, Group, Row};
use crate::model::timeline::{Timeline, View};
use crate::model::tree::Trees;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An opened trace and how it is looked at.
pub struct Open {
    /// Tells it from others, and from itself before frames were added.
    pub revision: u64,
    /// The trace.
    pub document: Arc<Document>,
    /// It over time.
    pub timeline: Arc<Timeline>,
    /// The stretch of time that is shown.
    pub view: View,
    /// The frame that was last gone to.
    pub frame: usize,
}

/// How the table is shown.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TableSettings {
    /// What rows stand for.
    pub group: Group,
    /// What they are ordered by.
    pub order: Column,
    /// Whether the order is turned.
    pub reversed: bool,
}

/// What is kept between starts.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The table's.
    pub table: TableSettings,
    /// Whether parts of equal name in several layers are compared as one.
    pub fold: bool,
    /// Whether the graph shows inputs and parameters.
    pub sources: bool,
    /// Files that were opened, the last first.
    pub recent: Vec<String>,
    /// What a live run was last asked for.
    pub job: crate::live::Job,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            table: TableSettings::default(),
            fold: true,
            sources: false,
            recent: Vec::new(),
            job: crate::live::Job::default(),
        }
    }
}

/// Files that are remembered.
const RECENT: usize = 8;

impl Settings {
    /// Puts a file first among the recent ones.
    pub fn remember(&mut self, path: &str) {
        self.recent.retain(|p| p != path);
        self.recent.insert(0, path.to_owned());
        self.recent.truncate(RECENT);
    }
}

/// What panels ask of the window.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// To open the made example.
    Example,
    /// To open a file.
    Open(String),
    /// To write a file.
    Save {
        /// Begin of its name.
        stem: String,
        /// End of its name.
        extension: &'static str,
        /// What it holds.
        bytes: Vec<u8>,
    },
}

/// All that panels share.
pub struct State {
    /// The open traces.
    pub open: Vec<Open>,
    /// The one that panels show.
    pub current: usize,
    /// The one that it is compared with.
    pub base: usize,
    /// What is highlighted.
    pub selection: Selection,
    /// Words that narrow what is shown.
    pub filter: String,
    /// What is kept.
    pub settings: Settings,
    /// A live run.
    pub live: Live,
    /// What was asked for in this frame.
    pub requests: Vec<Request>,
    /// Words of the graph's search field.
    pub graph_filter: String,
    /// Layers of the graph that were opened or closed, as written and as run.
    pub graph_folds: [BTreeMap<String, bool>; 2],
    revisions: u64,
    pub(crate) rows: Memo<(u64, TableSettings, String), Vec<Row>>,
    pub(crate) roofline: Memo<(u64, String), Roofline>,
    pub(crate) memory: Memo<u64, Layout>,
    pub(crate) comparison: Memo<(u64, u64, bool), Comparison>,
    pub(crate) trees: Memo<(u64, String, bool), Arc<Trees>>,
    fitting: Memo<(u64, String), Arc<Marks>>,
    chosen: Memo<(u64, Selection), (Arc<Marks>, Option<f64>)>,
}

impl State {
    /// Without a trace.
    pub fn new(settings: Settings, live: Live) -> State {
        State {
            open: Vec::new(),
            current: 0,
            base: 0,
            selection: Selection::None,
            filter: String::new(),
            settings,
            live,
            requests: Vec::new(),
            graph_filter: String::new(),
            graph_folds: Default::default(),
            revisions: 0,
            rows: Memo::default(),
            roofline: Memo::default(),
            memory: Memo::default(),
            comparison: Memo::default(),
            trees: Memo::default(),
            fitting: Memo::default(),
            chosen: Memo::default(),
        }
    }

    /// Shows a document. The one that was shown becomes the one that it is compared with.
    pub fn add(&mut self, document: Document) {
        let timeline = Timeline::of(&document);
        self.add_made(Arc::new(document), Arc::new(timeline));
    }

    /// As [`State::add`], with its timeline made before.
    pub fn add_made(&mut self, document: Arc<Document>, timeline: Arc<Timeline>) {
        self.revisions += 1;
        let frame = timeline.frames.len().saturating_sub(1);
        let view = timeline.frame(frame);
        self.open.push(Open { revision: self.revisions, document, timeline, view, frame });
        self.base = if self.open.len() > 1 { self.current } else { 0 };
        self.current = self.open.len() - 1;
        self.selection = Selection::None;
    }

    /// Shows a document's next state in its place; the view stays unless it showed no frame.
    pub fn replace(&mut self, at: usize, document: Arc<Document>, timeline: Arc<Timeline>) {
        let Some(open) = self.open.get_mut(at) else { return };
        self.revisions += 1;
        // frames move on: the last one is followed
        let frame = timeline.frames.len().saturating_sub(1);
        let follow = open.view == open.timeline.frame(open.frame);
        *open = Open {
            revision: self.revisions,
            view: if follow { timeline.frame(frame) } else { open.view },
            frame: if follow { frame } else { open.frame },
            document,
            timeline,
        };
    }

    /// Closes a document.
    pub fn close(&mut self, at: usize) {
        if at >= self.open.len() {
            return;
        }
        self.open.remove(at);
        let last = self.open.len().saturating_sub(1);
        let follow = |i: usize| if i > at { i - 1 } else { i.min(last) };
        (self.current, self.base) = (follow(self.current), follow(self.base));
        self.selection = Selection::None;
        self.live.closed(at);
    }

    /// The document that panels show.
    pub fn current(&self) -> Option<&Open> {
        self.open.get(self.current)
    }

    /// The dispatches of the current document that fit the filter.
    pub fn fitting(&mut self) -> Arc<Marks> {
        let Some(open) = self.open.get(self.current) else { return Arc::default() };
        let (document, filter) = (&open.document, &self.filter);
        let fits = |i| selection::fits(document, i, filter);
        let all = || Arc::new(Marks::of(document.trace.dispatches.len(), fits));
        self.fitting.get((open.revision, filter.clone()), all).clone()
    }

    /// The dispatches of the current document that are selected, and the sum of their medians, nanoseconds; `None` where
    /// one has no times.
    pub fn chosen(&mut self) -> (Arc<Marks>, Option<f64>) {
        let Some(open) = self.open.get(self.current) else { return (Arc::default(), None) };
        let (document, selection) = (&open.document, &self.selection);
        let all = || {
            let marks = Marks::of(document.trace.dispatches.len(), |i| selection.holds(document, i));
            let ns = marks.dispatches.iter().map(|i| document.median_ns(*i)).sum();
            (Arc::new(marks), ns)
        };
        self.chosen.get((open.revision, selection.clone()), all).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn state() -> State {
        State::new(Settings::default(), Live::without_backend())
    }

    #[test]
    fn a_new_trace_is_shown_and_compared_with_the_last() {
        let mut state = state();
        state.add(Document::new("a", sample::eager()));
        assert_eq!((state.current, state.base), (0, 0));
        state.add(sample::document());
        assert_eq!((state.current, state.base), (1, 0));
        state.selection = Selection::Dispatch(3);
        state.close(0);
        assert_eq!((state.open.len(), state.current, state.base), (1, 0, 0));
        assert_eq!(state.selection, Selection::None);
        state.close(0);
        state.close(0);
        assert!(state.current().is_none() && !state.fitting().any(0, usize::MAX));
    }

    #[test]
    fn a_growing_trace_is_followed_unless_one_looks_elsewhere() {
        let mut state = state();
        state.add(sample::document());
        let more = || {
            let mut trace = sample::trace();
            trace.frames.extend(
                trace.frames.clone().into_iter().map(|f| kiln::trace::Frame { begin: f.begin + 10_000_000, ..f }),
            );
            let document = Document::new("sample", trace);
            let timeline = Timeline::of(&document);
            (Arc::new(document), Arc::new(timeline))
        };
        let (document, timeline) = more();
        state.replace(0, document, timeline);
        assert_eq!(state.open[0].frame, 5);
        state.open[0].view = View { begin: 0.0, end: 10.0 };
        let (document, timeline) = more();
        state.replace(0, document, timeline);
        assert_eq!(state.open[0].view, View { begin: 0.0, end: 10.0 });
    }

    #[test]
    fn recent_files_are_few_and_each_once() {
        let mut settings = Settings::default();
        for i in 0..20 {
            settings.remember(&format!("{}.json", i % 10));
        }
        assert_eq!(settings.recent.len(), RECENT);
        assert_eq!(settings.recent[0], "9.json");
    }
}
